"""Small copies of each data set, with the layout, names and columns of the original."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import pytest
from PIL import Image, ImageStat

from sodap.errors import SodapError
from sodap.streams.catalogue import find_source, read_source, source_names
from sodap.streams.sources.retinopathy import CLASS_OF_GRADE


class Expected(NamedTuple):
    """An item, with its path below the data set's folder."""

    path: str
    label: str
    original: str
    group: str | None = None
    domain: str | None = None
    split: str | None = None


def tiny_image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 12), (90, 40, 20)).save(file, kind)
    return file.getvalue()


TINY = {".png": tiny_image("PNG"), ".jpg": tiny_image("JPEG"), ".jpeg": tiny_image("JPEG")}


def put_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TINY[path.suffix])


def put_text(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def put_sheet(path: Path, *rows: Iterable[object]) -> None:
    """Write a spreadsheet as programs do: shared strings, inline numbers, no empty cells."""
    strings: list[str] = []
    lines = []
    for number, row in enumerate(rows, start=1):
        cells = []
        for letter, value in zip("ABCDEFG", row, strict=False):
            place = f'r="{letter}{number}"'
            if isinstance(value, str):
                strings.append(value)
                cells.append(f'<c {place} t="s"><v>{len(strings) - 1}</v></c>')
            elif value is not None:
                cells.append(f"<c {place}><v>{value}</v></c>")
        lines.append(f'<row r="{number}">{"".join(cells)}</row>')
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    shared = "".join(f"<si><t>{escape(string)}</t></si>" for string in strings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "xl/worksheets/sheet1.xml",
            f"<worksheet {space}><sheetData>{''.join(lines)}</sheetData></worksheet>",
        )
        archive.writestr("xl/sharedStrings.xml", f"<sst {space}>{shared}</sst>")


# ------------------------------------------------------------------ the trees
# Each function writes the label files of a data set and returns the items to expect.


def aptos2019(home: Path) -> list[Expected]:
    put_text(
        home / "train.csv",
        "id_code,diagnosis",
        *("000c1434d8d7,2", "001639a390f0,4", "0024cdab0c1e,1", "002c21358ce6,0", "005b95c28852,3"),
    )
    put_text(home / "test.csv", "id_code", "0005cfc8afb6")
    return [
        Expected("train_images/000c1434d8d7.png", "NPDR", "2"),
        Expected("train_images/001639a390f0.png", "PDR", "4"),
        Expected("train_images/0024cdab0c1e.png", "NPDR", "1"),
        Expected("train_images/002c21358ce6.png", "Normal", "0"),
        Expected("train_images/005b95c28852.png", "NPDR", "3"),
    ]


def ddr(home: Path) -> list[Expected]:
    grading = home / "DR_grading"
    put_text(grading / "train.txt", "007-0004-000.jpg 0", "007-0007-000.jpg 4", "007-1.jpg 5")
    put_text(grading / "valid.txt", "20170413102628830.jpg 2", "")
    put_text(grading / "test.txt", "007-0025-000.jpg 1", "007-0026-000.jpg 3")
    put_image(grading / "train/007-1.jpg")
    return [
        Expected("DR_grading/test/007-0025-000.jpg", "NPDR", "1", split="test"),
        Expected("DR_grading/test/007-0026-000.jpg", "NPDR", "3", split="test"),
        Expected("DR_grading/train/007-0004-000.jpg", "Normal", "0", split="train"),
        Expected("DR_grading/train/007-0007-000.jpg", "PDR", "4", split="train"),
        Expected("DR_grading/valid/20170413102628830.jpg", "NPDR", "2", split="val"),
    ]


def drd(home: Path) -> list[Expected]:
    put_text(
        home / "trainLabels.csv",
        *("image,level", "10_left,0", "10_right,0", "13_left,4", "17_right,1"),
    )
    return [
        Expected("train/10_left.jpeg", "Normal", "0", "10"),
        Expected("train/10_right.jpeg", "Normal", "0", "10"),
        Expected("train/13_left.jpeg", "PDR", "4", "13"),
        Expected("train/17_right.jpeg", "NPDR", "1", "17"),
    ]


REGULAR_COLUMNS = (
    "patient_id,image_id,image_path,Overall quality,left_eye_DR_Level,right_eye_DR_Level,"
    "patient_DR_Level,Clarity,Field definition,Artifact"
)


def deepdrid(home: Path) -> list[Expected]:
    regular = home / "regular_fundus_images"
    put_text(
        regular / "regular-fundus-training/regular-fundus-training.csv",
        REGULAR_COLUMNS,
        r"4,4_l1,\regular-fundus-training\4\4_l1.jpg,0,3,,4,6,6,8",
        r"4,4_r1,\regular-fundus-training\4\4_r1.jpg,0,,4,4,8,6,6",
        # Named as a right eye, graded as a left one: this row is in the authors' file.
        r"56,56_r3,\regular-fundus-training\56\56_r3.jpg,0,1,,1,10,8,1",
    )
    put_text(
        regular / "regular-fundus-validation/regular-fundus-validation.csv",
        REGULAR_COLUMNS,
        r"265,265_l1,\regular-fundus-validation\265\265_l1.jpg,1,0,,0,10,8,0",
    )
    test = regular / "Online-Challenge1&2-Evaluation"
    put_sheet(test / "Challenge1_labels.xlsx", ["image_id", "DR_Levels"], ["347_l1", 2])
    put_text(test / "Challenge1_upload.csv", "image_id,DR_Level", "347_l1,")
    train, val = "regular-fundus-training/Images", "regular-fundus-validation/Images"
    top = "regular_fundus_images"
    return [
        Expected(f"{top}/{test.name}/Images/347/347_l1.jpg", "NPDR", "2", "347", split="test"),
        Expected(f"{top}/{train}/4/4_l1.jpg", "NPDR", "3", "4", split="train"),
        Expected(f"{top}/{train}/4/4_r1.jpg", "PDR", "4", "4", split="train"),
        Expected(f"{top}/{train}/56/56_r3.jpg", "NPDR", "1", "56", split="train"),
        Expected(f"{top}/{val}/265/265_l1.jpg", "Normal", "0", "265", split="val"),
    ]


def deepdrid_uwf(home: Path) -> list[Expected]:
    wide = home / "ultra-widefield_images"
    columns = "patient_id,image_id,image_path,DR_level,position"
    put_text(
        wide / "ultra-widefield-training/ultra-widefield-training.csv",
        columns,
        r"31,31_l3,ultra-widefield-training\31\31_l3.jpg,2,left_eye",
        r"31,31_r1,ultra-widefield-training\31\31_r1.jpg,5,right_eye",
    )
    put_text(
        wide / "ultra-widefield-validation/ultra-widefield-validation.csv",
        columns,
        r"68,68_l1,ultra-widefield-validation\68\68_l1.jpg,4,left_eye",
    )
    put_sheet(
        wide / "Online-Challenge3-Evaluation/Challenge3_labels.xlsx",
        *(["image_id", "UWF_DR_Levels"], ["58_l2", 0], ["100_l4", 5]),
    )
    top = "ultra-widefield_images"
    return [
        Expected(
            f"{top}/Online-Challenge3-Evaluation/Images/58/58_l2.jpg",
            *("Normal", "0", "58"),
            split="test",
        ),
        Expected(
            f"{top}/ultra-widefield-training/Images/31/31_l3.jpg",
            *("NPDR", "2", "31"),
            split="train",
        ),
        Expected(
            f"{top}/ultra-widefield-validation/Images/68/68_l1.jpg",
            *("PDR", "4", "68"),
            split="val",
        ),
    ]


def idrid(home: Path) -> list[Expected]:
    truths = home / "B. Disease Grading/2. Groundtruths"
    columns = "Image name,Retinopathy grade,Risk of macular edema "
    put_text(  # the authors' training file has empty columns at the end
        truths / "a. IDRiD_Disease Grading_Training Labels.csv",
        *(f"{columns},,,,,,,,,", "IDRiD_001,3,2,,,,,,,,,", "IDRiD_002,0,0,,,,,,,,,"),
    )
    put_text(truths / "b. IDRiD_Disease Grading_Testing Labels.csv", columns, "IDRiD_001,4,0")
    images = "B. Disease Grading/1. Original Images"
    return [
        Expected(f"{images}/a. Training Set/IDRiD_001.jpg", "NPDR", "3", split="train"),
        Expected(f"{images}/a. Training Set/IDRiD_002.jpg", "Normal", "0", split="train"),
        Expected(f"{images}/b. Testing Set/IDRiD_001.jpg", "PDR", "4", split="test"),
    ]


def isic2020(home: Path) -> list[Expected]:
    put_text(
        home / "train.csv",
        "image_name,patient_id,sex,age_approx,anatom_site_general_challenge,diagnosis,"
        "benign_malignant,target",
        "ISIC_2637011,IP_7279968,male,45.0,head/neck,unknown,benign,0",
        "ISIC_0149568,IP_0962375,female,55.0,upper extremity,melanoma,malignant,1",
    )
    return [
        Expected("train/ISIC_0149568.jpg", "malignant", "1", "IP_0962375"),
        Expected("train/ISIC_2637011.jpg", "benign", "0", "IP_7279968"),
    ]


def ham10000(home: Path) -> list[Expected]:
    put_text(
        home / "HAM10000_metadata.csv",
        "lesion_id,image_id,dx,dx_type,age,sex,localization",
        "HAM_0000118,ISIC_0027419,bkl,histo,80.0,male,scalp",
        "HAM_0000118,ISIC_0031633,bkl,histo,80.0,male,scalp",
        "HAM_0000871,ISIC_0025964,mel,histo,40.0,female,chest",
        "HAM_0002730,ISIC_0029000,bcc,histo,,unknown,unknown",
    )
    return [
        Expected("HAM10000_images_part_1/ISIC_0025964.jpg", "malignant", "mel", "HAM_0000871"),
        Expected("HAM10000_images_part_1/ISIC_0027419.jpg", "benign", "bkl", "HAM_0000118"),
        Expected("HAM10000_images_part_1/ISIC_0029000.jpg", "benign", "bcc", "HAM_0002730"),
        Expected("HAM10000_images_part_2/ISIC_0031633.jpg", "benign", "bkl", "HAM_0000118"),
    ]


def derm7pt(home: Path) -> list[Expected]:
    put_text(
        home / "meta/meta.csv",
        "case_num,diagnosis,seven_point_score,pigment_network,streaks,pigmentation,"
        "regression_structures,dots_and_globules,blue_whitish_veil,vascular_structures,"
        "level_of_diagnostic_difficulty,elevation,location,sex,management,clinic,derm,case_id,"
        "notes",
        *(
            f"{number},{diagnosis},0,absent,absent,absent,absent,absent,absent,absent,low,flat,"
            f'back,male,excision,NEL/NEL02{number}.JPG,NEL/Nel02{number}.jpg,,"a note, with comma"'
            for number, diagnosis in enumerate(
                ["basal cell carcinoma", "melanoma (in situ)", "melanosis", "melanoma"], start=1
            )
        ),
    )
    put_text(home / "meta/train_indexes.csv", "indexes", "0", "3")
    put_text(home / "meta/valid_indexes.csv", "indexes", "1")
    put_text(home / "meta/test_indexes.csv", "indexes", "2")
    return [
        Expected("images/NEL/Nel021.jpg", "benign", "basal cell carcinoma", "1", split="train"),
        Expected("images/NEL/Nel022.jpg", "malignant", "melanoma (in situ)", "2", split="val"),
        Expected("images/NEL/Nel023.jpg", "benign", "melanosis", "3", split="test"),
        Expected("images/NEL/Nel024.jpg", "malignant", "melanoma", "4", split="train"),
    ]


def isic2017(home: Path) -> list[Expected]:
    columns = "image_id,melanoma,seborrheic_keratosis"
    labels = "ISIC-2017_{}_Part3_GroundTruth.csv"
    put_text(
        home / labels.format("Training"), columns, "ISIC_0000002,1.0,0.0", "ISIC_0000000,0.0,0.0"
    )
    put_text(home / labels.format("Validation"), columns, "ISIC_0001769,0.0,1.0")
    put_text(home / labels.format("Test_v2"), columns, "ISIC_0012086,1.0,0.0")
    return [
        Expected("ISIC-2017_Test_v2_Data/ISIC_0012086.jpg", "malignant", "1", split="test"),
        Expected("ISIC-2017_Training_Data/ISIC_0000000.jpg", "benign", "0", split="train"),
        Expected("ISIC-2017_Training_Data/ISIC_0000002.jpg", "malignant", "1", split="train"),
        Expected("ISIC-2017_Validation_Data/ISIC_0001769.jpg", "benign", "0", split="val"),
    ]


def core50(home: Path) -> list[Expected]:
    return [
        Expected(
            f"s{session}/o{thing}/C_{session:02}_{thing:02}_{frame:03}.png",
            *(label, f"o{thing}", f"s{session}/o{thing}", f"s{session}"),
        )
        for session in (1, 11, 2)  # in the order of the names
        for thing, label in ((1, "plug adapters"), (5, "plug adapters"), (50, "remote controls"))
        for frame in (0, 1)
    ]


def pacs(home: Path) -> list[Expected]:
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    return [
        Expected(f"kfold/{domain}/{label}/pic_{number:03}.{suffix}", label, label, domain=domain)
        for domain, suffix in (
            ("art_painting", "jpg"),
            ("cartoon", "jpg"),
            ("photo", "jpg"),
            ("sketch", "png"),
        )
        for label in classes
        for number in (1, 2)
    ]


def own_folder(home: Path) -> list[Expected]:
    return [
        Expected("01-clinic/cat/a.jpg", "cat", "cat", domain="01-clinic"),
        Expected("01-clinic/dog/b.jpg", "dog", "dog", domain="01-clinic"),
        Expected("02-van/test/cat/c.png", "cat", "cat", domain="02-van", split="test"),
        Expected("02-van/train/dog/d.png", "dog", "dog", domain="02-van", split="train"),
    ]


def own_table(home: Path) -> list[Expected]:
    put_text(
        home / "table.csv",
        "path,label,domain,group,split",
        "images/b.png,dog,van,,test",
        "images/a.png,cat,clinic,p1,",
    )
    return [
        Expected("images/a.png", "cat", "cat", "p1", "clinic"),
        Expected("images/b.png", "dog", "dog", None, "van", "test"),
    ]


TREES: dict[str, Callable[[Path], list[Expected]]] = {
    "aptos2019": aptos2019,
    "core50": core50,
    "core50_sample": core50,
    "ddr": ddr,
    "deepdrid": deepdrid,
    "deepdrid_uwf": deepdrid_uwf,
    "derm7pt": derm7pt,
    "drd": drd,
    "folder": own_folder,
    "ham10000": ham10000,
    "idrid": idrid,
    "isic2017": isic2017,
    "isic2020": isic2020,
    "pacs": pacs,
    "table": own_table,
}

every_source = pytest.mark.parametrize("name", source_names())


def build(name: str, root: Path) -> list[Expected]:
    """Write the data set with its images to ROOT/NAME."""
    expected = TREES[name](root / name)
    for item in expected:
        put_image(root / name / item.path)
    return expected


def seen(name: str, root: Path) -> list[Expected]:
    home = root / name
    return [
        Expected(
            item.path.relative_to(home).as_posix(),
            *(item.label, item.original, item.group, item.domain, item.split),
        )
        for item in read_source(name, [root])
    ]


# ------------------------------------------------------------------ all data sets


@every_source
def test_the_published_layout_is_read(name: str, tmp_path: Path) -> None:
    expected = build(name, tmp_path)
    assert seen(name, tmp_path) == expected
    for item in read_source(name, [tmp_path]):
        with Image.open(item.path) as image:
            assert image.size == (16, 12)


@every_source
def test_the_order_does_not_depend_on_the_disk(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = build(name, tmp_path)

    class Backwards:
        def __init__(self, folder: Any) -> None:
            with os_scandir(folder) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return iter(self.entries)

        def __exit__(self, *error: object) -> None:
            pass

    os_scandir = os.scandir
    monkeypatch.setattr(os, "scandir", Backwards)
    assert seen(name, tmp_path) == expected


@every_source
def test_every_source_is_described(name: str) -> None:
    source = find_source(name)
    assert source.name == name
    for text in (source.title, source.licence, source.citation, source.advice):
        assert text
        assert "\n" not in text
    assert name in source.advice
    assert len(set(source.classes)) == len(source.classes)
    assert all(count > 0 for count in source.totals.values())


@every_source
def test_the_error_for_a_missing_data_set_has_advice(name: str, tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(SodapError) as error:
        read_source(name, roots)
    assert find_source(name).advice in str(error.value)
    for root in roots:
        assert str(root / name) in str(error.value)


@every_source
def test_an_empty_folder_is_an_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SodapError, match=str(tmp_path / name)):
        read_source(name, [tmp_path])


# Data sets with label files; in the others, the files themselves are the list.
LISTED = [
    name for name in source_names() if name not in ("core50", "core50_sample", "folder", "pacs")
]


@pytest.mark.parametrize("name", LISTED)
def test_missing_images_are_counted(name: str, tmp_path: Path) -> None:
    expected = build(name, tmp_path)
    gone = tmp_path / name / expected[0].path
    gone.unlink()
    with pytest.raises(SodapError, match=rf"^1 of {len(expected)} images .* are missing") as error:
        read_source(name, [tmp_path])
    assert gone.name in str(error.value)


LABEL_COLUMNS = {
    *("diagnosis", "level", "left_eye_DR_Level", "right_eye_DR_Level", "DR_level"),
    *("Retinopathy grade", "target", "dx", "melanoma"),
}


def label_files(home: Path) -> list[Path]:
    """Text files with a label in each line."""
    others = ("test.csv", "Challenge1_upload.csv")
    return [
        path
        for path in sorted(home.rglob("*"))
        if path.suffix in (".csv", ".txt") and "index" not in path.name and path.name not in others
    ]


@pytest.mark.parametrize("name", [name for name in LISTED if name != "table"])
def test_errors_name_the_line_of_a_wrong_label_or_header(name: str, tmp_path: Path) -> None:
    """For each label file: an additional line with an unknown label, then a wrong header."""
    build(name, tmp_path)
    files = label_files(tmp_path / name)
    assert files
    for file in files:
        whole = file.read_text()
        lines = list(csv.reader(io.StringIO(whole)))
        if file.suffix == ".txt":
            wrong = "x.jpg 9"
        else:
            assert LABEL_COLUMNS & set(lines[0])
            cells = zip(lines[0], lines[-1], strict=False)
            wrong = ",".join("9" if c in LABEL_COLUMNS else f'"{v}"' for c, v in cells)
        file.write_text(whole + wrong + "\n")
        number = len(whole.splitlines()) + 1
        with pytest.raises(SodapError, match=rf"line {number}: the label '9'") as error:
            read_source(name, [tmp_path])
        assert str(file) in str(error.value)
        if file.suffix == ".csv":
            file.write_text("X" + whole.upper())
            with pytest.raises(SodapError, match=r"line 1: there is no column '") as error:
                read_source(name, [tmp_path])
            assert str(file) in str(error.value)
        file.write_text(whole)
    read_source(name, [tmp_path])


# ------------------------------------------------------------------ variants of the layouts


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ddr", "DR_grading", "DDR-dataset/DR_grading"),
        ("idrid", "B. Disease Grading/1. Original Images", "1. Original Images"),
        ("isic2020", "train.csv", "ISIC_2020_Training_GroundTruth.csv"),
        ("isic2020", "train.csv", "ISIC_2020_Training_GroundTruth_v2.csv"),
        ("isic2020", "train", "jpeg/train"),
        ("isic2020", "train", "ISIC_2020_Training_JPEG/train"),
        ("ham10000", "HAM10000_metadata.csv", "HAM10000_metadata"),
        ("pacs", "kfold", "."),
        ("core50", ".", "core50_128x128"),
        ("core50", ".", "core50_350x350"),
        ("derm7pt", ".", "release_v0"),
    ],
)
def test_variants_of_the_archives(name: str, before: str, after: str, tmp_path: Path) -> None:
    expected = build(name, tmp_path)
    home, other = tmp_path / name, tmp_path / "other" / name
    other.mkdir(parents=True)
    if after == ".":
        (home / before).rename(other.with_name("moved"))
        other.rmdir()
        other.with_name("moved").rename(other)
    elif before == ".":
        home.rename(other / after)
    else:
        for part in home.iterdir():
            part.rename(other / part.name)
        (other / after).parent.mkdir(parents=True, exist_ok=True)
        (other / before).rename(other / after)
        if name == "idrid":
            truths = "2. Groundtruths"
            (other / "B. Disease Grading" / truths).rename(other / truths)
    assert [item[1:] for item in seen(name, tmp_path / "other")] == [item[1:] for item in expected]


