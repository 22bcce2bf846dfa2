"""Files that are written completely or not at all: JSON, and states of tensors with metadata.

A state is two files: tensors in safetensors, and metadata in JSON; pickle is never used. The
tensors are written first, under a name that holds their checksum. The JSON file that refers to them
is renamed into place last. So a process that is killed in between leaves the former state intact.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sodap.errors import FolderBusyError, SodapError

if TYPE_CHECKING:  # torch is slow to import, and JSON files do not need it
    from torch import Tensor

FORMAT = 2
"""Format number of a state. Format 1 calls the metadata `facts`."""

TEMPORARY = ".tmp"


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a crash or on a full disk the old file is still there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
        # Mode 0o666, so that the user's umask decides who may read it.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise SodapError(f"cannot write {path}: {error.strerror or error}") from error


def as_json(content: Mapping[str, Any]) -> bytes:
    """JSON with one line per key and each list of numbers, however nested, on one line.

    A line per number would be hard to read and slow to write.
    """
    return f"{_lines(content, margin='')}\n".encode()


def _lines(value: Any, margin: str) -> str:
    deeper = f"{margin} "
    if isinstance(value, Mapping) and value:
        inside = [f"{json.dumps(str(key))}: {_lines(each, deeper)}" for key, each in value.items()]
        opened, closed = "{", "}"
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        inside = [_lines(each, deeper) for each in value]
        opened, closed = "[", "]"
    else:
        return json.dumps(value, allow_nan=False)
    body = ",".join(f"\n{deeper}{each}" for each in inside)
    return f"{opened}{body}\n{margin}{closed}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_bytes(path, as_json(content))


def is_temporary(path: Path) -> bool:
    """Whether a file is a temporary one of `write_bytes`, left when its process was killed."""
    return path.name.startswith(".") and path.suffix == TEMPORARY and path.is_file()


def delete_temporary_files(folder: Path) -> None:
    """Delete the temporary files of killed processes in a folder that no process writes to."""
    for path in filter(is_temporary, folder.rglob(f".*{TEMPORARY}")):
        path.unlink(missing_ok=True)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder; raise `FolderBusyError` if another process holds it.

    The folder itself is locked, so no lock file is left in it, and the kernel releases the lock
    when the process ends, however it ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise SodapError(f"cannot write {folder}: {error.strerror or error}") from error
    try:
        with suppress(OSError):  # some network drives do not support locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderBusyError(
                    f"another process is writing to {folder}; see `sodap watch {folder}`"
                ) from error
        yield
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise SodapError(f"there is no file {path}") from error
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8, not JSON, or too deep
        raise SodapError(f"{path} is damaged: it is not valid JSON") from error
    if not isinstance(content, dict):
        raise SodapError(f"{path} is damaged: it is not a JSON object")
    return content


def save_state(
    folder: Path, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write `NAME.json` and its tensors, then delete the tensors of the former state."""
    import safetensors.torch

    content = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
    checksum = hashlib.sha256(content).hexdigest()
    file = f"{name}-{checksum[:16]}.safetensors"
    write_bytes(folder / file, content)
    body = {"format": FORMAT, "tensors": file, "sha256": checksum, "metadata": dict(metadata)}
    write_json(folder / f"{name}.json", body | {"checksum": _checksum(body)})
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != file:
            old.unlink(missing_ok=True)


def load_state(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a saved state, after their checksums are verified."""
    import safetensors.torch

    path = folder / f"{name}.json"
    body = read_json(path)
    if not _is_whole(body):
        raise SodapError(f"{path} is damaged: its checksum does not match")
    if body.get("format") not in (1, FORMAT):
        raise SodapError(
            f"{path} has format {body.get('format')}, and this version of sodap reads formats up "
            f"to {FORMAT}; update sodap"
        )
    tensors_file = body.get("tensors")
    metadata = body.get("facts" if body["format"] == 1 else "metadata")
    if not isinstance(tensors_file, str) or not isinstance(metadata, dict) or "sha256" not in body:
        raise SodapError(f"{path} is damaged: its tensors or its metadata are missing")
    file = folder / Path(tensors_file).name
    try:
        content = file.read_bytes()
    except (OSError, ValueError) as error:  # such as a name with a zero byte
        raise SodapError(f"{path} refers to {file.name!r}, which cannot be read") from error
    if hashlib.sha256(content).hexdigest() != body["sha256"]:
        raise SodapError(f"{file} is damaged: its checksum does not match")
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, LookupError) as error:  # or an unknown data type
        raise SodapError(f"{file} is not a safetensors file") from error
    return tensors, metadata


def has_state(folder: Path, name: str) -> bool:
    return (folder / f"{name}.json").is_file()


def _is_whole(body: dict[str, Any]) -> bool:
    """Whether the checksum is right; removes it from `body`."""
    try:
        return bool(body.pop("checksum", None) == _checksum(body))
    except RecursionError:  # shallow enough to be read, but too deep to be written
        return False


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
