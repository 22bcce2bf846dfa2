"""The cache of decoded images: hits, changed files, damage, interruptions, several processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sodap.errors import SodapError
from sodap.streams import Split, Stream, load_stream
from sodap.streams import cache as module
from sodap.streams.cache import _Cache, cache_bytes, cache_folder, cached_images, clear_cache
from sodap.streams.grey import NO_RANGES, GreyRange, GreyRanges
from sodap.streams.images import decode_image, read_images

COUNT, SIZE = 11, 12


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write_images(tmp_path / "images", COUNT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def write_images(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    random = np.random.default_rng(0)
    found = [folder / f"{index}.png" for index in range(count)]
    for path in found:
        Image.fromarray(random.integers(0, 256, (16, 20, 3), np.uint8)).save(path)
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def the(folder: Path, suffix: str) -> Path:
    (path,) = folder.glob(f"*.{suffix}")
    return path


class Decodes:
    """Counts the images that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._lock = threading.Lock()
        monkeypatch.setattr(module, "decode_image", self)

    def __call__(self, *args: Any) -> Any:
        with self._lock:
            self.count += 1
        return decode_image(*args)


def test_cached_images_equal_decoded_images(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decodes = Decodes(monkeypatch)
    plain = read_images(paths, SIZE)
    first = cached_images(paths, SIZE, folder=folder)
    assert decodes.count == COUNT
    again = cached_images(paths, SIZE, folder=folder)
    assert decodes.count == COUNT
    for images in (first, again):
        assert torch.equal(images, plain)
        assert images.is_contiguous()
        assert len(Split(images, torch.zeros(COUNT, dtype=torch.int64))) == COUNT
    assert names(folder) == [".images", ".json", ".lock"]
    assert the(folder, "images").stat().st_size == cache_bytes(COUNT, SIZE) == COUNT * 3 * 144


def test_progress_repeated_paths_and_no_paths(paths: list[Path], folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    twice = [*paths, *paths[:2], paths[0]]
    images = cached_images(
        twice, SIZE, folder=folder, on_progress=lambda *done: calls.append(done), workers=3
    )
    assert torch.equal(images, read_images(twice, SIZE))
    assert calls[0] == (0, len(twice))
    assert calls[-1] == (len(twice), len(twice))
    assert calls == sorted(calls)
    assert cached_images([], SIZE, folder=folder).shape == (0, 3, SIZE, SIZE)


def test_cache_folder_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SODAP_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("SODAP_CACHE")
    assert cache_folder() == Path("/b/sodap")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache/sodap"


def test_writing_to_the_tensor_does_not_change_the_file(paths: list[Path], folder: Path) -> None:
    images = cached_images(paths, SIZE, folder=folder)
    before = images.clone()
    images.fill_(7)
    assert (images == 7).all()
    assert torch.equal(cached_images(paths, SIZE, folder=folder, verify=True), before)
    assert not the(folder, "images").stat().st_mode & 0o222


def test_a_cache_larger_than_memory_can_be_mapped(tmp_path: Path) -> None:
    """With a sparse file of several terabytes."""
    cache = object.__new__(_Cache)
    cache.size, cache.data = 224, tmp_path / "large.images"
    cache.bytes = cache_bytes(20_000_000, 224)
    cache.data.touch()
    try:
        os.truncate(cache.data, cache.bytes)
    except OSError:
        pytest.skip("this file system has no sparse files of that size")
    images = cache.open()
    assert images.shape == (20_000_000, 3, 224, 224)
    assert images[-1].sum() == 0


# ------------------------------------------------------------------ changed files


def touch(paths: list[Path]) -> None:
    facts = paths[3].stat()
    os.utime(paths[3], ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


def rewrite(paths: list[Path]) -> None:
    """Write other pixels with the same file length and modification time."""
    facts = paths[3].stat()
    content = bytearray(paths[3].read_bytes())
    content[-20] ^= 1
    paths[3].write_bytes(content)
    os.utime(paths[3], ns=(facts.st_atime_ns, facts.st_mtime_ns))
    advance_change_time(paths[3], facts)


def advance_change_time(path: Path, before: os.stat_result) -> None:
    """Repeat a change until the file system's clock, which has a coarse resolution, advances."""
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.chmod(0o644)


def replace(paths: list[Path]) -> None:
    facts = paths[3].stat()
    shutil.copy2(paths[4], paths[3].with_suffix(".new"))
    paths[3].with_suffix(".new").replace(paths[3])
    advance_change_time(paths[3], facts)


def reorder(paths: list[Path]) -> None:
    paths[0], paths[1] = paths[1], paths[0]


def repeat(paths: list[Path]) -> None:
    paths.append(paths[0])


def drop(paths: list[Path]) -> None:
    paths.pop()


def rename(paths: list[Path]) -> None:
    paths[3] = paths[3].rename(paths[3].with_name("other.png"))


CHANGES = (touch, rewrite, replace, reorder, repeat, drop, rename)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=4, unique=True))
def test_any_change_gives_another_key(
    tmp_path: Path, changes: list[Callable[[list[Path]], None]]
) -> None:
    shutil.rmtree(tmp_path / "images", ignore_errors=True)
    paths = write_images(tmp_path / "images", COUNT)

    def key() -> str:
        return _Cache(list(paths), SIZE, NO_RANGES, tmp_path).key

    for change in changes:
        before = key()
        assert key() == before
        change(paths)
        assert key() != before


def test_another_transform_gives_another_key(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {
        _Cache(paths, SIZE, NO_RANGES, folder).key,
        _Cache(paths, SIZE + 1, NO_RANGES, folder).key,
        _Cache(paths, SIZE, GreyRanges(deep=GreyRange(0, 4095)), folder).key,
    }
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    keys.add(_Cache(paths, SIZE, NO_RANGES, folder).key)
    monkeypatch.setattr("PIL.__version__", "another")
    keys.add(_Cache(paths, SIZE, NO_RANGES, folder).key)
    assert len(keys) == 5


def test_a_relative_path_is_the_same_file(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(paths[0].parent)
    relative = [Path(path.name) for path in paths]
    assert (
        _Cache(relative, SIZE, NO_RANGES, folder).key == _Cache(paths, SIZE, NO_RANGES, folder).key
    )


def test_a_changed_file_is_decoded_again(paths: list[Path], folder: Path) -> None:
    before = cached_images(paths, SIZE, folder=folder)
    Image.new("RGB", (20, 16), "red").save(paths[3])
    after = cached_images(paths, SIZE, folder=folder)
    assert torch.equal(after, read_images(paths, SIZE))
    assert not torch.equal(after[3], before[3])


def test_a_file_that_changes_while_it_is_read(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(path: Path) -> bytes:
        touch(paths)
        return path.read_bytes()

    monkeypatch.setattr(module, "read_file", meddle)
    with pytest.raises(SodapError, match=r"3\.png changed while it was being read"):
        cached_images(paths, SIZE, folder=folder)


# ------------------------------------------------------------------ reuse of other caches


def test_another_list_of_the_same_files_is_not_decoded(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_images(paths, SIZE, folder=folder)
    decodes = Decodes(monkeypatch)
    shuffled = [paths[i] for i in np.random.default_rng(1).permutation(COUNT)]
    for others in (shuffled, shuffled[3:], [*paths, paths[0]]):
        assert torch.equal(cached_images(others, SIZE, folder=folder), read_images(others, SIZE))
    assert decodes.count == 0
    assert len(list(folder.glob("*.images"))) == 4
    cached_images(shuffled, SIZE, folder=folder, verify=True)
    assert decodes.count == 0


def test_only_new_files_are_decoded(
    paths: list[Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_images(paths, SIZE, folder=folder)
    decodes = Decodes(monkeypatch)
    moved = paths[0].parent.rename(tmp_path / "moved")
    Image.new("RGB", (20, 16), "red").save(moved / "new.png")
    there = [moved / "new.png", *(moved / path.name for path in paths)]
    assert torch.equal(cached_images(there, SIZE, folder=folder), read_images(there, SIZE))
    assert decodes.count == 1
    found = cached_images(there, SIZE + 1, folder=folder)
    assert torch.equal(found, read_images(there, SIZE + 1))
    assert decodes.count == 1 + len(there)


def test_another_split_seed_decodes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for index in range(40):
        path = tmp_path / "mine" / "clinic" / ("ill", "well")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (16, 20, 3), np.uint8)).save(path)
    decodes = Decodes(monkeypatch)
    streams = [load_stream(str(tmp_path / "mine"), SIZE, split_seed=seed) for seed in (0, 1)]
    assert decodes.count == 40
    one, other = map(images_by_path, streams)
    assert one == other
    assert streams[0].rows != streams[1].rows


def images_by_path(stream: Stream) -> dict[str, bytes]:
    (domain,) = stream.domains
    images = [image.numpy().tobytes() for _, split in domain.splits() for image in split.images]
    return {row.path: image for row, image in zip(stream.rows, images, strict=True)}


def test_damaged_images_are_not_copied(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = cached_images(paths, SIZE, folder=folder).clone()
    flip_byte(the(folder, "images"), cache_bytes(3, SIZE) + 7)
    decodes = Decodes(monkeypatch)
    assert torch.equal(cached_images(paths[::-1], SIZE, folder=folder), plain.flip(0))
    assert decodes.count == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'"x"', b'{"made": 1}', b"\xff", None])
def test_damaged_checksums_and_other_files_are_ignored(
    paths: list[Path], folder: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = cached_images(paths, SIZE, folder=folder).clone()
    if content is None:
        the(folder, "json").unlink()
    else:
        the(folder, "json").write_bytes(content)
    (folder / "mine.images").mkdir()
    decodes = Decodes(monkeypatch)
    assert torch.equal(cached_images(paths[::-1], SIZE, folder=folder), plain.flip(0))
    assert decodes.count == COUNT


def test_a_cache_that_is_deleted_during_copying(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = cached_images(paths, SIZE, folder=folder).clone()
    decodes = Decodes(monkeypatch)

    def delete(done: int, _: int) -> None:
        if done == 0:
            the(folder, "images").unlink()

    found = cached_images(paths[::-1], SIZE, folder=folder, on_progress=delete)
    assert torch.equal(found, plain.flip(0))
    assert decodes.count == COUNT


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("where", [0, cache_bytes(COUNT, SIZE) // 2, -1])
def test_damage_in_the_sample_is_repaired(paths: list[Path], folder: Path, where: int) -> None:
    plain = cached_images(paths, SIZE, folder=folder).clone()
    flip_byte(the(folder, "images"), where)
    assert torch.equal(cached_images(paths, SIZE, folder=folder), plain)


def flip_byte(path: Path, where: int) -> None:
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[where] ^= 255
    path.write_bytes(content)


def test_verify_repairs_damage_anywhere(paths: list[Path], folder: Path) -> None:
    plain = cached_images(paths, SIZE, folder=folder).clone()
    for image in range(COUNT):
        flip_byte(the(folder, "images"), cache_bytes(image, SIZE) + 5)
        assert torch.equal(cached_images(paths, SIZE, folder=folder, verify=True), plain)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"images": 3}', b'{"images": [[1, 2]]}', b'{"images": {}}', b"\xff\xfe"],
)
def test_damaged_checksums_are_written_again(
    paths: list[Path], folder: Path, content: bytes
) -> None:
    plain = cached_images(paths, SIZE, folder=folder).clone()
    the(folder, "json").write_bytes(content)
    assert torch.equal(cached_images(paths, SIZE, folder=folder), plain)
    assert len(json.loads(the(folder, "json").read_text("utf-8"))["images"]) == COUNT


def test_a_truncated_cache_is_built_again(paths: list[Path], folder: Path) -> None:
    plain = cached_images(paths, SIZE, folder=folder).clone()
    the(folder, "images").chmod(0o644)
    os.truncate(the(folder, "images"), 100)
    assert torch.equal(cached_images(paths, SIZE, folder=folder), plain)


def test_verify_finds_an_edit_with_unchanged_times(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_stamp", lambda path: (0, 0, 0))
    before = cached_images(paths, SIZE, folder=folder).clone()
    Image.new("RGB", (20, 16), "red").save(paths[3])
    assert torch.equal(cached_images(paths, SIZE, folder=folder), before)
    after = cached_images(paths, SIZE, folder=folder, verify=True)
    assert torch.equal(after, read_images(paths, SIZE))
    assert not torch.equal(after, before)


# ------------------------------------------------------------------ interruption

CHILD = """
import os, signal, sys
from pathlib import Path
from sodap.streams import cache

cache.CHUNK = 2
cache._Cache.open = lambda self: None  # needs torch, which is slow to import
folder, images, size, point, number = sys.argv[1:]
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
calls = 0

def at(real):
    def call(*args):
        global calls
        calls += 1
        if calls > int(number):
            die()
        return real(*args)
    return call

if point == "before the journal":
    os.fdatasync = at(os.fdatasync)
elif point == "after the journal":
    progress = at(lambda done, of: None)
elif point == "while decoding":
    cache.decode_image = at(cache.decode_image)
elif point == "before the checksums":
    cache.write_json = die
elif point == "before the rename":
    Path.rename = die
elif point == "before the end":
    Path.unlink = lambda path, missing_ok=False: path.suffix == ".journal" and die()
paths = [Path(images) / f"{n}.png" for n in range(len(list(Path(images).iterdir())))]
cache.cached_images(paths, int(size), folder=Path(folder), on_progress=globals().get("progress"))
print("done")
"""


def child(folder: Path, paths: list[Path], point: str, number: int = 0) -> subprocess.Popen[str]:
    arguments = [str(folder), str(paths[0].parent), str(SIZE), point, str(number)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("before the journal", 0),
        ("before the journal", 3),
        ("after the journal", 1),
        ("after the journal", 5),
        ("while decoding", 0),
        ("while decoding", 7),
        ("before the checksums", 0),
        ("before the rename", 0),
        ("before the end", 0),
    ],
)
def test_killed_and_resumed(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch, point: str, number: int
) -> None:
    process = child(folder, paths, point, number)
    assert process.communicate()[0] == ""
    assert process.returncode == -signal.SIGKILL
    done = len(the(folder, "journal").read_bytes().splitlines())
    decodes = Decodes(monkeypatch)
    images = cached_images(paths, SIZE, folder=folder)
    assert torch.equal(images, read_images(paths, SIZE))
    assert the(folder, "images").read_bytes() == images.numpy().tobytes()
    assert decodes.count <= COUNT - 2 * done + 1  # the last chunk may be the one of a single image
    if done == 6:
        assert decodes.count == 0
    if point != "before the end":
        assert names(folder) == [".images", ".json", ".lock"]


def test_a_truncated_journal_and_a_damaged_image(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, of: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_images(paths, SIZE, folder=folder, on_progress=stop, workers=1)
    journal = the(folder, "journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    nonsense = b'[[99, 1, "x"]]\n[["x", 2, "y"]]\n[[0, "x", 1]]\n[7]\n7\n{}\n\xff\n[1, 2\n'
    journal.write_bytes(b"".join(lines[:3]) + nonsense + lines[3][:9])  # the fourth is cut off
    with the(folder, "partial").open("r+b") as file:
        file.write(b"damage in the first image")
    decodes = Decodes(monkeypatch)
    images = cached_images(paths, SIZE, folder=folder)
    assert torch.equal(images, read_images(paths, SIZE))
    assert decodes.count == COUNT - 5
    assert torch.equal(cached_images(paths, SIZE, folder=folder, verify=True), images)


def test_an_error_names_the_image_and_keeps_the_others(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(content: bytes, path: Path, *how: Any) -> Any:
        return decode_image(b"" if path == paths[7] else content, path, *how)

    monkeypatch.setattr(module, "decode_image", fail)
    with pytest.raises(SodapError, match=r"7\.png cannot be read as an image: the file is empty"):
        cached_images(paths, SIZE, folder=folder, workers=1)
    assert names(folder) == [".journal", ".lock", ".partial"]
    monkeypatch.setattr(module, "decode_image", decode_image)
    decodes = Decodes(monkeypatch)
    assert torch.equal(cached_images(paths, SIZE, folder=folder), read_images(paths, SIZE))
    assert decodes.count < COUNT


def test_a_missing_image(paths: list[Path], folder: Path) -> None:
    paths[2].unlink()
    with pytest.raises(SodapError, match=r"there is no image at .*2\.png"):
        cached_images(paths, SIZE, folder=folder)
    with pytest.raises(SodapError, match=r"there is no image at .*/2\\x00\.png"):
        cached_images([paths[2].with_name("2\0.png")], SIZE, folder=folder)


def test_file_names_that_are_not_utf8(paths: list[Path], folder: Path) -> None:
    for number, name in ((2, b"M\xfcller.png"), (5, b"no.suff\xfcx")):
        paths[number] = paths[number].rename(paths[number].with_name(os.fsdecode(name)))
    images = cached_images(paths, SIZE, folder=folder)
    assert torch.equal(images, read_images(paths, SIZE))
    assert torch.equal(cached_images(paths, SIZE, folder=folder, verify=True), images)


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022])
def test_file_modes_follow_the_umask(paths: list[Path], folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        cached_images(paths, SIZE, folder=folder)
    finally:
        os.umask(before)
    assert the(folder, "images").stat().st_mode & 0o777 == 0o444 & ~umask
    assert the(folder, "json").stat().st_mode & 0o777 == 0o666 & ~umask


# ------------------------------------------------------------------ deletion


def test_temporary_files_of_killed_processes_are_deleted(paths: list[Path], folder: Path) -> None:
    cached_images(paths, SIZE, folder=folder)
    key = the(folder, "images").stem
    for name in (f".{key}.json.0a1b2c3d.tmp", f".{'0' * 40}.journal.x_y2z3ab.tmp"):
        (folder / name).write_bytes(b"x" * 1000)
    others = [".mine.json.0a1b2c3d.tmp", f".{key}.txt.0a1b2c3d.tmp", f".{key}.json"]
    for name in others:
        (folder / name).touch()
    assert clear_cache(folder) > cache_bytes(COUNT, SIZE) + 2000
    assert sorted(path.name for path in folder.iterdir()) == sorted(others)


def test_temporary_files_of_a_running_build_are_kept(paths: list[Path], folder: Path) -> None:
    cache = _Cache(paths, SIZE, NO_RANGES, folder)
    new, left = (folder / f".{key}.json.0a1b2c3d.tmp" for key in (cache.key, "0" * 40))
    with cache.lock():
        for path in (new, left):
            path.touch()
        clear_cache(folder)
        assert new.exists()
        assert not left.exists()
    clear_cache(folder)
    assert not new.exists()


# ------------------------------------------------------------------ several processes


def test_processes_that_build_the_same_cache(paths: list[Path], folder: Path) -> None:
    children = [child(folder, paths, "never") for _ in range(2)]
    assert [c.communicate()[0] for c in children] == ["done\n"] * 2
    assert names(folder) == [".images", ".json", ".lock"]
    assert torch.equal(cached_images(paths, SIZE, folder=folder), read_images(paths, SIZE))


def test_one_thread_builds_while_others_wait(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decodes = Decodes(monkeypatch)
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.append(cached_images(paths, SIZE, folder=folder)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert decodes.count == COUNT
    assert all(torch.equal(result, results[0]) for result in results)
    assert len(results) == 4


# ------------------------------------------------------------------ the disk


def test_too_little_space_is_an_error_before_writing(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=300_000))
    with pytest.raises(SodapError, match=r"11 images needs 1\.32 MB, but only 300 kB is free at"):
        cached_images(paths, 200, folder=folder)
    assert the(folder, "partial").stat().st_size == 0


def test_a_disk_that_is_full_while_writing(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(file: int, content: memoryview, start: int) -> int:
        if start > cache_bytes(5, SIZE):
            raise OSError(28, "No space left on device")
        return real(file, content[:100], start)  # short writes are allowed

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SodapError, match="No space left on device; set SODAP_CACHE"):
        cached_images(paths, SIZE, folder=folder)
    monkeypatch.setattr(os, "pwrite", real)
    assert torch.equal(cached_images(paths, SIZE, folder=folder), read_images(paths, SIZE))


def test_a_cache_folder_that_cannot_be_made(paths: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SodapError, match=r"cannot write the image cache at .*: Not a directory"):
        cached_images(paths, SIZE, folder=tmp_path / "file" / "cache")


# ------------------------------------------------------------------ real files


def test_real_images(shared: Path, folder: Path) -> None:
    paths: list[Path] = []
    for source in sorted((shared / "data").iterdir()):
        if source.is_dir():
            paths += sorted(p for p in source.rglob("*") if p.suffix in (".jpg", ".png"))[:6]
    assert len(paths) >= 36
    plain = read_images(paths, 64)
    assert torch.equal(cached_images(paths, 64, folder=folder), plain)
    assert torch.equal(cached_images(paths, 64, folder=folder, verify=True), plain)
