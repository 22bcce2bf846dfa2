"""Protocols, and plans from small made-up data sets and from real ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from sodap.errors import SodapError
from sodap.streams import protocols
from sodap.streams.build import build_stream
from sodap.streams.catalogue import find_source
from sodap.streams.items import SPLITS, PlannedDomain
from sodap.streams.plans import (
    plan_folder,
    plan_lists,
    plan_protocol,
    plan_table,
)
from sodap.streams.protocols import find_protocol, protocol_names
from sodap.streams.splits import read_splits, write_splits


def write_image(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), (shade, 255 - shade, 90)).save(path)


def write_compact(root: Path, name: str, rows: list[str], header: str) -> None:
    """Write the compact layout: images/ and labels.csv, whose first cell is the file."""
    for index, row in enumerate(rows):
        write_image(root / name / "images" / row.split(",")[0], index % 256)
    (root / name / "labels.csv").write_text("\n".join([header, *rows]) + "\n")


@pytest.fixture(scope="module")
def open_dr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small data sets of retinas: 10 patients with 4 images each, 40 images, 12 patients."""
    root = tmp_path_factory.mktemp("data")
    regular = [f"{p}_{k}.png,{(p + k) % 5},{p}" for p in range(10) for k in range(4)]
    write_compact(root, "deepdrid", regular, "image,grade,patient")
    official = [f"{k}.png,{k % 5},{'test' if k % 4 == 0 else 'train'}" for k in range(40)]
    write_compact(root, "idrid", official, "image,grade,official_split")
    wide = [f"u{p}_{k}.png,{p % 5},{p}" for p in range(12) for k in range(2)]
    write_compact(root, "deepdrid_uwf", wide, "image,grade,patient")
    return root


# ------------------------------------------------------------------ the protocols themselves


@pytest.mark.parametrize("name", protocol_names())
def test_a_protocol_is_consistent(name: str) -> None:
    protocol = find_protocol(name)
    names = [domain.name for domain in protocol.domains]
    assert len(set(names)) == len(names)
    assert set(protocol.unseen) <= set(names)
    assert names[len(names) - len(protocol.unseen) :] == list(protocol.unseen)
    for domain in protocol.domains:
        assert find_source(domain.source).classes == protocol.classes
        assert set(domain.expected or protocol.classes) == set(protocol.classes)


def test_the_paper_tables() -> None:
    """The totals of each data set or session, copied from the paper a second time."""
    sums = {
        "paper-dr": [3662, 12522, 14316],
        "paper-skin": [1168, 2226, 504],
        "paper-core50": [
            10492, 10490, 10494, 10496, 10476, 10492, 10495, 10488, 10495, 10490, 10493,
        ],
    }  # fmt: skip
    for name, wanted in sums.items():
        domains = find_protocol(name).domains
        assert [sum((domain.expected or {}).values()) for domain in domains] == wanted
    dr = [tuple((d.expected or {}).values()) for d in find_protocol("paper-dr").domains]
    assert dr == [(1805, 1562, 295), (6266, 5343, 913), (5000, 8608, 708)]


def test_the_paper_uses_the_complete_data_sets() -> None:
    """The paper's counts are the totals of the data sets, except for undersampled classes."""
    class_of_grade = {"0": "Normal", "1": "NPDR", "2": "NPDR", "3": "NPDR", "4": "PDR"}
    for domain in find_protocol("paper-dr").domains:
        whole: Counter[str] = Counter()
        for grade, count in find_source(domain.source).totals.items():
            whole[class_of_grade[grade]] += count
        drawn = domain.keep if isinstance(domain.keep, dict) else {}
        assert {**whole, **drawn} == domain.expected


def test_an_unknown_protocol() -> None:
    with pytest.raises(SodapError, match="no protocol is called 'x'; there are: paper-dr"):
        find_protocol("x")


# ------------------------------------------------------------------ plans


def splits_by_group(domain: PlannedDomain) -> dict[str, set[str]]:
    found = defaultdict(set)
    for item, kind in zip(domain.items, domain.splits, strict=True):
        if item.group is not None:
            found[item.group].add(kind)
    return found


