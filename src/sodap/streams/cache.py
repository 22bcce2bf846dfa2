"""Cache of decoded images: files of uint8 `[N, 3, S, S]` that are mapped into memory.

A cache belongs to one list of files in one state. Its key is a digest of every file's path, length
and modification times and of the decoding settings. So another list, order, size or file has
another cache. An edit that keeps the length and both times is not noticed; `verify=True` notices
it, by reading every file and comparing digests.

Files are not decoded twice: if another cache holds an image of a file with the same bytes and the
same settings, it is copied. So another split of the same files, a few new files or a moved folder
only cost reading.

Images are written in chunks. A chunk is written and flushed before it is entered in a journal, so
that an interrupted build continues with the next chunk. A finished cache gets its name in one
rename. A lock lets one process build while others wait.

    KEY.images   the finished cache        KEY.partial  the cache being built
    KEY.json     its checksums             KEY.journal  the finished chunks
                                           KEY.lock     held while it is built
    KEY.ranges   ranges of grey values that were measured on a list of files
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
from typing import TYPE_CHECKING, Any

import PIL

from sodap.errors import SodapError, UnreadableImageError
from sodap.formats import format_bytes
from sodap.storage import TEMPORARY, write_bytes, write_json
from sodap.streams.grey import NO_RANGES, GreyRanges
from sodap.streams.images import decode_image, measure_ranges, read_file, read_images
from sodap.streams.names import printable

if TYPE_CHECKING:
    from torch import Tensor

# Match only our own files: the folder may hold others.
_CACHE_FILE = re.compile(r"[0-9a-f]{16,64}\.(images|json|partial|journal|lock|ranges)")
_TEMPORARY_FILE = re.compile(
    rf"\.([0-9a-f]{{16,64}})\.(json|journal|ranges)\.\w+{re.escape(TEMPORARY)}"
)

Progress = Callable[[int, int], None]
"""Called with the number of finished images and the total."""

VERSION = 2
"""Version of the decoding; raise it when `decode_image` returns other pixels."""

CHUNK = 32
"""Images per chunk; an interruption costs a fraction of a second of work."""

# MAP_NORESERVE, which Python 3.11 does not define. Without it, Linux refuses to map a file that is
# larger than the memory.
_NO_RESERVE = 0x4000


def cached_images(
    paths: Sequence[Path],
    size: int,
    *,
    ranges: GreyRanges = NO_RANGES,
    folder: Path | None = None,
    on_progress: Progress | None = None,
    workers: int | None = None,
    verify: bool = False,
) -> Tensor:
    """Return the images at `paths` as `[N, 3, size, size]` uint8, decoding them if needed.

    Args:
        paths: The image files.
        size: Side of the images in pixels.
        ranges: Black and white of deep grey images; other ranges make another cache.
        folder: The folder of the caches; default: `cache_folder()`.
        on_progress: Called with the number of finished images and the total.
        workers: Number of decoding threads; default: one per available core.
        verify: Compare every file and image with its checksum.

    Writing to the tensor does not change the file (copy on write).
    """
    if not paths:
        return read_images([], size)
    cache = _Cache(paths, size, ranges, folder or cache_folder())
    # A finished cache needs no lock: a shared one may be on a read-only drive.
    if cache.is_valid(verify):
        return cache.open()
    with cache.lock():
        if not cache.is_valid(verify):
            cache.build(on_progress, workers or len(os.sched_getaffinity(0)))
    return cache.open()


def are_cached(paths: Sequence[Path], size: int) -> bool:
    """Whether the images are cached and need no ranges, so that they can be used as they are."""
    return not paths or _Cache(paths, size, NO_RANGES, cache_folder()).is_valid(verify=False)


def cached_ranges(paths: Sequence[Path], on_progress: Progress | None = None) -> GreyRanges:
    """The ranges of the deep grey images among these files, measured if they have changed."""
    folder = cache_folder()
    sha = hashlib.sha256(json.dumps([VERSION, "ranges"]).encode())
    for path in paths:
        sha.update(os.fsencode(path.absolute()) + b"\0" + json.dumps(_stamp(path)).encode())
    file = folder / f"{sha.hexdigest()[:40]}.ranges"
    try:
        return GreyRanges.from_json(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        found = measure_ranges(paths, on_progress)
        with suppress(SodapError):  # a read-only cache; measured again next time
            write_json(file, found.to_json())
        return found


def cache_folder() -> Path:
    """$SODAP_CACHE, or the folder sodap in the user's cache folder."""
    if chosen := os.environ.get("SODAP_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sodap"


def clear_cache(folder: Path | None = None) -> int:
    """Delete all caches in `folder` (default: `cache_folder()`) and return the bytes freed.

    A running process keeps the caches that it has mapped until it ends. Temporary files of killed
    processes are deleted as well, but not those of a process that is writing.
    """
    home, freed = folder or cache_folder(), 0
    # Temporary files start with a dot, so they come first, while the lock files still exist.
    for path in sorted(home.iterdir()) if home.is_dir() else []:
        temporary = _TEMPORARY_FILE.fullmatch(path.name)
        abandoned = temporary and not _is_locked(home / f"{temporary[1]}.lock")
        if abandoned or _CACHE_FILE.fullmatch(path.name):
            with suppress(FileNotFoundError):  # deleted or renamed by another process
                size = path.stat().st_size
                path.unlink()
                freed += size
    return freed


def _is_locked(lock: Path) -> bool:
    """Whether a process is building a cache; the kernel frees the lock if the process dies."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or a drive without locks, on which no cache can be built
        return False
    return False


def cache_bytes(count: int, size: int) -> int:
    """Size of a cache of `count` images."""
    return count * 3 * size * size


Stamp = tuple[int, int, int]
"""A file's length, modification time (mtime) and change time (ctime)."""

Entry = tuple[int, str]
"""The checksum of an image and the digest of its file."""


class _Cache:
    def __init__(self, paths: Sequence[Path], size: int, ranges: GreyRanges, folder: Path) -> None:
        self.paths = paths
        self.size = size
        self.ranges = ranges
        self.folder = folder
        self.stamps = [_stamp(path) for path in paths]
        self.settings = [VERSION, PIL.__version__, size, "crop", ranges.to_json()]
        self.key = self._key()
        self.data = folder / f"{self.key}.images"
        self.checksums = folder / f"{self.key}.json"
        self.partial = folder / f"{self.key}.partial"
        self.journal = folder / f"{self.key}.journal"
        self.image_bytes = cache_bytes(1, size)
        self.bytes = cache_bytes(len(paths), size)

    def _key(self) -> str:
        sha = hashlib.sha256(json.dumps(self.settings).encode())
        for path, stamp in zip(self.paths, self.stamps, strict=True):
            # Paths have no null byte, so different lists cannot give the same bytes.
            sha.update(os.fsencode(path.absolute()) + b"\0" + json.dumps(stamp).encode())
        return sha.hexdigest()[:40]

    # ---- a finished cache

    def open(self) -> Tensor:
        """Map the cache into memory, copy on write."""
        import torch  # slow to import, and not needed to build or delete a cache

        with self.data.open("rb") as file:
            mapping = mmap.mmap(
                file.fileno(),
                self.bytes,
                flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        return torch.frombuffer(mapping, dtype=torch.uint8).view(-1, 3, self.size, self.size)

    def is_valid(self, verify: bool) -> bool:
        """Whether the cache exists and a sample of its images (`verify`: all) has its checksum."""
        images = range(len(self.paths))
        middle = len(images) // 2
        sample = {*images[:CHUNK], *images[middle : middle + CHUNK], *images[-CHUNK:]}
        try:
            entries = json.loads(self.checksums.read_text("utf-8"))["images"]
            if len(entries) != len(images) or self.data.stat().st_size != self.bytes:
                return False
            chosen = {n: _entry(entries[n]) for n in (images if verify else sorted(sample))}
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

    # ---- building a cache

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for another process that builds this cache; the kernel frees a dead one's lock."""
        path = self.folder / f"{self.key}.lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = path.open("wb")
        except OSError as error:
            raise self._write_error(error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise self._write_error(error) from error
            yield

    def build(self, on_progress: Progress | None, workers: int) -> None:
        """Write the missing chunks, then rename the finished file."""
        try:
            self.data.unlink(missing_ok=True)
            file = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                entries = self._resume(file)
                self._check_free_space(len(entries) * self.image_bytes)
                os.ftruncate(file, self.bytes)
                self._write_missing(file, entries, on_progress, workers)
            finally:
                os.close(file)
            images = [entries[n] for n in range(len(self.paths))]
            # Checksums first: a finished cache always has checksums.
            write_json(self.checksums, {"made": self.settings, "images": images})
            self.partial.rename(self.data)
            self.data.chmod(self.data.stat().st_mode & 0o444)  # read-only, within the umask
            self.journal.unlink()
        except OSError as error:
            raise self._write_error(error) from error

    def _resume(self, file: int) -> dict[int, Entry]:
        """The images in the journal, by number, whose checksum matches the partial file."""
        entries: dict[int, Entry] = {}
        lines = self.journal.read_bytes().splitlines() if self.journal.exists() else []
        for line in lines:
            try:
                chunk = {number: _entry(entry) for number, *entry in json.loads(line)}
            except (ValueError, TypeError):  # a line that was cut off
                continue
            entries |= {
                number: entry
                for number, entry in chunk.items()
                if number in range(len(self.paths)) and self._crc(file, number) == entry[0]
            }
        write_bytes(self.journal, _line(entries) if entries else b"")
        return entries

    def _check_free_space(self, written: int) -> None:
        needed, free = self.bytes - written, shutil.disk_usage(self.folder).free
        if needed > free:
            raise SodapError(
                f"the cache of {len(self.paths)} images needs {format_bytes(needed)}, but only "
                f"{format_bytes(free)} is free at {self.folder}; "
                f"free some space or set SODAP_CACHE to another folder"
            )

    def _write_missing(
        self,
        file: int,
        entries: dict[int, Entry],
        on_progress: Progress | None,
        workers: int,
    ) -> None:
        missing = [n for n in range(len(self.paths)) if n not in entries]
        chunks = [missing[start : start + CHUNK] for start in range(0, len(missing), CHUNK)]
        others = _OtherCaches(self.folder, self.settings, self.image_bytes)
        # Threads suffice: decoding and resizing release the GIL.
        pool = ThreadPoolExecutor(workers, "decode")
        try:
            with self.journal.open("ab", buffering=0) as journal:
                if on_progress is not None:
                    on_progress(len(entries), len(self.paths))
                futures = [pool.submit(self._write_chunk, file, c, others) for c in chunks]
                for future in as_completed(futures):
                    written = future.result()
                    os.fdatasync(file)
                    journal.write(_line(written))
                    entries |= written
                    if on_progress is not None:
                        on_progress(len(entries), len(self.paths))
        finally:
            pool.shutdown(cancel_futures=True)

    def _write_chunk(
        self, file: int, chunk: Sequence[int], others: _OtherCaches
    ) -> dict[int, Entry]:
        """Decode and write some images; returns their journal entries."""
        entries: dict[int, Entry] = {}
        for number in chunk:
            path = self.paths[number]
            content = read_file(path)
            if _stamp(path) != self.stamps[number]:
                raise SodapError(f"{printable(path)} changed while it was being read; start again")
            digest = _digest(content, path)
            image = others.find(digest)
            if image is None:
                image = decode_image(content, path, self.size, self.ranges).tobytes()
            entries[number] = zlib.crc32(image), digest
            left, start = memoryview(image), number * self.image_bytes
            while left:
                written = os.pwrite(file, left, start)
                left, start = left[written:], start + written
        return entries

    def _write_error(self, error: OSError) -> SodapError:
        return SodapError(
            f"cannot write the image cache at {self.folder}: {error.strerror or error}; "
            f"set SODAP_CACHE to a folder that can be written"
        )


class _OtherCaches:
    """Images in other caches with the same settings, by the digest of their file."""

    def __init__(self, folder: Path, settings: list[Any], image_bytes: int) -> None:
        self.image_bytes = image_bytes
        self.places: dict[str, tuple[Path, int, int]] = {}
        """Digest -> cache, number of the image in it, checksum."""
        for path in sorted(folder.glob("*.images")):
            try:
                content = json.loads(path.with_suffix(".json").read_text("utf-8"))
                if content["made"] == settings:
                    for number, (crc, digest) in enumerate(map(_entry, content["images"])):
                        self.places[digest] = path, number, crc
            except (OSError, ValueError, LookupError, TypeError):  # damaged, or not a cache
                continue

    def find(self, digest: str) -> bytes | None:
        """The image of a file, or None if no cache holds it intact."""
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
        status = path.stat()
    except (FileNotFoundError, ValueError) as error:  # ValueError: null byte in the name
        raise UnreadableImageError(f"there is no image at {printable(path)}") from error
    except OSError as error:  # such as a loop of symbolic links
        why = (error.strerror or str(error)).lower()
        raise UnreadableImageError(
            f"{printable(path)} cannot be read as an image: {why}"
        ) from error
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(content: bytes, path: Path) -> str:
    """Digest of what decoding depends on: the content, and the suffix, which may mean DICOM."""
    suffix = path.suffix.lower().encode(errors="surrogateescape")
    return hashlib.sha256(suffix + b"\0" + content).hexdigest()[:40]


def _entry(values: Any) -> Entry:
    crc, digest = values
    if not isinstance(crc, int) or not isinstance(digest, str):
        raise TypeError
    return crc, digest


def _line(entries: Mapping[int, Entry]) -> bytes:
    return json.dumps([[number, *entry] for number, entry in entries.items()]).encode() + b"\n"
