"""State on disk: tensors in safetensors, the rest in JSON, whole or not at all, never pickle.

A state is two files. The tensors are written first, under a name that holds their checksum; the
JSON file that points at them is put in place last, in one rename. Whoever is killed in between
leaves the former state as it was.
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

FORMAT = 1
TEMPORARY = ".tmp"


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step that survives a crash or a full disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
        # Opened like this, it is the user's umask that says who may read it.
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
    """For people as well: a line a key, but numbers side by side.

    A line for each number of a matrix helps nobody, and takes many times as long to write.
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


def is_left_over(path: Path) -> bool:
    """Whether it is what `write_bytes` leaves if it is killed before the last step."""
    return path.name.startswith(".") and path.suffix == TEMPORARY and path.is_file()


def sweep(folder: Path) -> None:
    """Delete what was left over in a folder that nobody else writes to."""
    for path in filter(is_left_over, folder.rglob(f".*{TEMPORARY}")):
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
    except (OSError, ValueError, RecursionError) as error:  # no UTF-8, no JSON, or beyond measure
        raise SodapError(f"{path} is damaged: it is not readable as JSON") from error
    if not isinstance(content, dict):
        raise SodapError(f"{path} is damaged: it holds no JSON object")
    return content


def save_state(
    folder: Path, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write `NAME.json` and the tensors it points at, then drop the tensors of the state before."""
    import safetensors.torch

    content = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
    checksum = hashlib.sha256(content).hexdigest()
    file = f"{name}-{checksum[:16]}.safetensors"
    write_bytes(folder / file, content)
    body = {"format": FORMAT, "tensors": file, "sha256": checksum, "facts": dict(facts)}
    write_json(folder / f"{name}.json", body | {"checksum": _checksum(body)})
    for old in folder.glob(f"{name}-*.safetensors"):
        if old.name != file:
            old.unlink(missing_ok=True)


def load_state(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a saved state, both proven intact."""
    import safetensors.torch

    path = folder / f"{name}.json"
    body = read_json(path)
    if not _is_whole(body):
        raise SodapError(f"{path} is damaged: its checksum does not match")
    if body.get("format") != FORMAT:
        raise SodapError(
            f"{path} has format {body.get('format')}; this version of sodap reads format {FORMAT}"
        )
    tensors_file, facts = body.get("tensors"), body.get("facts")
    if not isinstance(tensors_file, str) or not isinstance(facts, dict) or "sha256" not in body:
        raise SodapError(f"{path} is damaged: it does not say where its tensors are, or its facts")
    file = folder / Path(tensors_file).name
    try:
        content = file.read_bytes()
    except (OSError, ValueError) as error:  # a name may hold a zero byte
        raise SodapError(f"{path} points at {file.name!r}, which cannot be read") from error
    if hashlib.sha256(content).hexdigest() != body["sha256"]:
        raise SodapError(f"{file} is damaged: its checksum does not match")
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, LookupError) as error:  # or of a kind torch has not
        raise SodapError(f"{file} is not a safetensors file") from error
    return tensors, facts


def has_state(folder: Path, name: str) -> bool:
    return (folder / f"{name}.json").is_file()


def _is_whole(body: dict[str, Any]) -> bool:
    """Whether the checksum is right, which is taken out."""
    try:
        return bool(body.pop("checksum", None) == _checksum(body))
    except RecursionError:  # what could just be read may be too deep to be written
        return False


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