def test_counts_and_differences_of_a_plan(open_dr: Path) -> None:
    made = plan_protocol("open-dr", [open_dr], 0)
    assert [domain.name for domain in made.domains] == ["deepdrid", "idrid", "deepdrid_uwf"]
    assert [len(domain.items) for domain in made.domains] == [40, 40, 24]
    for domain in made.domains:
        assert all(len(kinds) == 1 for kinds in splits_by_group(domain).values())
        assert set(domain.splits) == set(SPLITS)
    assert "idrid: 8 images of '0', the complete data set has 168" in made.differences
    assert made.domains[1].counts() == {"Normal": 8, "NPDR": 24, "PDR": 8}


def test_saved_splits_give_the_same_plan(open_dr: Path, tmp_path: Path) -> None:
    first = plan_protocol("open-dr", [open_dr], 3)
    write_splits(tmp_path / "splits.csv", first.rows())
    again = plan_protocol("open-dr", [open_dr], 4, saved=read_splits(tmp_path / "splits.csv"))
    assert again.rows() == first.rows()
    assert again.rows() != plan_protocol("open-dr", [open_dr], 4).rows()
    assert all("saved" not in sentence for sentence in again.differences)
    fewer = plan_protocol(
        "open-dr", [open_dr], 0, saved=[r for r in first.rows() if "9_" not in r.path]
    )
    assert len(fewer.domains[0].items) == 36


def test_groups_of_two_data_sets_can_be_shared(open_dr: Path) -> None:
    """Patients 0 to 9 are in two data sets: different people, unless the user says otherwise."""
    for shared in (False, True):
        plan = plan_protocol("open-dr", [open_dr], 0, shared=shared)
        first, _, last = map(splits_by_group, plan.domains)
        assert first.keys() & last.keys() == {str(p) for p in range(10)}
        assert all(first[p] == last[p] for p in first) == shared
        assert not plan.split_groups()


def test_domains_that_saved_splits_do_not_know_are_split_anew(open_dr: Path) -> None:
    """A new domain leaves the others as they are, and returning patients keep their split."""
    rows = plan_protocol("open-dr", [open_dr], 0).rows()
    known = [row for row in rows if row.domain != "deepdrid_uwf"]
    plan = plan_protocol("open-dr", [open_dr], 5, saved=known, shared=True)
    assert [row for row in plan.rows() if row.domain != "deepdrid_uwf"] == known
    assert "deepdrid_uwf: not in the saved splits, so it is split now" in plan.differences
    assert not plan.split_groups()
    other = [replace(row, domain="elsewhere") for row in rows]
    with pytest.raises(SodapError, match="of another stream: they have the domains elsewhere"):
        plan_protocol("open-dr", [open_dr], saved=other)


def test_a_missing_data_set(tmp_path: Path) -> None:
    with pytest.raises(SodapError, match="DeepDRiD, regular fundus images was not found at"):
        plan_protocol("open-dr", [tmp_path])


@pytest.mark.parametrize("name", ["open-dr", "grouped-dr", "paper-skin"])
def test_lists_are_only_for_paper_dr(tmp_path: Path, shared: Path, name: str) -> None:
    with pytest.raises(SodapError, match=f"{name} makes its own splits"):
        plan_protocol(name, [tmp_path], lists=shared / "paper/splits")


def write_aptos(root: Path, names: list[tuple[str, str]]) -> None:
    for index, (name, _) in enumerate(names):
        write_image(root / "aptos2019/train_images" / f"{name}.png", index % 256)
    lines = "".join(f"{name},{grade}\n" for name, grade in names)
    (root / "aptos2019/train.csv").write_text("id_code,diagnosis\n" + lines)


def test_the_authors_lists_determine_the_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_aptos(tmp_path, [("a", "0"), ("b", "2"), ("c", "4"), ("elsewhere", "1")])
    for kind, name in zip(SPLITS, ("c", "a", "gone"), strict=True):
        for domain, header in (("aptos", "id_code,diagnosis"), ("ddr", "id_code,diagnosis")):
            (tmp_path / f"{domain}_{kind}.csv").write_text(f"{header}\n{name},0\n")
        (tmp_path / f"drd_{kind}.csv").write_text(f"image,level\n{name}_left,0\n")
    paper = find_protocol("paper-dr")
    monkeypatch.setitem(protocols._PROTOCOLS, "paper-dr", replace(paper, domains=paper.domains[:1]))
    made = plan_protocol("paper-dr", [tmp_path], lists=tmp_path)
    (aptos,) = made.domains
    assert {i.path.stem: k for i, k in zip(aptos.items, aptos.splits, strict=True)} == {
        "a": "val",
        "c": "train",
    }
    assert "aptos: 1 image of the authors' lists not found" in made.differences
    assert "aptos: 1 images of Normal, the paper has 1805" in made.differences


