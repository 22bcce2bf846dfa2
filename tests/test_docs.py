"""What the documents say exists: names, options, files, and examples that run."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from pydantic import BaseModel

import sodap.methods.registry as method_registry
import sodap.streams.catalogue as source_registry
import sodap.streams.protocols as protocol_registry
import sodap.streams.registry as stream_registry
from sodap.drift import DriftSettings
from sodap.errors import SodapError
from sodap.learning import Learner, Training, load
from sodap.methods.registry import find_method
from sodap.methods.residual_sodap import ResidualSodapConfig
from sodap.streams import load_stream, make_plan
from sodap.streams.check import check_plan
from sodap.version import __version__

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("docs/**/*.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    for path in ROOT.glob(pattern)
)

every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)


def text_of(document: Path) -> str:
    return document.read_text("utf-8")


def prose_of(document: Path) -> str:
    """Without fenced blocks, whose backticks are not names and whose brackets are not links."""
    return re.sub(r"^(```|~~~).*?^\1\s*$", "", text_of(document), flags=re.M | re.S)


def quoted(document: Path) -> list[str]:
    """All that stands between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose_of(document))


def member(owner: Any, name: str) -> Any:
    """An attribute, a field of a model, or an annotated attribute of instances."""
    if hasattr(owner, name):
        return getattr(owner, name)
    if isinstance(owner, type) and issubclass(owner, BaseModel) and name in owner.model_fields:
        return owner.model_fields[name]
    for base in getattr(owner, "__mro__", ()):
        if name in vars(base).get("__annotations__", {}):
            return None
    raise AttributeError(f"{owner} has no {name}")


def resolve(dotted: str) -> Any:
    """Modules first: `sodap.prompting.entmax` is a file, but also a function of its package."""
    parts = dotted.split(".")
    path, found = parts[0], importlib.import_module(parts[0])
    rest = parts[1:]
    while rest and importlib.util.find_spec(f"{path}.{rest[0]}"):
        path = f"{path}.{rest.pop(0)}"
        found = importlib.import_module(path)
        if not hasattr(found, "__path__"):  # a file holds no further modules
            break
    owner: Any = found
    for name in rest:
        owner = member(owner, name)
    return owner


@every_document
def test_names_exist(document: Path) -> None:
    names = {name for name in quoted(document) if re.fullmatch(r"sodap(\.\w+)+", name)}
    unknown = []
    for name in sorted(names):
        try:
            resolve(name)
        except (AttributeError, ImportError):
            unknown.append(name)
    assert not unknown


@pytest.mark.parametrize(
    "name",
    [
        "sodap.prompting.entmax.nothing",
        "sodap.nothing",
        "sodap.drift.DriftSettings.windows",
        "sodap.learning.progress.StageProgress.worst",
    ],
)
def test_a_name_that_does_not_exist_is_found_out(name: str) -> None:
    with pytest.raises((AttributeError, ImportError)):
        resolve(name)


@pytest.mark.parametrize(
    "name",
    [
        "sodap.drift.DriftSettings.window",
        "sodap.learning.progress.StageProgress.best",
        "sodap.prompting.memory.MemoryBank.keys",
        "sodap.prompting.routing.Routing.joined",
    ],
)
def test_fields_and_properties_count_as_names(name: str) -> None:
    resolve(name)


@pytest.mark.parametrize("field", ResidualSodapConfig.model_fields)
def test_every_option_is_explained(field: str) -> None:
    """As a bare name, with a value, or at the end of a dotted path."""
    names = quoted(ROOT / "docs/paper.md")
    wanted = re.compile(rf"(sodap\.[\w.]+\.ResidualSodapConfig\.)?{field}(=\S+|\.…)?")
    assert any(wanted.fullmatch(name) for name in names)


@pytest.mark.parametrize("field", DriftSettings.model_fields)
def test_every_constant_of_drift_is_explained(field: str) -> None:
    names = quoted(ROOT / "docs/paper.md")
    wanted = re.compile(rf"(drift|sodap\.[\w.]+\.DriftSettings)\.{field}(=\S+)?")
    assert any(wanted.fullmatch(name) for name in names)


def test_stored_images_are_declared_in_the_documents() -> None:
    """docs/stored.md names every method: those that keep nothing, and those that keep images."""
    rows = re.findall(r"^\| (`.+`) \| (.+) \|$", text_of(ROOT / "docs/stored.md"), flags=re.M)
    stored = {name: what for names, what in rows for name in re.findall(r"`([^`]+)`", names)}
    methods = {name: find_method(name) for name in method_registry.BUILT_IN}
    assert methods.keys() <= stored.keys()
    for name, method in methods.items():
        assert (stored[name] == "nothing") == (method.stores == "nothing"), name
        assert ("images**" in stored[name]) == ("images" in method.stores), name


def test_the_scores_in_the_readme_follow_from_the_results() -> None:
    summary = json.loads((ROOT / "results/summary.json").read_text("utf-8"))
    head, *rows = re.findall(r"^\|(.+)\|$", text_of(ROOT / "README.md"), flags=re.M)
    streams = re.findall(r"`([^`]+)`", head)
    scores = [row for row in rows if re.search(r"\| 0\.\d{3}", row)]
    assert len(scores) >= 3
    for row in scores:
        method = re.findall(r"`([^`]+)`", row)[0]
        means = [summary[stream][method]["average_accuracy"]["mean"] for stream in streams]
        assert re.findall(r"\b0\.\d{3}\b", row) == [f"{mean:.3f}" for mean in means], method