def test_ham10000_with_the_tab_file_of_dataverse(tmp_path: Path) -> None:
    expected = build("ham10000", tmp_path)
    labels = tmp_path / "ham10000/HAM10000_metadata.csv"
    quoted = [
        "\t".join(f'"{cell}"' for cell in line.split(","))
        for line in labels.read_text().splitlines()
    ]
    put_text(labels.with_suffix(".tab"), *quoted)
    labels.unlink()
    assert seen("ham10000", tmp_path) == expected


def test_core50_has_fifty_objects(tmp_path: Path) -> None:
    put_image(tmp_path / "core50/s1/o51/C_01_51_000.png")
    with pytest.raises(SodapError, match="o1 to o50"):
        read_source("core50", [tmp_path])


def test_pacs_needs_all_classes(tmp_path: Path) -> None:
    build("pacs", tmp_path)
    for image in (tmp_path / "pacs/kfold/sketch/house").iterdir():
        image.unlink()
    (tmp_path / "pacs/kfold/sketch/house").rmdir()
    with pytest.raises(SodapError, match=r"sketch does not have the layout .*house"):
        read_source("pacs", [tmp_path])


def test_drd_needs_the_eye_in_the_name(tmp_path: Path) -> None:
    put_text(tmp_path / "drd/trainLabels.csv", "image,level", "10_left,0", "10,0")
    with pytest.raises(SodapError, match="line 3: the image '10' is not named"):
        read_source("drd", [tmp_path])