def test_the_lists_agree_with_the_paper(shared: Path) -> None:
    made = plan_lists(shared / "paper/splits")
    assert made.differences == ()
    assert made.domains[2].counts() == {"Normal": 5000, "NPDR": 8608, "PDR": 708}
    with pytest.raises(SodapError, match="only lists"):
        build_stream(made, 32)


def test_unseen_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    for session in range(1, 12):
        for thing in range(1, 51):
            for frame in range(2):
                name = f"C_{session:02}_{thing:02}_{frame:03}.png"
                write_image(tmp_path / f"core50/s{session}/o{thing}/{name}", thing)
    made = plan_protocol("core50-ni", [tmp_path])
    learned = [domain.name for domain in made.domains if domain.learned]
    assert learned == ["s1", "s2", "s4", "s5", "s6", "s8", "s9", "s11"]
    assert [d.name for d in made.domains if not d.learned] == ["s3", "s7", "s10"]
    for domain in made.domains:
        # Five videos with two frames each: three, one and one, or all for test.
        wanted = (6, 2, 2) if domain.learned else (0, 0, 10)
        for kind, count in zip(SPLITS, wanted, strict=True):
            found = domain.counts(kind)
            assert all(found[label] == count for label in made.classes)
    stream = build_stream(made, 16)
    assert [domain.name for domain in stream.unseen] == ["s3", "s7", "s10"]
    assert len(stream) == 8
    assert [len(split) for _, split in stream.unseen[0].splits()] == [0, 0, 100]

    frames = plan_protocol("paper-core50", [tmp_path])
    assert frames.domains[0].counts("train")["cans"] == 7
    assert "s1 (train): 7 images of cans, the paper has 1039" in frames.differences


# ------------------------------------------------------------------ streams


def test_a_stream_follows_its_plan(
    open_dr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path))
    made = plan_protocol("open-dr", [open_dr])
    calls: list[tuple[int, int]] = []
    stream = build_stream(made, 16, lambda done, total: calls.append((done, total)))
    assert calls[-1] == (24, 24)
    assert stream.augmentation == find_protocol("open-dr").augmentation
    for domain, planned in zip(stream.domains, made.domains, strict=True):
        for kind, split in domain.splits():
            items = planned.in_split(kind)
            assert split.labels.tolist() == [made.classes.index(item.label) for item in items]
            for image, item in zip(split.images, items, strict=True):
                with Image.open(item.path) as file:
                    shade = torch.tensor(file.getpixel((0, 0)))
                assert torch.equal(image[:, 3, 3], shade.to(torch.uint8))
        # The splits are views of one cache per domain.
        storages = {split.images.untyped_storage().data_ptr() for _, split in domain.splits()}
        assert len(storages) == 1


# ------------------------------------------------------------------ own images


def test_own_folders(tmp_path: Path) -> None:
    for domain in ("02-van", "01-clinic"):
        for label in ("sick", "healthy"):
            for index in range(10):
                write_image(tmp_path / domain / label / f"{index}.png", index)
    for kind in SPLITS:
        for label in ("sick", "healthy"):
            write_image(tmp_path / "03-fixed" / kind / label / "1.png", 5)
    made = plan_folder(tmp_path)
    assert made.classes == ("healthy", "sick")
    assert [domain.name for domain in made.domains] == ["01-clinic", "02-van", "03-fixed"]
    assert made.domains[0].counts("train") == {"healthy": 8, "sick": 8}
    assert made.domains[0].counts("val") == {"healthy": 1, "sick": 1}
    assert {
        row.path.split("/")[1]: row.split for row in made.rows() if row.domain == "03-fixed"
    } == {kind: kind for kind in SPLITS}


