"""Images decoded once: a file of bytes `[N, 3, S, S]` that is mapped into memory, not read.

A cache belongs to one list of files in one state. Its name is a digest of every file's path, length
and times of change and of how the images are made from them, so another list, order, size or file
has another cache. What escapes this: an edit that leaves the length and both times as they were.
`verify=True` finds that too; it reads every file again and compares with what the cache was made
from.

What another cache holds is not decoded again: where a file has the same bytes as one that was
decoded before, in the same way, its image is copied. So another split of the same files, a few new
ones among them, or the whole folder in another place costs reading only.

Images are made in chunks. A chunk is first written and flushed, then entered in a journal; whoever
is killed leaves chunks that the next one takes over. A finished cache gets its name in one rename,
and one process builds while the others wait.

    KEY.images   the finished cache        KEY.partial  the cache in the making
    KEY.json     its checksums             KEY.journal  the chunks that are done
                                           KEY.lock     held while it is made
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import PIL
import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.formats import format_bytes
from sodap.storage import TEMPORARY, write_bytes, write_json
from sodap.streams.images import Fit, decode_image, read_file
from sodap.streams.names import printable

# The names of our files, and of nothing else that may lie beside them.
_OURS = re.compile(r"[0-9a-f]{16,64}\.(images|json|partial|journal|lock)")
_LEFT_OVER = re.compile(rf"\.([0-9a-f]{{16,64}})\.(json|journal)\.\w+{re.escape(TEMPORARY)}")

Progress = Callable[[int, int], None]
"""Told how many images are done, and of how many."""

# To be raised with every change to what `decode_image` makes of a file.
VERSION = 1

# Images that are made, flushed and entered together: a fraction of a second to make again.
CHUNK = 32

# Python 3.11 does not name this flag of Linux: without it, the kernel refuses to map a file that
# is larger than the memory, although nothing of the mapping ever has to fit there.
_NO_RESERVE = 0x4000


def cached_images(
    paths: Sequence[Path],
    size: int,
    *,
    fit: Fit = "crop",
    folder: Path | None = None,
    on_progress: Progress | None = None,
    workers: int | None = None,
    verify: bool = False,
) -> Tensor:
    """The images at `paths`, `[N, 3, size, size]` uint8, decoded now or at an earlier call.

    The tensor may be written to, but the changes stay its own: the file is never written through.
    `folder` is where caches are, `cache_folder()` by default; `workers` is how many threads decode.
    """
    if not paths:
        return torch.empty(0, 3, size, size, dtype=torch.uint8)
    cache = _Cache(paths, size, fit, folder or cache_folder())
    # A finished cache needs no lock: a shared one may lie where nothing can be written.
    if cache.is_sound(verify):
        return cache.open()
    with cache.lock():
        if not cache.is_sound(verify):
            cache.build(on_progress, workers or len(os.sched_getaffinity(0)))
    return cache.open()


def cache_folder() -> Path:
    """$SODAP_CACHE, or sodap's part of the user's folder for caches."""
    if chosen := os.environ.get("SODAP_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sodap"


def clear_cache(folder: Path | None = None) -> int:
    """Delete every decoded image below `folder`, `cache_folder()` by default; the bytes freed.

    A run that has a cache mapped keeps it until it ends: on Linux a file lives while it is open.
    What a killed writer left goes, too; a file that is being written just now stays.
    """
    home, freed = folder or cache_folder(), 0
    # Hidden files come first in the order of names, while the locks are still there to be asked.
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        left = _LEFT_OVER.fullmatch(path.name)
        if (left and not _is_held(home / f"{left[1]}.lock")) or _OURS.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another has deleted or renamed it
                size = path.stat().st_size
                path.unlink()
                freed += size
    return freed


def _is_held(lock: Path) -> bool:
    """Whether a cache is being made: the kernel lets go of a lock when its holder dies."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or there are none on this drive: then nothing is made here
        return False
    return False


def cache_bytes(count: int, size: int) -> int:
    """The room on disk that `count` images take."""
    return count * 3 * size * size


Stamp = tuple[int, int, int]
"""A file's length and its times of change: of the content, and of anything about it."""

Entry = tuple[int, str]
"""An image's checksum and the digest of the file that it is made from."""


