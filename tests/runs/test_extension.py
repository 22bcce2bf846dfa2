"""A domain that arrives after a run: it is noticed, and learned as the next stage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sodap
from sodap.errors import SodapError
from sodap.runs import RunCallback, RunConfig, RunRecord, extend, load_config, run
from sodap.runs.evidence import read_evidence
from sodap.runs.reading import read_log, read_record
from sodap.runs.stream import load_run_stream, new_domains
from sodap.streams import Stage
from sodap.streams.splits import read_splits

COMMON = ["backbone=test_vit", "weights=random", "image_size=32", "device=cpu", "epochs=1"]
LEARNED = {"residual-sodap": ["pool_size=4", "capacity=12"], "ridge": [], "joint": []}


def add_domain(root: Path, name: str, *, labels: tuple[str, ...] = ("cat", "dog")) -> None:
    """Thirty images; the class is the brighter half, the domain is the tint."""
    random = np.random.default_rng(sum(name.encode()))
    for label in labels:
        (root / name / label).mkdir(parents=True)
        for index in range(15):
            pixels = random.integers(0, 120, (32, 32, 3), dtype=np.uint8)
            pixels[:, 16 if label == "cat" else 0 :] //= 2
            Image.fromarray(pixels + random.integers(0, 90, 3, dtype=np.uint8)).save(
                root / name / label / f"{index}.png"
            )


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    for name in ("01-zeiss", "02-topcon"):
        add_domain(tmp_path / "clinic", name)
    return tmp_path / "clinic"


def config_of(clinic: Path, method: str = "ridge", *changes: str) -> RunConfig:
    return load_config(
        "default",
        [f"method={method}", f"stream={clinic}", *COMMON, *LEARNED[method], *changes],
    )


def learned_in_order(record: RunRecord) -> list[str]:
    return [stage.domain for stage in record.stages]


class Stopper(RunCallback):
    """Stops a run after a stage."""

    def __init__(self, stage: int) -> None:
        self.stage = stage

    def stage_done(self, stage: Stage, record: object) -> None:
        if stage.number == self.stage:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", LEARNED)
def test_an_extended_run_is_the_run_of_the_longer_stream(
    clinic: Path, tmp_path: Path, method: str
) -> None:
    config, folder = config_of(clinic, method), tmp_path / "run"
    first = run(config, folder)
    add_domain(clinic, "00-van")  # its name comes before those that were learned
    assert new_domains(config, folder) == ["00-van"]
    record = extend(config, folder)

    assert record.status == "finished"
    assert learned_in_order(record) == ["01-zeiss", "02-topcon", "00-van"]
    assert [domain.name for domain in record.stream.domains] == learned_in_order(record)
    R = np.array(record.R.accuracy)
    assert R.shape == (3, 3)
    np.testing.assert_array_equal(R[:2, :2], first.R.accuracy)
    assert read_record(folder / "record.json") == record
    assert new_domains(config, folder) == []
    again = load_run_stream(config, folder)  # for a report
    assert [domain.name for domain in again.domains] == learned_in_order(record)

    whole = tmp_path / "whole"
    for source in ("01-zeiss", "02-topcon", "00-van"):
        order = {"01-zeiss": "1", "02-topcon": "2", "00-van": "3"}[source]
        shutil.copytree(clinic / source, whole / order)
    rows = (folder / "splits.csv").read_text()
    for source, order in (("01-zeiss", "1"), ("02-topcon", "2"), ("00-van", "3")):
        rows = rows.replace(source, order)
    (tmp_path / "splits.csv").write_text(rows)
    at_once = run(
        config_of(whole, method, f"splits={tmp_path / 'splits.csv'}"), tmp_path / "at-once"
    )
    assert record.confusions == at_once.confusions
    assert record.metrics == at_once.metrics

    for one, other in zip(
        read_evidence(folder, 3), read_evidence(tmp_path / "at-once", 3), strict=True
    ):
        assert len(one.predictions) == 3
        for mine, theirs in zip(one.predictions, other.predictions, strict=True):
            assert mine.equal(theirs)
    epochs = [(row.stage, row.epoch) for row in read_log(folder / "log.jsonl")[0]]
    assert epochs == [(r.stage, r.epoch) for r in read_log(tmp_path / "at-once" / "log.jsonl")[0]]
    assert sodap.load(folder, device="cpu").stages_learned == 3
    assert (folder / "stages" / "2" / "model.json").is_file()
    assert not (folder / "checkpoint").exists()


def test_the_splits_of_learned_domains_do_not_change(clinic: Path, tmp_path: Path) -> None:
    config, folder = config_of(clinic), tmp_path / "run"
    run(config, folder)
    before = read_splits(folder / "splits.csv")
    add_domain(clinic, "03-van")
    extend(config, folder)
    after = read_splits(folder / "splits.csv")
    assert after[: len(before)] == before
    assert {row.domain for row in after[len(before) :]} == {"03-van"}


def test_an_interrupted_run_goes_on_without_the_new_domain(clinic: Path, tmp_path: Path) -> None:
    config, folder = config_of(clinic), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(config, folder, callback=Stopper(1))
    add_domain(clinic, "00-van", labels=("cat", "dog", "bird"))  # not even its classes matter
    record = run(config, folder, resume=True)
    assert learned_in_order(record) == ["01-zeiss", "02-topcon"]
    assert list(load_run_stream(config, folder).classes) == ["cat", "dog"]


def test_an_interrupted_extension_is_resumed(clinic: Path, tmp_path: Path) -> None:
    config, folder = config_of(clinic), tmp_path / "run"
    run(config, folder)
    add_domain(clinic, "03-van")
    add_domain(clinic, "04-bus")
    with pytest.raises(KeyboardInterrupt):
        extend(config, folder, callback=Stopper(3))
    assert read_record(folder / "record.json").status == "interrupted"
    record = run(config, folder, resume=True)
    assert np.array(record.R.accuracy).shape == (4, 4)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda clinic, folder: shutil.rmtree(folder / "stages"), "model of stage 1"),
        (
            lambda clinic, folder: (clinic / "03-van" / "dog").rename(clinic / "03-van" / "dgo"),
            "images of dgo, which is not among the classes cat, dog",
        ),
    ],
)
def test_what_cannot_be_extended_stays_finished(
    clinic: Path, tmp_path: Path, spoil: Callable[[Path, Path], object], words: str
) -> None:
    config, folder = config_of(clinic), tmp_path / "run"
    before = run(config, folder)
    add_domain(clinic, "03-van")
    spoil(clinic, folder)
    assert new_domains(config, folder) == ["03-van"]
    with pytest.raises(SodapError, match=words):
        extend(config, folder)
    assert read_record(folder / "record.json") == before


def test_nothing_to_extend(clinic: Path, tmp_path: Path) -> None:
    config, folder = config_of(clinic), tmp_path / "run"
    with pytest.raises(SodapError, match="no finished run"):
        extend(config, folder)
    record = run(config, folder)
    assert extend(config, folder) == record
    shutil.rmtree(clinic)
    assert new_domains(config, folder) == [], "a finished run needs no images"


def test_a_missing_image_of_a_learned_domain_is_refused(clinic: Path, tmp_path: Path) -> None:
    """Otherwise a column of R would mix two test sets."""
    config, folder = config_of(clinic), tmp_path / "run"
    before = run(config, folder)
    add_domain(clinic, "03-van")
    tested = next(r for r in read_splits(folder / "splits.csv") if r.split == "test")
    (clinic / tested.path).unlink()
    with pytest.raises(SodapError, match=tested.domain):
        extend(config, folder)
    assert read_record(folder / "record.json") == before


def test_what_was_measured_on_fewer_domains_is_dropped(clinic: Path, tmp_path: Path) -> None:
    config, folder = config_of(clinic), tmp_path / "run"
    run(config, folder)
    stale = [folder / "evidence" / name for name in ("composition.json", "probe-val.json")]
    for path in stale:
        path.write_text("{}")
    add_domain(clinic, "03-van")
    extend(config, folder)
    assert not any(path.exists() for path in stale)


def test_an_unreadable_file_of_a_new_domain_can_be_left_out(clinic: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(config_of(clinic), folder)
    add_domain(clinic, "03-van")
    (clinic / "03-van" / "cat" / "3.png").write_bytes(b"no image")
    with pytest.raises(SodapError, match=r"3\.png"):
        extend(config_of(clinic), folder)
    record = extend(config_of(clinic, "ridge", "skip_unreadable=true"), folder)
    assert learned_in_order(record)[-1] == "03-van"
    assert any("unreadable" in note for note in record.stream.notes)


def test_a_resumed_run_remembers_what_was_left_out(clinic: Path, tmp_path: Path) -> None:
    (clinic / "01-zeiss" / "cat" / "3.png").write_bytes(b"no image")
    config, folder = config_of(clinic, "ridge", "skip_unreadable=true"), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(config, folder, callback=Stopper(1))
    assert any("unreadable" in note for note in run(config, folder, resume=True).stream.notes)
