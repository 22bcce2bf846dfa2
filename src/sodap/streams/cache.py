"""Images decoded once: a file of bytes `[N, 3, S, S]` that is mapped into memory, not read.

A cache belongs to one list of files in one state. Its name is a digest of every file's path, length
and times of change and of how the images are made from them, so another list, order, size or file
has another cache. What escapes this: an edit that leaves the length and both times as they were.
`verify=True` finds that too; it reads every file again and compares with what the cache was made
from.

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.storage import write_bytes, write_json
from sodap.streams.images import Fit, decode_image, read_file

# The names of our files, and of nothing else that may lie beside them.
_OURS = re.compile(r"[0-9a-f]{16,64}\.(images|json|partial|journal|lock)")

Progress = Callable[[int, int], None]
"""Told how many images are done, and of how many."""

# To be raised with every change to what `decode_image` makes of a file.
VERSION = 1

# Images a chunk: 5 MB at 224 pixels, a fraction of a second to make again.
CHUNK = 32

# Python 3.11 does not name this flag of Linux: without it, the kernel refuses to map a file that
# is larger than the memory, although nothing of the mapping ever has to fit there.
_NO_RESERVE = 0x4000


def decoded(
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
    """
    home, freed = folder or cache_folder(), 0
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        if _OURS.fullmatch(path.name):
            freed += path.stat().st_size
            path.unlink(missing_ok=True)
    return freed


def cache_bytes(count: int, size: int) -> int:
    """The room on disk that `count` images take."""
    return count * 3 * size * size


Stamp = tuple[int, int, int]
"""A file's length and its times of change: of the content, and of anything about it."""


