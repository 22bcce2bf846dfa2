"""Whole runs on real photographs: protocols, folders and tables, from the files to R."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from tests.conftest import TINY

from sodap.runs import RunRecord, load_config, run
from sodap.storage import write_json
from sodap.streams import load_stream
from sodap.streams.splits import read_splits

pytestmark = pytest.mark.slow


def learned(folder: Path, *changes: str) -> RunRecord:
    """A run in closed form with the smallest network."""
    config = load_config("ridge", [*TINY, "evidence=false", "keep_stages=false", *changes])
    return run(config, folder)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize(
    ("protocol", "domains", "classes"),
    [
        ("open-dr", ["deepdrid", "idrid", "deepdrid_uwf"], 3),
        ("open-skin", ["isic2020", "ham10000", "isic2017"], 2),
    ],
)
def test_a_protocol_from_files_to_r(
    shared: Path, tmp_path: Path, protocol: str, domains: list[str], classes: int
) -> None:
    record = learned(tmp_path / "run", f"stream={protocol}", f"data={shared / 'data'}")
    assert [domain.name for domain in record.stream.domains] == domains
    assert len(record.R.accuracy) == len(record.R.accuracy[0]) == 3
    assert len(record.stream.classes) == classes
    assert record.stream.notes, "the copies here are smaller than the complete data sets"
    rows = read_splits(tmp_path / "run" / "splits.csv")
    counted = sum(sum(c) for d in record.stream.domains for _, c in d.counts)
    assert len(rows) == counted

    # The saved splits are used again, whatever the seed of random splits.
    saved = str(tmp_path / "run" / "splits.csv")
    again = load_stream(protocol, 32, data=str(shared / "data"), splits=saved, split_seed=5)
    assert list(again.rows) == rows
    for domain, known in zip(again.tested, record.stream.domains, strict=True):
        counts = domain.test.labels.bincount(minlength=classes).tolist()
        assert counts == known.counts.test


def test_a_table_and_folders_made_from_real_images(shared: Path, tmp_path: Path) -> None:
    """Thirty images per class of two cameras, listed in a table and sorted into folders."""
    table = tmp_path / "eyes.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "domain", "group"])
        for domain in ("deepdrid", "idrid"):
            taken: dict[str, int] = {}
            source = shared / "data" / domain
            with (source / "labels.csv").open(newline="") as labels:
                for row in csv.DictReader(labels):
                    name = "healthy" if row["grade"] == "0" else "ill"
                    taken[name] = taken.get(name, 0) + 1
                    if taken[name] > 30:
                        continue
                    image = source / "images" / row["image"]
                    writer.writerow([image, name, domain, row.get("patient", "")])
                    home = tmp_path / "eyes" / domain / name
                    home.mkdir(parents=True, exist_ok=True)
                    shutil.copy(image, home)

    from_table = learned(tmp_path / "table-run", f"stream={table}")
    from_folders = learned(tmp_path / "folder-run", f"stream={tmp_path / 'eyes'}")
    for record in (from_table, from_folders):
        assert record.stream.classes == ["healthy", "ill"]
        assert [domain.name for domain in record.stream.domains] == ["deepdrid", "idrid"]
        total = sum(sum(c) for d in record.stream.domains for _, c in d.counts)
        assert total == 120
    # The table names patients, and none is in two splits.
    sides: dict[str, set[str]] = {}
    for dealt in read_splits(tmp_path / "table-run" / "splits.csv"):
        if dealt.group:
            sides.setdefault(dealt.group, set()).add(dealt.split)
    assert sides
    assert all(len(kinds) == 1 for kinds in sides.values())


def test_the_core50_sample_can_be_read(shared: Path) -> None:
    from sodap.streams.catalogue import read_source
    from sodap.streams.images import read_image

    items = read_source("core50_sample", [shared / "data"])
    assert len(items) == 90
    assert read_image(items[0].path, 64).shape == (3, 64, 64)


def test_a_resumed_run_keeps_its_splits(shared: Path, tmp_path: Path) -> None:
    """Files that are added after the start are not used."""
    eyes = tmp_path / "eyes"
    images = sorted((shared / "data" / "idrid" / "images").iterdir())[:60]
    for index, image in enumerate(images):
        home = eyes / f"domain {index % 2}" / f"class {index // 2 % 2}"
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(image, home)
    record = learned(tmp_path / "run", f"stream={eyes}")
    broken = tmp_path / "run" / "record.json"
    interrupted = record.model_copy(update={"status": "interrupted"})
    write_json(broken, interrupted.model_dump(mode="json"))
    shutil.copy(images[0], eyes / "domain 0" / "class 0" / "late.jpg")
    config = load_config("ridge", [*TINY, f"stream={eyes}"])
    assert run(config, tmp_path / "run", resume=True).confusions == record.confusions