def test_ddr_lines_have_a_file_and_a_grade(tmp_path: Path) -> None:
    build("ddr", tmp_path)
    put_text(tmp_path / "ddr/DR_grading/valid.txt", "a.jpg 0", "b.jpg")
    with pytest.raises(SodapError, match=r"valid.txt, line 2: expected a file name and a grade"):
        read_source("ddr", [tmp_path])


def test_a_row_without_a_grade_is_an_error(tmp_path: Path) -> None:
    build("deepdrid", tmp_path)
    file = tmp_path / "deepdrid/regular_fundus_images/regular-fundus-validation"
    file = file / "regular-fundus-validation.csv"
    put_text(file, REGULAR_COLUMNS, "1,1_l1,x,0,,,0,1,1,1")
    with pytest.raises(SodapError, match="line 2: there is no value for left_eye_DR_Level or"):
        read_source("deepdrid", [tmp_path])


# ------------------------------------------------------------------ the compact layout


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        (
            "deepdrid",
            ["image,grade,patient,quality,source", "1_l1.jpg,0,1,0,Nicheng", "9_r2.jpg,4,9,1,"],
            [
                Expected("images/1_l1.jpg", "Normal", "0", "1"),
                Expected("images/9_r2.jpg", "PDR", "4", "9"),
            ],
        ),
        (
            "deepdrid_uwf",
            ["image,grade,patient", "uwf_2_r1.jpg,3,2"],
            [Expected("images/uwf_2_r1.jpg", "NPDR", "3", "2")],
        ),
        (
            "idrid",
            ["image,grade,official_split", "test_IDRiD_1.jpg,0,test", "train_IDRiD_1.jpg,3,train"],
            [
                Expected("images/test_IDRiD_1.jpg", "Normal", "0", split="test"),
                Expected("images/train_IDRiD_1.jpg", "NPDR", "3", split="train"),
            ],
        ),
        (
            "isic2020",
            ["image,malignant,diagnosis,patient", "ISIC_1.jpg,1,melanoma,IP_1"],
            [Expected("images/ISIC_1.jpg", "malignant", "1", "IP_1")],
        ),
        (
            "ham10000",
            ["image,dx,dx_type,lesion", "ISIC_1.jpg,akiec,histo,HAM_1"],
            [Expected("images/ISIC_1.jpg", "benign", "akiec", "HAM_1")],
        ),
        (
            "isic2017",
            ["image,malignant,official_split", "a.jpg,0,training", "b.jpg,1,validation"],
            [
                Expected("images/a.jpg", "benign", "0", split="train"),
                Expected("images/b.jpg", "malignant", "1", split="val"),
            ],
        ),
    ],
)
def test_compact_copies(
    name: str, lines: list[str], expected: list[Expected], tmp_path: Path
) -> None:
    put_text(tmp_path / name / "labels.csv", *lines)
    for item in expected:
        put_image(tmp_path / name / item.path)
    assert seen(name, tmp_path) == expected