class _Cache:
    def __init__(self, paths: Sequence[Path], size: int, fit: Fit, folder: Path) -> None:
        self.paths = paths
        self.size = size
        self.fit = fit
        self.folder = folder
        self.stamps = [_stamp(path) for path in paths]
        self.key = self._key()
        self.data = folder / f"{self.key}.images"
        self.facts = folder / f"{self.key}.json"
        self.partial = folder / f"{self.key}.partial"
        self.journal = folder / f"{self.key}.journal"
        self.starts = range(0, len(paths), CHUNK)
        self.bytes = cache_bytes(len(paths), size)

    def _key(self) -> str:
        made = [VERSION, PIL.__version__, self.size, self.fit, CHUNK]
        sha = hashlib.sha256(json.dumps(made).encode())
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
        try:
            entries = [_entry(e) for e in json.loads(self.facts.read_text("utf-8"))["chunks"]]
            if len(entries) != len(self.starts) or self.data.stat().st_size != self.bytes:
                return False
            last = len(entries) - 1
            chosen = range(last + 1) if verify else sorted({0, last // 2, last})
            with self.data.open("rb") as file:
                if any(self._crc(file.fileno(), n) != entries[n][0] for n in chosen):
                    return False
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return not verify or all(self._sources(n) == entries[n][1] for n in chosen)

    def _span(self, number: int) -> tuple[int, int]:
        """The first byte of a chunk and how many it has."""
        first = self.starts[number]
        count = min(CHUNK, len(self.paths) - first)
        return cache_bytes(first, self.size), cache_bytes(count, self.size)

    def _crc(self, file: int, number: int) -> int:
        start, length = self._span(number)
        return zlib.crc32(os.pread(file, length, start))

    def _sources(self, number: int) -> str:
        first = self.starts[number]
        sha = hashlib.sha256()
        for path in self.paths[first : first + CHUNK]:
            sha.update(hashlib.sha256(read_file(path)).digest())
        return sha.hexdigest()

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
        self.data.unlink(missing_ok=True)
        try:
            file = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                entries = self._resume(file)
                self._check_room(sum(self._span(n)[1] for n in entries))
                os.ftruncate(file, self.bytes)
                self._make(file, entries, on_progress, workers)
            finally:
                os.close(file)
            chunks = [entries[n] for n in range(len(self.starts))]
            facts = {"images": len(self.paths), "size": self.size, "fit": self.fit}
            # The checksums first: a cache that has its name has its checksums.
            write_json(self.facts, facts | {"chunks": chunks})
            self.partial.chmod(0o444)
            self.partial.rename(self.data)
            self.journal.unlink()
        except OSError as error:
            raise self._trouble(error) from error

    def _resume(self, file: int) -> dict[int, tuple[int, str]]:
        """The journal's chunks, by number, that the partial file holds as they were made."""
        entries: dict[int, tuple[int, str]] = {}
        lines = self.journal.read_bytes().splitlines() if self.journal.exists() else []
        for line in lines:
            try:
                number, *entry = json.loads(line)
                crc, sources = _entry(entry)
            except (ValueError, TypeError):  # the line that was being written at the end
                continue
            if number in range(len(self.starts)) and self._crc(file, number) == crc:
                entries[number] = crc, sources
        write_bytes(self.journal, b"".join(_line(n, *e) for n, e in entries.items()))
        return entries

    def _check_room(self, there: int) -> None:
        needed, free = self.bytes - there, shutil.disk_usage(self.folder).free
        if needed > free:
            raise SodapError(
                f"the cache of {len(self.paths)} images needs {_room(needed)}, only "
                f"{_room(free)} is free at {self.folder}; make room or set SODAP_CACHE to a "
                f"folder that has it"
            )

    def _make(
        self,
        file: int,
        entries: dict[int, tuple[int, str]],
        on_progress: Progress | None,
        workers: int,
    ) -> None:
        done = sum(self._span(n)[1] for n in entries) // cache_bytes(1, self.size)
        # Threads suffice: decoding and resizing leave Python's lock to the others.
        pool = ThreadPoolExecutor(workers, "decode")
        try:
            waiting = [n for n in range(len(self.starts)) if n not in entries]
            with self.journal.open("ab", buffering=0) as journal:
                if on_progress is not None:
                    on_progress(done, len(self.paths))
                for chunk in as_completed([pool.submit(self._chunk, file, n) for n in waiting]):
                    number, crc, sources = chunk.result()
                    os.fdatasync(file)
                    journal.write(_line(number, crc, sources))
                    entries[number] = crc, sources
                    done += self._span(number)[1] // cache_bytes(1, self.size)
                    if on_progress is not None:
                        on_progress(done, len(self.paths))
        finally:
            pool.shutdown(cancel_futures=True)

    def _chunk(self, file: int, number: int) -> tuple[int, int, str]:
        """Decode and write a chunk; its number, checksum and the digest of what it is made from."""
        first = self.starts[number]
        paths = self.paths[first : first + CHUNK]
        images = np.empty((len(paths), 3, self.size, self.size), np.uint8)
        sha = hashlib.sha256()
        for index, path in enumerate(paths):
            content = read_file(path)
            if _stamp(path) != self.stamps[first + index]:
                raise SodapError(f"{path} was changed while it was being read; start again")
            images[index] = decode_image(content, path, self.size, self.fit)
            sha.update(hashlib.sha256(content).digest())
        made, start = images.data.cast("B"), self._span(number)[0]
        crc = zlib.crc32(made)
        while made:
            written = os.pwrite(file, made, start)
            made, start = made[written:], start + written
        return number, crc, sha.hexdigest()

    def _trouble(self, error: OSError) -> SodapError:
        return SodapError(
            f"cannot make a cache of images at {self.folder}: {error.strerror or error}; "
            f"set SODAP_CACHE to a folder that can be written to"
        )


def _stamp(path: Path) -> Stamp:
    try:
        facts = path.stat()
    except OSError as error:
        raise SodapError(f"there is no image at {path}") from error
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _entry(values: Any) -> tuple[int, str]:
    crc, sources = values
    if not isinstance(crc, int) or not isinstance(sources, str):
        raise TypeError
    return crc, sources


def _line(number: int, crc: int, sources: str) -> bytes:
    return json.dumps([number, crc, sources]).encode() + b"\n"


def _room(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