class _Cache:
    def __init__(self, paths: Sequence[Path], size: int, fit: Fit, folder: Path) -> None:
        self.paths = paths
        self.size = size
        self.fit = fit
        self.folder = folder
        self.stamps = [_stamp(path) for path in paths]
        self.made = [VERSION, PIL.__version__, size, fit]
        self.key = self._key()
        self.data = folder / f"{self.key}.images"
        self.facts = folder / f"{self.key}.json"
        self.partial = folder / f"{self.key}.partial"
        self.journal = folder / f"{self.key}.journal"
        self.image_bytes = cache_bytes(1, size)
        self.bytes = cache_bytes(len(paths), size)

    def _key(self) -> str:
        sha = hashlib.sha256(json.dumps(self.made).encode())
        for path, stamp in zip(self.paths, self.stamps, strict=True):
            # A zero byte is in no path, and digits are in every stamp: no two lists run together.
            sha.update(os.fsencode(path.absolute()) + b"\0" + json.dumps(stamp).encode())
        return sha.hexdigest()[:40]

    # A finished cache

    def open(self) -> Tensor:
        with self.data.open("rb") as file:
            mapping = mmap.mmap(
                file.fileno(),
                self.bytes,
                flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        return torch.frombuffer(mapping, dtype=torch.uint8).view(-1, 3, self.size, self.size)

    def is_sound(self, verify: bool) -> bool:
        """Whether it is there, whole, and in a few places (with `verify`: everywhere) as made."""
        images = range(len(self.paths))
        middle = len(images) // 2
        few = {*images[:CHUNK], *images[middle : middle + CHUNK], *images[-CHUNK:]}
        try:
            entries = json.loads(self.facts.read_text("utf-8"))["images"]
            if len(entries) != len(images) or self.data.stat().st_size != self.bytes:
                return False
            chosen = {n: _entry(entries[n]) for n in (images if verify else sorted(few))}
            with self.data.open("rb") as file:
                if any(self._crc(file.fileno(), n) != crc for n, (crc, _) in chosen.items()):
                    return False
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return not verify or all(
            _digest(read_file(path), path) == digest
            for path, digest in ((self.paths[n], digest) for n, (_, digest) in chosen.items())
        )

    def _crc(self, file: int, number: int) -> int:
        return zlib.crc32(os.pread(file, self.image_bytes, number * self.image_bytes))

    # A cache in the making

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for whoever builds this cache; the kernel ends the wait also when that one dies."""
        path = self.folder / f"{self.key}.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("wb")
        except OSError as error:
            raise self._trouble(error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise self._trouble(error) from error
            yield

    def build(self, on_progress: Progress | None, workers: int) -> None:
        """Make the chunks that are not there yet, then give the whole its name."""
        try:
            self.data.unlink(missing_ok=True)
            file = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                entries = self._resume(file)
                self._checkformat_bytes(len(entries) * self.image_bytes)
                os.ftruncate(file, self.bytes)
                self._make(file, entries, on_progress, workers)
            finally:
                os.close(file)
            images = [entries[n] for n in range(len(self.paths))]
            # The checksums first: a cache that has its name has its checksums.
            write_json(self.facts, {"made": self.made, "images": images})
            self.partial.rename(self.data)
            self.data.chmod(self.data.stat().st_mode & 0o444)  # what the umask has left
            self.journal.unlink()
        except OSError as error:
            raise self._trouble(error) from error

    def _resume(self, file: int) -> dict[int, Entry]:
        """The journal's images, by number, that the partial file holds as they were made."""
        entries: dict[int, Entry] = {}
        lines = self.journal.read_bytes().splitlines() if self.journal.exists() else []
        for line in lines:
            try:
                chunk = {number: _entry(entry) for number, *entry in json.loads(line)}
            except (ValueError, TypeError):  # the line that was being written at the end
                continue
            entries |= {
                number: entry
                for number, entry in chunk.items()
                if number in range(len(self.paths)) and self._crc(file, number) == entry[0]
            }
        write_bytes(self.journal, _line(entries) if entries else b"")
        return entries

    def _checkformat_bytes(self, there: int) -> None:
        needed, free = self.bytes - there, shutil.disk_usage(self.folder).free
        if needed > free:
            raise SodapError(
                f"the cache of {len(self.paths)} images needs {format_bytes(needed)}, only "
                f"{format_bytes(free)} is free at {self.folder}; make room or set SODAP_CACHE to a "
                f"folder that has it"
            )

    def _make(
        self,
        file: int,
        entries: dict[int, Entry],
        on_progress: Progress | None,
        workers: int,
    ) -> None:
        missing = [n for n in range(len(self.paths)) if n not in entries]
        chunks = [missing[start : start + CHUNK] for start in range(0, len(missing), CHUNK)]
        elsewhere = _Elsewhere(self.folder, self.made, self.image_bytes)
        # Threads suffice: decoding and resizing leave Python's lock to the others.
        pool = ThreadPoolExecutor(workers, "decode")
        try:
            with self.journal.open("ab", buffering=0) as journal:
                if on_progress is not None:
                    on_progress(len(entries), len(self.paths))
                waiting = [pool.submit(self._chunk, file, some, elsewhere) for some in chunks]
                for chunk in as_completed(waiting):
                    made = chunk.result()
                    os.fdatasync(file)
                    journal.write(_line(made))
                    entries |= made
                    if on_progress is not None:
                        on_progress(len(entries), len(self.paths))
        finally:
            pool.shutdown(cancel_futures=True)

    def _chunk(self, file: int, chunk: Sequence[int], elsewhere: _Elsewhere) -> dict[int, Entry]:
        """Make and write some images; what is to be entered of them."""
        entries: dict[int, Entry] = {}
        for number in chunk:
            path = self.paths[number]
            content = read_file(path)
            if _stamp(path) != self.stamps[number]:
                raise SodapError(
                    f"{printable(path)} was changed while it was being read; start again"
                )
            digest = _digest(content, path)
            image = elsewhere.find(digest)
            if image is None:
                image = decode_image(content, path, self.size, self.fit).tobytes()
            entries[number] = zlib.crc32(image), digest
            left, start = memoryview(image), number * self.image_bytes
            while left:
                written = os.pwrite(file, left, start)
                left, start = left[written:], start + written
        return entries

    def _trouble(self, error: OSError) -> SodapError:
        return SodapError(
            f"cannot make a cache of images at {self.folder}: {error.strerror or error}; "
            f"set SODAP_CACHE to a folder that can be written to"
        )


class _Elsewhere:
    """Images that other caches hold, by the digest of the file that each is made from."""

    def __init__(self, folder: Path, made: list[Any], image_bytes: int) -> None:
        self.image_bytes = image_bytes
        self.places: dict[str, tuple[Path, int, int]] = {}
        """Digest -> a cache, the number of the image in it, its checksum."""
        for path in sorted(folder.glob("*.images")):
            try:
                facts = json.loads(path.with_suffix(".json").read_text("utf-8"))
                if facts["made"] == made:
                    for number, (crc, digest) in enumerate(map(_entry, facts["images"])):
                        self.places[digest] = path, number, crc
            except (OSError, ValueError, LookupError, TypeError):  # damaged, or not ours
                continue

    def find(self, digest: str) -> bytes | None:
        """The image; None where there is none, or none that is as it was made."""
        if digest not in self.places:
            return None
        path, number, crc = self.places[digest]
        try:
            with path.open("rb") as file:
                image = os.pread(file.fileno(), self.image_bytes, number * self.image_bytes)
        except OSError:  # deleted in the meantime
            return None
        return image if zlib.crc32(image) == crc else None


def _stamp(path: Path) -> Stamp:
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:  # a name may hold a zero byte
        raise SodapError(f"there is no image at {printable(path)}") from error
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _digest(content: bytes, path: Path) -> str:
    """Of all that decoding depends on: a name may say that a file is DICOM."""
    kind = path.suffix.lower().encode(errors="surrogateescape")
    return hashlib.sha256(kind + b"\0" + content).hexdigest()[:40]


def _entry(values: Any) -> Entry:
    crc, digest = values
    if not isinstance(crc, int) or not isinstance(digest, str):
        raise TypeError
    return crc, digest


def _line(entries: Mapping[int, Entry]) -> bytes:
    return json.dumps([[number, *entry] for number, entry in entries.items()]).encode() + b"\n"