def test_a_compact_copy_with_an_unknown_split(tmp_path: Path) -> None:
    put_text(tmp_path / "idrid/labels.csv", "image,grade,official_split", "a.jpg,0,holdout")
    with pytest.raises(SodapError, match="line 2: the split 'holdout' is not one of train"):
        read_source("idrid", [tmp_path])


# ------------------------------------------------------------------ complete data sets


def spread(totals: dict[str, int]) -> list[str]:
    """Every label, repeated as often as it occurs."""
    return [label for label, count in totals.items() for _ in range(count)]


def counts(name: str, root: Path) -> tuple[int, ...]:
    items = find_source(name).read(root / name)
    assert Counter(item.original for item in items) == find_source(name).totals
    labels = Counter(item.label for item in items)
    return tuple(labels[label] for label in find_source(name).classes)


def test_counts_of_aptos2019_agree_with_the_paper(tmp_path: Path) -> None:
    grades = spread({"0": 1805, "1": 370, "2": 999, "3": 193, "4": 295})
    rows = [f"{number:012x},{grade}" for number, grade in enumerate(grades)]
    put_text(tmp_path / "aptos2019/train.csv", "id_code,diagnosis", *rows)
    images = tmp_path / "aptos2019/train_images"
    images.mkdir()
    for number in range(len(grades)):
        (images / f"{number:012x}.png").touch()
    assert counts("aptos2019", tmp_path) == (1805, 1562, 295)
    assert len(read_source("aptos2019", [tmp_path])) == 3662


