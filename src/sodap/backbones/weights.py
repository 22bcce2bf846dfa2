"""Loading of weights from a local file into a timm ViT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor

from sodap.errors import SodapError

# Parts of a classification head, which are ignored: a new task needs its own.
_HEAD = ("head.", "head_dist.", "fc_norm.", "fc.", "pre_logits.")


def read_state(path: Path) -> dict[str, Any]:
    """Read a `.safetensors` file, or a `.pth`, `.pt` or `.bin` file without running code in it."""
    if not path.is_file():
        raise SodapError(f"there is no weights file at {path}")
    try:
        if path.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler may raise anything on a file of another kind
        raise SodapError(
            f"{path} cannot be read as model weights: "
            f"it is damaged, or neither a safetensors file nor a plain PyTorch state dictionary"
        ) from error
    if not isinstance(state, dict):
        raise SodapError(f"{path} holds a {type(state).__name__}, not a dictionary of weights")
    return state


def load_weights(vit: VisionTransformer, path: Path, architecture: str) -> None:
    """Load `path` into `vit`, with the position embedding resampled to its image size."""
    state = read_state(path)
    patch = next((v for k, v in state.items() if k.endswith("patch_embed.proj.weight")), None)
    own = vit.patch_embed.proj.weight
    if isinstance(patch, Tensor) and patch.ndim == 4 and patch.shape[2:] != own.shape[2:]:
        raise SodapError(
            f"{path} was made for {patch.shape[-1]}-pixel patches, "
            f"{architecture} has {own.shape[-1]}-pixel patches"
        )
    try:  # timm converts the layouts of other code bases and resamples positions
        state = checkpoint_filter_fn(state, vit)
    except (KeyError, RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise SodapError(f"{path} does not fit {architecture}: {_first_line(error)}") from error
    wanted = {key: value.shape for key, value in vit.state_dict().items()}
    given = {k: v for k, v in state.items() if isinstance(v, Tensor) and not k.startswith(_HEAD)}
    problems = [
        *_some("missing", [key for key in wanted if key not in given]),
        *_some("unknown", [key for key in given if key not in wanted]),
        *_some(
            "wrong shape",
            [
                f"{key} {list(given[key].shape)} instead of {list(shape)}"
                for key, shape in wanted.items()
                if key in given and given[key].shape != shape
            ],
        ),
    ]
    if problems:
        raise SodapError(f"{path} does not fit {architecture}: {'; '.join(problems)}")
    if any(not torch.isfinite(value).all() for value in given.values()):
        raise SodapError(f"{path} holds weights that are not finite numbers")
    vit.load_state_dict(given)


def _some(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return [f"{what}: {', '.join(names[:2])}{more}"]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]
