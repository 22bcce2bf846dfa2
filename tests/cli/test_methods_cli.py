"""`sodap methods`: the list, and every option of one."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from sodap.cli.main import app
from sodap.cli.main import main as entry_point
from sodap.methods import MethodConfig, Option, find_method, method_names, options_of
from sodap.runs import load_config

FEW = ("residual-sodap", "rp-ridge", "sequential", "slda")


def shown(*arguments: str, columns: int = 80, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    found = CliRunner().invoke(app, ["methods", *arguments])
    assert found.exit_code == 0, found.output
    return found.output


def words(text: str) -> str:
    """Without the breaks that a narrow table makes."""
    return re.sub(r"\s+", " ", text)


def test_every_method_is_listed_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch=monkeypatch)
    assert all(len(line) <= 80 for line in text.splitlines())
    lines = text.splitlines()
    for name in method_names():
        (row,) = [line for line in lines if line.split(" ")[0] == name]
        assert find_method(name).family in row
    wide = words(shown(columns=400, monkeypatch=monkeypatch))
    for name in method_names():
        method = find_method(name)
        assert f"trains {method.trains}; stores {method.stores}" in wide
        assert (method.__doc__ or "").splitlines()[0] in wide


@pytest.mark.parametrize("name", FEW)
def test_every_option_of_a_method_is_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = find_method(name)
    text = shown(name, monkeypatch=monkeypatch)
    assert all(len(line) <= 80 for line in text.splitlines())
    wide = words(shown(name, columns=400, monkeypatch=monkeypatch))
    assert wide.startswith(f"{name} ({method.family}) ")
    assert f"Stores: {method.stores}" in wide
    for option in options_of(method.Config):
        assert f" {option.name} {option.default} {option.meaning} ({option.bounds})" in wide


def test_a_method_without_options_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "This method has no options." in shown("sequential", monkeypatch=monkeypatch)


def test_an_unknown_name_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["sodap", "methods", "nothing"])
    with pytest.raises(SystemExit) as end:
        entry_point()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("sodap: no method is called 'nothing'; there are: ")
    assert said.count("\n") == 1


# ------------------------------------------------------------------ options as rows


class Inner(BaseModel):
    """Settings in settings."""

    window: int = Field(9, ge=2, description="how many")
    deeper: float = Field(0.5, gt=0, lt=1, description="how deep")


class Outer(MethodConfig):
    """One option of each kind."""

    flag: bool = Field(True, description="a switch")
    kind: Literal["a", "b"] = Field("a", description="a choice")
    small: float = Field(1e-5, ge=0, le=1, description="a share")
    free: str = Field("word", description="a word")
    maybe: int | None = Field(None, ge=1, description="a number or none")
    layers: tuple[int, ...] = Field((0, 1), description="some layers")
    drift: Inner = Field(Inner(), description="more")
    later: Inner | None = Field(None, description="more, or nothing")
    needed: int = Field(description="a must")
    unsaid: int = 3


def test_options_are_flat_and_have_bounds() -> None:
    assert list(options_of(Outer)) == [
        Option("flag", "true", "true | false", "a switch"),
        Option("kind", "a", "a | b", "a choice"),
        Option("small", "1e-05", "float, ≥ 0, ≤ 1", "a share"),
        Option("free", "word", "str", "a word"),
        Option("maybe", "none", "int | none, ≥ 1", "a number or none"),
        Option("layers", "[0, 1]", "list of int", "some layers"),
        Option("drift.window", "9", "int, ≥ 2", "how many"),
        Option("drift.deeper", "0.5", "float, > 0, < 1", "how deep"),
        Option("later.window", "9", "int, ≥ 2", "how many"),
        Option("later.deeper", "0.5", "float, > 0, < 1", "how deep"),
        Option("needed", "–", "int", "a must"),
        Option("unsaid", "3", "int", ""),
    ]


@pytest.mark.parametrize("name", method_names())
def test_defaults_can_be_given_as_they_are_shown(name: str) -> None:
    """`KEY=DEFAULT` for every option is the configuration that one gets without them."""
    options = [o for o in options_of(find_method(name).Config) if o.default != "none"]
    plain = load_config("default", [f"method={name}"])
    typed = load_config("default", [f"method={name}", *(f"{o.name}={o.default}" for o in options)])
    assert typed.described() == plain.described()