def test_counts_of_ddr_agree_with_the_paper(tmp_path: Path) -> None:
    grades = spread({"0": 6266, "1": 630, "2": 4477, "3": 236, "4": 913, "5": 1151})
    lines = [f"007-{number:05}.jpg {grade}" for number, grade in enumerate(grades)]
    assert len(lines) == 13673
    for split, start, end in (("train", 0, 6835), ("valid", 6835, 9568), ("test", 9568, 13673)):
        put_text(tmp_path / f"ddr/DR_grading/{split}.txt", *lines[start:end])
    assert counts("ddr", tmp_path) == (6266, 5343, 913)


def test_counts_of_drd_before_undersampling(tmp_path: Path) -> None:
    grades = spread({"0": 25810, "1": 2443, "2": 5292, "3": 873, "4": 708})
    rows = [
        f"{number // 2}_{('left', 'right')[number % 2]},{grade}"
        for number, grade in enumerate(grades)
    ]
    put_text(tmp_path / "drd/trainLabels.csv", "image,level", *rows)
    assert counts("drd", tmp_path) == (25810, 8608, 708)
    items = find_source("drd").read(tmp_path / "drd")
    assert len({item.group for item in items}) == 17563


def test_melanomas_of_ham10000_and_derm7pt(tmp_path: Path) -> None:
    diagnoses = spread(dict(find_source("ham10000").totals))
    rows = [f"HAM_{n // 2},ISIC_{n:07},{dx}" for n, dx in enumerate(diagnoses)]
    put_text(tmp_path / "ham10000/HAM10000_metadata.csv", "lesion_id,image_id,dx", *rows)
    assert counts("ham10000", tmp_path) == (10015 - 1113, 1113)

    diagnoses = spread(dict(find_source("derm7pt").totals))
    rows = [f"{n},{diagnosis},A/{n}.jpg" for n, diagnosis in enumerate(diagnoses)]
    put_text(tmp_path / "derm7pt/meta/meta.csv", "case_num,diagnosis,derm", *rows)
    for split in ("train", "valid", "test"):
        put_text(tmp_path / f"derm7pt/meta/{split}_indexes.csv", "indexes")
    assert counts("derm7pt", tmp_path) == (1011 - 252, 252)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        *(("aptos2019", 3662), ("ddr", 12522), ("drd", 35126), ("deepdrid", 2000)),
        *(("deepdrid_uwf", 248), ("idrid", 516), ("isic2020", 33126), ("ham10000", 10015)),
        *(("derm7pt", 1011), ("isic2017", 2750), ("pacs", 9991)),
    ],
)
def test_totals_add_up(name: str, total: int) -> None:
    assert sum(find_source(name).totals.values()) == total