def test_own_table(tmp_path: Path) -> None:
    lines = ["path,label,domain,group,split"]
    for domain, kinds in (("west", None), ("east", SPLITS)):
        for index in range(12):
            name = f"{domain}{index}.png"
            write_image(tmp_path / name, index)
            kind = kinds[index % 3] if kinds else ""
            lines.append(f"{name},{'ab'[index // 6]},{domain},{index // 2},{kind}")
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(lines))
    made = plan_table(table)
    assert (made.name, made.classes) == ("mine", ("a", "b"))
    assert [domain.name for domain in made.domains] == ["west", "east"]
    assert all(len(kinds) == 1 for kinds in splits_by_group(made.domains[0]).values())
    assert list(made.domains[1].splits) == list(SPLITS) * 4
    table.write_text("\n".join([*lines[:-1], "east11.png,b,east,5,"]))
    with pytest.raises(SodapError, match="1 of 12 images have no split"):
        plan_table(table)
    table.write_text("\n".join([*lines, lines[-1]]))
    with pytest.raises(SodapError, match=r"east11\.png is listed twice"):
        plan_table(table)


def write_clinics(folder: Path, patients: int = 40) -> Path:
    """A table of patients who come to both of two cameras, one to three images each time."""
    lines = ["path,label,domain,group"]
    for patient in range(patients):
        for number, camera in enumerate(("zeiss", "topcon")):
            for shot in range(1 + (patient + number) % 3):
                name = f"{camera}-{patient}-{shot}.png"
                write_image(folder / name, len(lines) % 256)
                lines.append(f"{name},{'ab'[patient % 2]},{camera},patient {patient}")
    (folder / "eyes.csv").write_text("\n".join(lines))
    return folder / "eyes.csv"


def test_a_patient_of_two_domains_is_in_one_split(tmp_path: Path) -> None:
    table = write_clinics(tmp_path)
    for seed in range(3):
        plan = plan_table(table, seed)
        assert plan.split_groups() == []
        for domain in plan.domains:
            assert set(domain.splits) == set(SPLITS)
            for split in SPLITS:
                assert set(domain.counts(split)) == {"a", "b"}
        # Saved splits are used as they are, even if they leak; loading them warns.
        rows = plan.rows()
        moved = [replace(row, split="train") if row.domain == "zeiss" else row for row in rows]
        again = plan_table(table, seed, saved=moved)
        assert again.rows() == sorted(moved, key=again.rows().index)
        held = {row.group for row in rows if row.domain == "topcon" and row.split != "train"}
        assert set(again.split_groups()) == held


def test_large_groups_that_make_splits_uneven_are_noted(tmp_path: Path) -> None:
    lines = ["path,label,domain,group"]
    lines += [f"{n}.png,{'ab'[n % 2]},one,{n if n < 6 else 'unknown'}" for n in range(100)]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    (note,) = (d for d in plan_table(tmp_path / "mine.csv").differences if "in test" in d)
    assert note.startswith("one: ")
    assert "instead of 10, because groups are kept together" in note


def test_no_images(tmp_path: Path) -> None:
    (tmp_path / "one/cat").mkdir(parents=True)
    with pytest.raises(SodapError, match="holds no images"):
        plan_folder(tmp_path)
    (tmp_path / "empty.csv").write_text("path,label,domain\n")
    with pytest.raises(SodapError, match="lists no images"):
        plan_table(tmp_path / "empty.csv")


# ------------------------------------------------------------------ real data


def counts(domain: PlannedDomain) -> tuple[int, ...]:
    return tuple(domain.counts()[label] for label in sorted(domain.counts()))


def test_real_retinas(shared: Path) -> None:
    made = plan_protocol("open-dr", [shared / "data"])
    assert [counts(domain) for domain in made.domains] == [  # NPDR, Normal, PDR
        (221 + 396 + 354, 906, 112),
        (25 + 168 + 93, 168, 62),
        (73 + 69 + 28, 74, 4),
    ]
    for domain in made.domains:
        assert all(len(kinds) == 1 for kinds in splits_by_group(domain).values())
        for label in made.classes:
            holders = {i.group or i.path for i in domain.items if i.label == label}
            present = [kind for kind in SPLITS if domain.counts(kind)[label]]
            assert len(present) == min(3, len(holders))
            if len(holders) > 20:
                share = domain.counts("train")[label] / domain.counts()[label]
                assert share == pytest.approx(0.8, abs=0.03)


def test_real_lesions(shared: Path) -> None:
    made = plan_protocol("open-skin", [shared / "data"])
    assert [counts(domain) for domain in made.domains] == [(560, 560), (1113, 1113), (400, 400)]
    for domain in made.domains:
        assert all(len(kinds) == 1 for kinds in splits_by_group(domain).values())
        for kind, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
            for label in made.classes:
                part = domain.counts(kind)[label] / domain.counts()[label]
                assert part == pytest.approx(share, abs=0.005)
