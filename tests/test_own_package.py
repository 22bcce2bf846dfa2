"""A package of one's own adds a method, a data set and a stream: the examples of CONTRIBUTING."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import sodap
import sodap.methods.registry as method_registry
import sodap.streams.catalogue as source_registry
import sodap.streams.protocols as protocol_registry
import sodap.streams.registry as stream_registry
from sodap.cli.main import app
from sodap.errors import SodapError
from sodap.learning import Learner
from sodap.plugins import BrokenPluginWarning, load_plugins
from sodap.streams import load_stream, make_plan, stream_names
from sodap.testing import check_method

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
MODULES = {"shrunken": "closed form", "wounds": "source", "shapes": "stream"}


def block(name: str) -> str:
    """The code that follows `<!-- example: NAME -->`."""
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)^```$", TEXT, flags=re.M | re.S)
    assert found, f"CONTRIBUTING.md has no example '{name}'"
    return found[1]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package `my_clinic` as pip installs it."""
    folder = tmp_path / "site"
    (folder / "my_clinic").mkdir(parents=True)
    (folder / "my_clinic" / "__init__.py").touch()
    for module, name in MODULES.items():
        (folder / "my_clinic" / f"{module}.py").write_text(block(name))
    project = tomllib.loads(block("package"))["project"]
    info = folder / f"my_clinic-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package on the path of this process; what it registers is forgotten after the test."""
    monkeypatch.syspath_prepend(site)
    for registry, name in (
        (method_registry, "_METHODS"),
        (stream_registry, "_FACTORIES"),
        (source_registry, "_SOURCES"),
        (protocol_registry, "_PROTOCOLS"),
    ):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    load_plugins.cache_clear()
    yield site
    for name in [each for each in sys.modules if each.startswith("my_clinic")]:
        del sys.modules[name]
    load_plugins.cache_clear()


@pytest.fixture
def wounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data set `wounds`: three images of each of twenty patients."""
    monkeypatch.setenv("SODAP_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "data" / "wounds"
    (home / "images").mkdir(parents=True)
    lines = ["file,state,ward,patient"]
    for number in range(60):
        Image.new("RGB", (20, 20), (4 * number, 99, 200)).save(home / f"images/{number}.png")
        ward, patient = ("ward 10", "ward 9")[number // 30], number // 3
        lines.append(f"{number}.png,{patient % 3},{ward},p{patient}")
    (home / "labels.csv").write_text("\n".join(lines))
    return home.parent


def shell(site: Path, *arguments: str, cwd: Path) -> None:
    """Run `sodap ARGUMENTS...` as a process with the package on the path."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "sodap", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr


@pytest.mark.slow
def test_the_shell_and_python_agree(installed: Path, tmp_path: Path) -> None:
    shell(
        installed,
        *("run", "default", "stream=shapes", "method=shrunken-means", "shrinkage=2", "device=cpu"),
        *("--out", "run"),
        cwd=tmp_path,
    )
    record = json.loads((tmp_path / "run" / "record.json").read_text())

    stream = sodap.load_stream("shapes")
    options = {"shrinkage": 2}
    learner = Learner(stream.classes, method="shrunken-means", options=options, device="cpu")
    for row, domain in zip(record["R"]["accuracy"], stream.domains, strict=True):
        learner.learn(domain)
        assert row == [learner.evaluate(each).accuracy for each in stream.domains]


@pytest.mark.usefixtures("installed")
def test_the_commands_list_and_check_them(
    wounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    monkeypatch.chdir(tmp_path)
    assert "shrinkage" in call("methods", "shrunken-means")
    listed = call("data", "list", "--data", str(wounds))
    assert re.search(r"^wounds: .* found at ", listed, flags=re.M)
    assert re.search(r"^Ready streams: .*\bshapes\b", listed, flags=re.M)
    call("data", "check", "wounds", "--data", str(wounds))
    splits = (tmp_path / "sodap-check" / "splits.csv").read_text()
    assert len(splits.splitlines()) == 61


@pytest.mark.usefixtures("installed")
def test_the_method_without_gradients_keeps_every_promise() -> None:
    check_method("shrunken-means")


@pytest.mark.usefixtures("installed")
def test_the_shrunken_means_are_as_the_formula_says() -> None:
    """Compare with a loop over the features of each class."""
    stream = load_stream("shapes")
    options = {"shrinkage": 3.0}
    learner = Learner(stream.classes, method="shrunken-means", options=options, device="cpu")
    for domain in stream.domains:
        learner.learn(domain)
    method = learner.method
    images = torch.cat([domain.train.images for domain in stream.domains])
    labels = torch.cat([domain.train.labels for domain in stream.domains])
    features = method.frozen_features(method.backbone.prepare(images)).double()
    tested = stream.domains[0].test.images
    points = method.frozen_features(method.backbone.prepare(tested)).double()
    distances = []
    for label in range(len(stream.classes)):
        own = features[labels == label]
        mean = (own.sum(0) + 3.0 * features.mean(0)) / (len(own) + 3.0)
        distances.append((points - mean).norm(dim=1))
    nearest = torch.stack(distances, dim=1).argmin(1)
    predicted = learner.predict(tested).probabilities.argmax(1)
    assert torch.equal(predicted, nearest)


@pytest.mark.usefixtures("installed")
def test_a_data_set_is_a_stream_by_its_name(
    wounds: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = load_stream("wounds", 16, data=str(wounds))
    assert stream.classes == ("closed", "open")
    assert [domain.name for domain in stream.domains] == ["ward 9", "ward 10"]
    splits_of: dict[str, set[str]] = {}
    for row in stream.rows:
        splits_of.setdefault(row.group, set()).add(row.split)
    assert len(splits_of) == 20
    assert all(len(splits) == 1 for splits in splits_of.values())
    assert all(len(split) for domain in stream.domains for _, split in domain.splits())

    with pytest.raises(SodapError, match="ask the archive"):
        load_stream("wounds", data=str(tmp_path))
    with pytest.raises(SodapError, match=r"no stream is called 'wound'.*shapes.*wards.*wounds"):
        load_stream("wound")

    # A folder of the same name is what it was before there were data sets of that name.
    monkeypatch.chdir(wounds)
    with pytest.raises(SodapError, match="DOMAIN/CLASS/image"):
        make_plan("wounds")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("shapes = 7", "it is a int, not a function"),
        ("from other import shapes", "No module named 'other'"),
    ],
)
def test_a_broken_stream_is_left_out(installed: Path, code: str, reason: str) -> None:
    (installed / "my_clinic" / "shapes.py").write_text(code)
    with pytest.warns(BrokenPluginWarning, match=f"'shapes' .*my_clinic.shapes.* {reason}"):
        assert "shapes" not in stream_names()
    assert "digits" in stream_names()


def test_a_function_that_makes_no_stream_is_an_error(installed: Path) -> None:
    (installed / "my_clinic" / "shapes.py").write_text("def shapes():\n    return [1]\n")
    with pytest.raises(SodapError, match="'shapes' is a list, not a sodap Stream"):
        load_stream("shapes")
