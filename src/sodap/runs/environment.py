"""Versions, commit and machine of this process, for the record of a run."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

import sodap
from sodap.runs.record import Environment
from sodap.version import __version__

_PACKAGES = ("torch", "timm", "numpy", "scikit-learn", "pillow")


def environment(method: type | None = None) -> Environment:
    """Environment of this process; `method` is a class that may come from another package."""
    return Environment(
        sodap=__version__,
        commit=_commit(),
        code=_code(method),
        python=platform.python_version(),
        packages={name: _version(name) for name in _PACKAGES},
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    )


@cache
def _code(method: type | None) -> str:
    """Fingerprint of every file of this package, and of the file that defines the method.

    Computed once, because a process runs the code that it has loaded, even if a file is edited.
    """
    files = [*_FILES]
    with suppress(TypeError, OSError):  # a class from a notebook has no file
        foreign = Path(inspect.getfile(method)) if method is not None else None
        if foreign is not None and _HOME not in foreign.parents:
            files.append(_digest(foreign))
    return hashlib.sha256(b"".join(files)).hexdigest()[:16]


def _digest(path: Path) -> bytes:
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).digest()
    return b""  # such as a broken link that an editor uses as a lock


_HOME = Path(sodap.__file__).parent
_FILES = [_digest(path) for path in sorted(_HOME.rglob("[!.]*.py"))]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _commit() -> str | None:
    """Commit of the checkout that this package runs from; None for an installed wheel."""
    here = Path(__file__).resolve().parent
    if not any((folder / ".git").exists() for folder in here.parents):
        return None
    try:
        ask = ["git", "-C", str(here)]
        commit = subprocess.run(
            [*ask, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*ask, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x {len(names)}" if names else platform.processor()
