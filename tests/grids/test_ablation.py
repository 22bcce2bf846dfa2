"""Ablations: each variant changes what its name says, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sodap.backbones import build_backbone
from sodap.errors import SodapError
from sodap.grids import run_grid
from sodap.grids.ablation import Ablation
from sodap.methods import find_method, method_names
from sodap.methods.residual_sodap import ResidualSodap, ResidualSodapConfig
from sodap.methods.residual_sodap.ablation import OTHER_READINGS, REMOVALS, active_parts
from sodap.methods.variants import FULL, Variant
from sodap.randomness import Randomness
from sodap.runs.reading import read_record
from tests.conftest import TINY

QUICK = [*TINY, "stream=stripes", "epochs=1", "batch_size=16", "evidence=false"]

# The marks in the paper's table, row by row, in the order of its columns.
COLUMNS = ["SODAP", "PUDD", "Distill", "Pseudo", "L_div", "L_norm", "UW", "QE"]
MARKS = {
    "full": "11111111",
    "qe": "11111110",
    "pudd": "10111011",
    "sodap": "01111111",
    "pseudo": "11101111",
    "distill": "11001111",
    "div": "11110111",
    "norm": "11111011",
    "uw": "11111101",
}
SWITCHES = {
    "qe": "query_enhancer",
    "pudd": "pudd",
    "sodap": "sodap",
    "pseudo": "pseudo",
    "distill": "distill",
    "div": "l_div",
    "norm": "l_norm",
    "uw": "uw",
}

every_removal = pytest.mark.parametrize("removal", REMOVALS, ids=lambda variant: variant.name)


def an_ablation(out: Path, only: str = "", **more: Any) -> Ablation:
    changes = more.pop("changes", QUICK)
    seeds = more.pop("seeds", 2)
    return Ablation("default", out, changes, range(seeds), only=only.split(), **more)


def differences(ablation: Ablation, variant: Variant) -> dict[str, Any]:
    """Settings of a variant that differ from the full method."""
    whole, less = (flat(ablation.config(v).described()) for v in (FULL, variant))
    assert whole.keys() == less.keys()
    return {key: less[key] for key in less if less[key] != whole[key]}


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        found |= inner
    return found


@every_removal
@pytest.mark.parametrize("recipe", ["default", "paper", "demo"])
def test_a_removal_switches_off_what_it_names_and_nothing_else(
    tmp_path: Path, removal: Variant, recipe: str
) -> None:
    ablation = Ablation(recipe, tmp_path)
    assert differences(ablation, removal) == {f"options.{SWITCHES[removal.name]}": False}


def test_the_removals_are_the_eight_of_the_paper(tmp_path: Path) -> None:
    assert [variant.name for variant in an_ablation(tmp_path).variants] == list(MARKS)


@pytest.mark.parametrize("variant", [FULL, *REMOVALS], ids=lambda variant: variant.name)
def test_the_marks_agree_with_the_paper_and_the_method(tmp_path: Path, variant: Variant) -> None:
    config = an_ablation(tmp_path).config(variant)
    marks = active_parts(config.options)
    assert marks == dict(zip(COLUMNS, map(bool, map(int, MARKS[variant.name])), strict=True))

    options = ResidualSodapConfig.model_validate(config.options)
    method = ResidualSodap(build_backbone("micro"), 3, Randomness(0), options)
    losses = method.config.loss_names
    assert marks["Distill"] == ("real" in losses)
    assert marks["Pseudo"] == ("pseudo" in losses)
    assert marks["L_div"] == ("div" in losses)
    assert marks["L_norm"] == ("norm" in losses)
    assert marks["QE"] == (method.prompter.memory is not None)
    assert marks["SODAP"] == (not method.prompter.router.softmax)
    assert marks["SODAP"] == (not method.prompter.router.joint)


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_other_readings_change_only_their_settings(tmp_path: Path, recipe: str) -> None:
    ablation = Ablation(recipe, tmp_path, extra=True)
    readings = ablation.variants[len(MARKS) :]
    assert set(readings) < set(OTHER_READINGS)
    for variant in OTHER_READINGS:
        wanted = [change.partition("=")[0] for change in variant.changes]
        changed = differences(ablation, variant)
        assert {key.removeprefix("options.") for key in changed} <= set(wanted)
        assert (variant in readings) == bool(changed)
    every = [FULL, *REMOVALS, *OTHER_READINGS]
    assert len({variant.name for variant in every}) == len(every)


@pytest.mark.parametrize("name", [n for n in method_names() if find_method(n).removals])
def test_the_variants_of_every_method_change_only_what_they_name(tmp_path: Path, name: str) -> None:
    method = find_method(name)
    ablation = Ablation("default", tmp_path, [f"method={name}"], extra=True)
    every = [FULL, *method.removals, *method.other_ways]
    assert len({variant.name for variant in every}) == len(every)
    assert len({variant.title for variant in every}) == len(every)
    for variant in method.removals:
        wanted = {f"options.{change.partition('=')[0]}" for change in variant.changes}
        assert set(differences(ablation, variant)) == wanted
    assert ablation.variants[: len(method.removals) + 1] == [FULL, *method.removals]


def test_each_recipe_has_the_readings_of_the_other(tmp_path: Path) -> None:
    """A choice of `paper` that differs from `default` is a variant of it, and vice versa."""
    default, paper = (
        {variant.name for variant in Ablation(recipe, tmp_path, extra=True).variants}
        for recipe in ("default", "paper")
    )
    assert {"context-cls", "shared-after-stage1-trainable", "merge-paper"} <= default - paper
    assert {"context-patch-mean", "shared-after-stage1-frozen", "merge-rescale"} <= paper - default


def test_a_part_that_is_off_already_is_not_removed(tmp_path: Path) -> None:
    ablation = an_ablation(tmp_path, changes=[*QUICK, "l_div=false"])
    assert [variant.name for variant in ablation.left_out] == ["div"]
    assert "div" not in [variant.name for variant in ablation.variants]
    assert an_ablation(tmp_path).left_out == []
    assert an_ablation(tmp_path, "qe").left_out == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"changes": ["seed=3"]}, "give --seeds instead"),
        ({"changes": ["colour=blue"]}, "'colour' is no key"),
        ({"changes": ["method=ridge"]}, "ridge names no parts"),
        ({"recipe": "sequential"}, "sequential names no parts"),
        ({"only": ["magic"]}, "no variant is called 'magic'; there are: qe, pudd"),
        ({"changes": ["weights=nowhere.pth"]}, "no weights file"),
        ({"only": ["div"], "changes": ["l_div=false"]}, "nothing to remove"),
    ],
)
def test_mistakes_are_found_before_the_first_run(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SodapError, match=words):
        run_grid(replace(an_ablation(tmp_path / "out"), **changes).grid)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quick_methods_and_stream")
def test_an_ablation_is_a_grid_of_variants(tmp_path: Path) -> None:
    ablation = an_ablation(tmp_path, "uw", seeds=1, jobs=0, command=["sodap", "ablate"])
    assert ablation.grid.methods == ["residual-sodap", "residual-sodap@uw=false"]
    summary = run_grid(ablation.grid)
    assert (summary.done, summary.finished, summary.failures) == (2, 0, {})
    assert run_grid(ablation.grid).finished == 2

    record = read_record(tmp_path / "stripes" / "residual-sodap@uw=false" / "s0" / "record.json")
    assert record.config.options["uw"] is False
    assert (record.variant, record.search) == ("residual-sodap@uw=false", None)
    assert record.command == ["sodap", "ablate"]
    with pytest.raises(SodapError, match=r"another training\.lr"):
        run_grid(replace(ablation, changes=[*QUICK, "lr=0.5"]).grid)