@every_document
def test_links_and_images_exist(document: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", prose_of(document))
    targets = re.findall(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)", prose)
    targets += re.findall(r"""<(?:img|a|source)\b[^>]*?(?:src|srcset|href)=["']([^"']+)""", prose)
    local = [t for t in targets if not re.match(r"(\w+:|#|//)", t)]
    missing = [t for t in local if not (document.parent / t.split("#")[0]).exists()]
    assert not missing


# Paths of one machine, and package indexes that an installation need not use.
PRIVATE = re.compile(
    r"(?<![\w.~/-])/(?:work|root|tmp|home|mnt|Users)\b"
    r"|--(?:extra-)?index-url\b"
    r"|https?://\S*/simple\b"
)


@every_document
def test_no_document_names_a_machine_or_an_index(document: Path) -> None:
    assert not PRIVATE.findall(text_of(document))


def test_private_places_are_found() -> None:
    for place in ("see /home/x", "`/tmp`", "(/root/a)", "https://example.org/simple"):
        assert PRIVATE.search(place), place
    for fine in ("docs/work", "src/sodap/tmp", "https://example.org/tmp", "8/10"):
        assert not PRIVATE.search(fine), fine


# ------------------------------------------------------------------ the examples


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The block that follows `<!-- example: NAME -->`, run as a module of its own."""
    found = re.search(
        rf"<!-- example: {name} -->\n```python\n(.*?)^```$",
        text_of(ROOT / "CONTRIBUTING.md"),
        flags=re.M | re.S,
    )
    assert found, f"CONTRIBUTING.md has no example of a {name}"
    module = ModuleType(f"example_{name}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    # What the example registers is forgotten after the test.
    monkeypatch.setattr(method_registry, "_METHODS", dict(method_registry._METHODS))
    monkeypatch.setattr(stream_registry, "_FACTORIES", dict(stream_registry._FACTORIES))
    monkeypatch.setattr(source_registry, "_SOURCES", dict(source_registry._SOURCES))
    monkeypatch.setattr(protocol_registry, "_PROTOCOLS", dict(protocol_registry._PROTOCOLS))
    exec(compile(found[1], f"CONTRIBUTING.md ({name})", "exec"), vars(module))
    return module


def test_the_examples_learn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    example("stream", monkeypatch)
    stream = load_stream("shapes")
    assert [len(split) for _, split in stream.domains[0].splits()] == [80, 20, 40]
    assert torch.equal(stream.domains[1].test.images, load_stream("shapes").domains[1].test.images)

    example("method", monkeypatch)
    training = Training(epochs=1, batch_size=16)
    learner = Learner(stream.classes, method="anchored", training=training, device="cpu")
    stages = [learner.learn(domain) for domain in stream.domains]
    assert [list(stage.history[0]["losses"]) for stage in stages] == [["ce"], ["ce", "pull"]]
    assert [asset.images for asset in learner.stored()] == [0]

    example("check", monkeypatch).test_anchored()

    learner.save(tmp_path)
    images = stream.domains[0].test.images
    loaded = load(tmp_path, device="cpu").predict(images)
    assert torch.equal(loaded.probabilities, learner.predict(images).probabilities)


def test_the_example_of_a_data_set_of_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From files to a stream that is split by patient; a wrong label is an error with its line."""
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "wounds"
    (home / "images").mkdir(parents=True)
    lines = ["file,state,ward,patient"]
    for number in range(60):  # three images of each patient, ten patients in each ward
        Image.new("RGB", (20, 20), (4 * number, 99, 200)).save(home / f"images/{number}.png")
        ward, patient = ("surgery", "geriatrics")[number // 30], number // 3
        lines.append(f"{number}.png,{patient % 3},{ward},p{patient}")
    (home / "labels.csv").write_text("\n".join(lines))

    example("source", monkeypatch)
    stream = load_stream("wards", 16, data=str(tmp_path))
    assert [domain.name for domain in stream.domains] == ["surgery", "geriatrics"]
    assert len(stream.rows) == 60
    assert all(len(split) for domain in stream.domains for _, split in domain.splits())
    splits_of = {row.group: set[str]() for row in stream.rows}
    for row in stream.rows:
        splits_of[row.group].add(row.split)
        assert row.label == ("closed" if row.original == "0" else "open")
    assert len(splits_of) == 20
    assert all(len(splits) == 1 for splits in splits_of.values())
    assert not check_plan(make_plan("wards", data=str(tmp_path))).leaks

    (home / "labels.csv").write_text("\n".join([*lines, "60.png,7,surgery,p20"]))
    with pytest.raises(SodapError, match=r"labels\.csv, line 62: the label '7'"):
        load_stream("wards", 16, data=str(tmp_path))


# ------------------------------------------------------------------ licence and citation


def test_the_licence_is_whole() -> None:
    licence = text_of(ROOT / "LICENSE")
    assert "Version 2.0, January 2004" in licence
    assert "9. Accepting Warranty or Additional Liability." in licence
    assert "APPENDIX: How to apply the Apache License to your work." in licence


def test_the_citation_names_the_package_and_the_paper() -> None:
    citation = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    assert citation["authors"] == [{"name": "The sodap authors"}]
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Oh", "Bae", "Shin"]
    assert paper["identifiers"][0]["value"] == "arXiv:2603.12816"
