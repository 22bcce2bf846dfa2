from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from sodap.errors import FolderBusyError, SodapError
from sodap.storage import (
    as_json,
    delete_temporary_files,
    folder_lock,
    has_state,
    load_state,
    read_json,
    save_state,
    write_bytes,
    write_json,
)

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b.c": torch.tensor([True, False])}
METADATA = {"stage": 2, "names": ["x", "ü"], "nested": {"none": None}}


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    assert not has_state(tmp_path, "state")
    save_state(tmp_path, "state", TENSORS, METADATA)
    tensors, metadata = load_state(tmp_path, "state")
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[k], TENSORS[k]) for k in TENSORS)


def test_a_state_of_format_1_is_read(tmp_path: Path) -> None:
    """It calls the metadata `facts`."""
    rewrite(tmp_path, format=1, facts=METADATA, metadata=None)
    assert load_state(tmp_path, "model")[1] == METADATA
    rewrite(tmp_path, format=3)
    with pytest.raises(SodapError, match=r"has format 3.*update sodap"):
        load_state(tmp_path, "model")


def test_the_state_before_is_replaced(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        save_state(tmp_path, "state", {"a": torch.tensor(value)}, {})
    assert len(list(tmp_path.iterdir())) == 2  # one JSON, one safetensors, nothing temporary
    assert load_state(tmp_path, "state")[0]["a"] == 2


@given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_any_changed_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: float, flip: int
) -> None:
    folder = tmp_path_factory.mktemp("state")
    save_state(folder, "state", TENSORS, METADATA)
    for path in sorted(folder.iterdir()):
        content = bytearray(path.read_bytes())
        content[int(position * len(content))] ^= flip
        before = path.read_bytes()
        path.write_bytes(content)
        try:
            loaded = load_state(folder, "state")
        except SodapError:
            pass
        else:  # a changed blank between JSON's tokens is no damage
            assert path.suffix == ".json"
            assert loaded[1] == METADATA
        path.write_bytes(before)


def test_a_missing_or_foreign_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="there is no file"):
        load_state(tmp_path, "state")
    (tmp_path / "state.json").write_text("[1]")
    with pytest.raises(SodapError, match="damaged"):
        load_state(tmp_path, "state")
    save_state(tmp_path, "state", TENSORS, METADATA)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(SodapError, match="cannot be read"):
        load_state(tmp_path, "state")


STRANGE = {
    "deep": "[" * 100_000,
    "deep object": '{"a": ' * 100_000,
    "long number": f'{{"a": {"9" * 5000}}}',
    "bytes": b"{\xff}",
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_json_beyond_measure_is_one_sentence(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    for read in (read_json, lambda _: load_state(tmp_path, "model")):
        with pytest.raises(SodapError, match=r"model\.json is damaged: it is not valid JSON"):
            read(path)


def test_what_can_just_be_read_may_be_too_deep_to_be_checked(tmp_path: Path) -> None:
    for depth in range(900, 1000):
        nested = "[" * depth + "]" * depth
        (tmp_path / "model.json").write_text(f'{{"metadata": {nested}, "checksum": ""}}')
        with pytest.raises(SodapError, match="is damaged"):
            load_state(tmp_path, "model")


def rewrite(folder: Path, **changes: Any) -> None:
    """By hand, and with the checksum put right; None takes a key away."""
    save_state(folder, "model", TENSORS, METADATA)
    body = read_json(folder / "model.json") | changes
    body = {key: each for key, each in body.items() if each is not None and key != "checksum"}
    whole = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    write_json(folder / "model.json", body | {"checksum": whole})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensors": None}, "model.json is damaged: its tensors or its metadata"),
        ({"tensors": 7}, "model.json is damaged: its tensors or its metadata"),
        ({"metadata": None}, "model.json is damaged: its tensors or its metadata"),
        ({"metadata": [1]}, "model.json is damaged: its tensors or its metadata"),
        ({"sha256": None}, "model.json is damaged: its tensors or its metadata"),
        ({"sha256": []}, "is damaged: its checksum does not match"),
        ({"format": None}, "has format None"),
        ({"tensors": ""}, "which cannot be read"),
        ({"tensors": ".."}, "model.json refers to '..', which cannot be read"),
        ({"tensors": "a\0"}, r"model.json refers to 'a\x00', which cannot be read"),
        ({"tensors": "a\ud800"}, r"model.json refers to 'a\ud800', which cannot be read"),
    ],
)
def test_a_state_changed_by_hand_is_one_sentence(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    rewrite(tmp_path)
    assert load_state(tmp_path, "model")[1] == METADATA
    rewrite(tmp_path, **changes)
    with pytest.raises(SodapError, match=re.escape(words)):
        load_state(tmp_path, "model")


def test_tensors_of_a_kind_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To safetensors it is known, but not to torch: one such is as good as another."""
    monkeypatch.delitem(safetensors.torch._TYPES, "F8_E8M0", raising=False)
    header = b'{"a": {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]}}'
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    rewrite(tmp_path, tensors="other", sha256=hashlib.sha256(content).hexdigest())
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(SodapError, match="other is not a safetensors file"):
        load_state(tmp_path, "model")


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o022, 0o002])
def test_the_umask_says_who_may_read(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        for _ in range(2):  # a file that is replaced, too
            write_bytes(tmp_path / "a", b"x")
            assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask
    finally:
        os.umask(before)


def test_a_full_disk_leaves_the_former_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(tmp_path, "state", TENSORS, METADATA)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SodapError, match="No space left"):
            save_state(tmp_path, "state", {"a": torch.zeros(3)}, {})
    assert load_state(tmp_path, "state")[1] == METADATA
    assert not list(tmp_path.glob("*.tmp"))


def test_writing_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SodapError, match="cannot write"):
        write_bytes(tmp_path / "file" / "below", b"x")


def test_not_a_number_is_no_json(tmp_path: Path) -> None:
    content: dict[str, Any] = {"x": float("nan")}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", content)
    write_json(tmp_path / "x.json", {"x": 1.5})
    assert read_json(tmp_path / "x.json") == {"x": 1.5}


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    left = [tmp_path / ".record.json.x1.tmp", tmp_path / "deep" / ".state.json.y2.tmp"]
    kept = [tmp_path / "record.json", tmp_path / "notes.tmp", tmp_path / ".hidden"]
    (tmp_path / "deep").mkdir()
    for path in left + kept:
        path.touch()
    (tmp_path / ".folder.tmp").mkdir()
    delete_temporary_files(tmp_path)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in [*kept, tmp_path / ".folder.tmp"])
    delete_temporary_files(tmp_path / "nowhere")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_json_says_what_it_was_given(content: dict[str, Any]) -> None:
    assert json.loads(as_json(content)) == content


def test_json_can_be_read_by_people_and_has_a_line_a_matrix() -> None:
    content = {"R": [[0.5, None], [0.25, 1.0]], "stages": [{"stage": 1}, {}], "none": {}, "n": []}
    assert as_json(content).decode() == (
        '{\n "R": [[0.5, null], [0.25, 1.0]],\n'
        ' "stages": [\n  {\n   "stage": 1\n  },\n  {}\n ],\n "none": {},\n "n": []\n}\n'
    )


def test_a_folder_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(2):
        with folder_lock(folder):
            with (
                pytest.raises(FolderBusyError, match=str(folder)),
                folder_lock(folder),
            ):
                pass
            assert list(folder.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SodapError, match="cannot write"), folder_lock(tmp_path / "file" / "run"):
        pass


def test_a_drive_without_locks_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with folder_lock(tmp_path):
        pass
