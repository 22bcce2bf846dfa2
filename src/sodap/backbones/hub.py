"""Pretrained weights on the Hugging Face hub: found in the local cache, or downloaded once.

timm downloads them itself, but without a network it tries again for a minute. Here one short
request says whether the hub can be reached, and how much will be downloaded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import huggingface_hub as hub
import timm
from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from sodap.errors import SodapError
from sodap.formats import format_bytes

FILE = "model.safetensors"

TIMEOUT = 5.0
"""Seconds to wait for the first answer of the hub."""


def fetch_pretrained(
    architecture: str, name: str, say: Callable[[str], None] | None = None
) -> Path | None:
    """The file with timm's weights of an architecture, downloaded if it is not cached.

    Returns None if the weights are not a single safetensors file on the hub. `name` is the
    backbone as the user calls it; `say` is called with a sentence before a download.
    """
    # Without a network the hub logs every attempt; the error below says enough.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    config = timm.get_pretrained_cfg(architecture)
    if config is None or not config.hf_hub_id or config.hf_hub_filename:
        return None
    repository, _, revision = config.hf_hub_id.partition("@")
    version = revision or None
    cached = hub.try_to_load_from_cache(repository, FILE, revision=version)
    if isinstance(cached, str):
        return Path(cached)
    try:
        found = hub.get_hf_file_metadata(
            hub.hf_hub_url(repository, FILE, revision=version), timeout=TIMEOUT
        )
        if say is not None:
            size = f" ({format_bytes(found.size)})" if found.size else ""
            say(
                f"downloading the weights of {name}{size} from {_url(repository)} "
                f"to {constants.HF_HUB_CACHE}, once"
            )
        return Path(hub.hf_hub_download(repository, FILE, revision=version))
    except Exception as error:  # of the hub, of the network or of the file system
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        raise SodapError(
            f"the weights of {name} cannot be downloaded from {_url(repository)} "
            f"({_reason(error)}); download {FILE} there on a machine with a network, and give the "
            f"file with weights=FILE"
        ) from error


def _url(repository: str) -> str:
    return f"{constants.ENDPOINT}/{repository}"


def _reason(error: Exception) -> str:
    """Why a download failed, in a few words."""
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[Errno -?\d+\] ", "", first)[:120]