# ------------------------------------------------------------------ real files


@pytest.mark.parametrize(
    ("name", "originals", "groups"),
    [
        ("deepdrid", {"0": 906, "1": 221, "2": 396, "3": 354, "4": 112}, 499),
        ("deepdrid_uwf", {"0": 74, "1": 73, "2": 69, "3": 28, "4": 4}, 126),
        ("idrid", {"0": 168, "1": 25, "2": 168, "3": 93, "4": 62}, None),
        ("isic2020", {"0": 560, "1": 584}, 777),
        (
            "ham10000",
            {"nv": 2236, "mel": 1113, "bkl": 381, "bcc": 184, "akiec": 116, "vasc": 45, "df": 38},
            3339,
        ),
        ("isic2017", {"0": 1746, "1": 400}, None),
    ],
)
def test_real_copies(
    name: str, originals: dict[str, int], groups: int | None, shared: Path
) -> None:
    items = read_source(name, [shared / "data"])
    assert Counter(item.original for item in items) == originals
    if groups is None:
        assert {item.group for item in items} == {None}
    else:
        assert len({item.group for item in items}) == groups
    for original, count in originals.items():
        assert count <= find_source(name).totals[original]
    for item in items[:: len(items) // 5]:
        with Image.open(item.path) as image:
            assert ImageStat.Stat(image.convert("L")).stddev[0] > 1


def test_real_splits(shared: Path) -> None:
    def splits(name: str) -> Counter[str | None]:
        return Counter(item.split for item in read_source(name, [shared / "data"]))

    assert splits("idrid") == {"train": 413, "test": 103}
    assert splits("isic2017") == {"train": 1996, "val": 150}


def test_real_frames_of_core50(shared: Path) -> None:
    items = read_source("core50_sample", [shared / "data"])
    assert len(items) == 90
    assert len({item.domain for item in items}) == 9
    assert {item.label for item in items} == set(find_source("core50").classes)
    for item in items:  # the file's name repeats session and object
        session, thing = item.path.stem.split("_")[1:3]
        assert item.domain == f"s{int(session)}"
        assert item.original == f"o{int(thing)}"
        assert item.group == f"s{int(session)}/o{int(thing)}"


def test_the_lists_of_the_paper_agree_with_the_totals(shared: Path) -> None:
    """The lists of the paper's authors hold every graded image of APTOS and DDR once."""
    splits = shared / "paper" / "splits"
    if not splits.is_dir():
        pytest.skip(f"no split lists at {splits}")
    for prefix, name in (("aptos", "aptos2019"), ("ddr", "ddr")):
        grades: Counter[str] = Counter()
        for kind in ("train", "val", "test"):
            lines = (splits / f"{prefix}_{kind}.csv").read_text().split()[1:]
            grades.update(line.split(",")[1] for line in lines)
        assert grades == find_source(name).totals
        assert set(grades) == set(CLASS_OF_GRADE)
