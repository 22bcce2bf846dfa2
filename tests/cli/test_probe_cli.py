"""`sodap probe`: a run, a model, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import TINY_VIT
from typer.testing import CliRunner

from sodap.cli.main import app
from sodap.errors import SodapError

CHANGES = [*(f"{k}={v}" for k, v in TINY_VIT.items()), "device=cpu", "stream=digits-mini"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "r"
    ran = CliRunner().invoke(
        app, ["run", "demo", *CHANGES, "epochs=1", "capacity=100", "--out", str(folder)]
    )
    assert ran.exit_code == 0, ran.output
    return folder


def probe(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["probe", *arguments])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.stdout


def test_a_run_and_its_model(folder: Path) -> None:
    content = json.loads(probe(str(folder), "--images", "2", "--json"))
    stages = [each["stage"] for each in content["stages"]]
    assert stages == [1, 2, 3, 4]
    last = content["stages"][-1]["result"]
    model = json.loads(
        probe(str(folder / "model"), "--stream", "digits-mini", "--images", "2", "--json")
    )
    assert model == last
    words = probe(str(folder), "--images", "2")
    assert "mean routing" in words
    assert f"{last['variety']['images']:.3f}" in words


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    for arguments, named in (
        ([str(folder / "model")], "--stream"),
        ([str(folder), "--stream", "digits-mini"], "--stream"),
        ([str(folder), "--split", "train"], "train"),
        ([str(tmp_path / "nothing")], "nothing"),
        ([str(folder / "record.json"), "--stream", "digits-mini"], "is a file"),
    ):
        with pytest.raises(SodapError, match=named):
            probe(*arguments)
