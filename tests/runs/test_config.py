from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from sodap.errors import SodapError
from sodap.learning import Training
from sodap.methods import MethodConfig, find_method, method_names, registry
from sodap.methods.sequential import Sequential
from sodap.runs import RunConfig, load_config, read_recipe, recipe_names, run
from sodap.runs.config import check_names, difference
from sodap.streams import Augmentation


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_is_valid(name: str) -> None:
    description, _ = read_recipe(name)
    assert description.endswith(".")
    load_config(name)


PAPER_OPTIONS = {
    # 3.1
    "query_enhancer": True,
    "sodap": True,
    "pool_size": 60,
    "capacity": None,
    "bottleneck": 512,
    "memory_slots": 9,
    "memory_momentum": 0.99,  # not in the paper
    "memory_norm": False,
    "memory_assignment": "attention",
    "memory_write": "always",
    "queries": "raw",
    "context": "cls",
    "alpha": 1.5,
    "temperature": 1.5,
    "residual": 0.1,
    "key_start": "noise",
    "router_lr": 1.0,
    "selection": "entmax",
    "combination": "residual",
    "merge": "paper",
    "per_layer": "none",
    "shared_after_stage1": "trainable",
    "shared_lr": 0.1,  # has no effect
    "l_div": True,
    "l_norm": True,
    "l_norm_base": True,
    # 3.2
    "distill": True,
    "pseudo": True,
    "feature_norm": False,
    "stats": "merged",
    "distill_temperature": 2.0,
    "pseudo_samples": 0,
    # 3.3
    "pudd": True,
    "drift": {
        "window": 100,
        "entropy_weight": 1.0,
        "overlap_weight": 0.5,
        "overlap_floor": 0.1,
        "usage_threshold": 0.01,
        "relative_threshold": False,
        "min_entries": 1,
        "std_floor": 0.0,
        "max_score": 5.0,
        "min_growth": 10,
        "max_growth": 80,
        "threshold": 0.7,
    },
    "drift_prefill": True,
    "drift_batch": 0,
    "drift_sets": "joined",
    "drift_skip_first": False,
    # 3.4
    "uw": True,
    # How it is computed.
    "backprop": "full",
    "fast": True,
}
"""Every option of Residual SODAP, as the paper's text has it."""


def test_every_key_of_the_recipe_paper() -> None:
    config = load_config("paper").described()
    assert config["options"] == PAPER_OPTIONS
    assert config["training"] == {
        "epochs": 100,
        "patience": 5,
        "batch_size": 64,
        "lr": 1e-3,
        "weight_decay": 0.01,  # not in the paper
        "augmentation": None,  # that of the stream
        "compile": False,
        "cuda_graphs": True,
    }
    _, written = read_recipe("paper")
    silent = {
        "query_enhancer": "a switch of the ablation",
        "sodap": "a switch of the ablation",
        "pudd": "a switch of the ablation",
        "distill": "a switch of the ablation",
        "pseudo": "a switch of the ablation",
        "l_div": "a switch of the ablation",
        "l_norm": "a switch of the ablation",
        "uw": "a switch of the ablation",
        "memory_momentum": "not in the paper",
        "shared_lr": "has no effect",
        "selection": "halves of the switch sodap",
        "combination": "halves of the switch sodap",
        "backprop": "how it is computed",
        "fast": "how it is computed",
    }
    assert PAPER_OPTIONS.keys() - written["options"].keys() == silent.keys()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["stream=paper-dr"], {"batch_size": 64}),
        (["stream=paper-skin"], {"batch_size": 16}),
        (["stream=open-skin", "batch_size=32"], {"batch_size": 32}),
        (["stream=paper-core50"], {"batch_size": 64}),
        (["method=coda-prompt", "stream=paper-skin"], {"batch_size": 16, "rows_per_stage": 33}),
        (["method=coda-prompt", "stream=paper-core50"], {"rows_per_stage": 9, "ortho": 0.1}),
        (["method=os-prompt", "stream=paper-dr"], {"rows_per_stage": 50, "length": 8}),
        (["method=os-prompt++", "stream=paper-core50"], {"rows_per_stage": 13}),
        (["method=der++", "stream=paper-dr"], {"buffer": 30, "alpha": 0.5, "beta": 0.5}),
        (["method=der++", "stream=paper-core50"], {"buffer": 64}),
        (["method=dual-prompt", "stream=paper-core50"], {"pool_size": 100, "top_k": 5}),
        (["method=online-ewc", "stream=paper-dr"], {"faithful": True}),
    ],
    ids=" ".join,
)
def test_the_recipe_paper_on_each_benchmark(changes: list[str], expected: dict[str, Any]) -> None:
    config = load_config("paper", [*changes, "backbone=vit_base"]).described()
    found = config["training"] | config["options"]
    assert {key: found[key] for key in expected} == expected


def test_cases_of_an_own_recipe(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "method: l2p\ncases:\n- stream: [digits]\n  training: {lr: 0.5}\n"
        "- method: [ridge]\n  training: {lr: 0.25}\n"
    )
    assert load_config(str(mine)).training.lr == 0.5
    assert load_config(str(mine), ["stream=digits-mini"]).training.lr == 1e-3
    assert load_config(str(mine), ["method=ridge"]).training.lr == 0.25
    mine.write_text("cases:\n- streams: [digits]\n")
    with pytest.raises(SodapError, match=r"cases.*streams"):
        load_config(str(mine))


def test_changes_of_the_run_its_training_and_its_method() -> None:
    config = load_config(
        "default",
        [
            "seed=7",
            "lr=3e-4",
            "context=cls",
            "drift.window=50",
            "augmentation.rotate=8",
            "uw=false",
        ],
    )
    assert config.seed == 7
    assert config.training.lr == 3e-4
    assert config.training.augmentation == Augmentation(rotate=8)
    assert config.options["context"] == "cls"
    assert config.options["drift"] == {"window": 50}
    assert config.options["uw"] is False


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("stream", ["digits", "digits-mini"])
def test_the_embedded_streams_are_learned_with_the_embedded_backbone(
    recipe: str, stream: str
) -> None:
    assert load_config(recipe, [f"stream={stream}"]).backbone == "micro"


@pytest.mark.parametrize("recipe", recipe_names())
def test_other_images_need_a_backbone_that_the_user_has_chosen(recipe: str) -> None:
    for ask in (
        lambda: load_config(recipe, ["stream=open-dr"]),
        lambda: check_names(recipe, ["stream=open-dr"]),
        lambda: run(RunConfig(stream="open-dr"), Path("never")),
    ):
        with pytest.raises(SodapError, match=r"backbone=deit_tiny .* weights=FILE"):
            ask()
    chosen = load_config(recipe, ["stream=open-dr", "backbone=micro"])
    assert chosen.backbone == "micro"
    assert chosen.resolved().backbone == "micro", "also when it is read again"


def test_another_method_drops_the_options_of_the_recipe() -> None:
    assert load_config("paper", ["method=sequential"]).options == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("contxt=cls", "'contxt' is no key .* did you mean 'context'"),
        ("nothing", "not of the form key=value"),
        ("=1", "not of the form key=value"),
        ("epochs=0", "'training.epochs': .*greater than or equal to 1 .got 0"),
        ("lr=fast", "'training.lr': .*valid number"),
        ("context=sky", "'context': .*'cls' or 'patch_mean'"),
        ("drift.windw=5", "'drift.windw'"),
        ("lr.x=1", "'training.lr': "),
        ("method=magic", "no method is called 'magic'"),
        ("device=tpu", "'device'"),
        ("capacity=10", "^recipe 'default': a pool of capacity 10 cannot hold 60"),
    ],
)
def test_wrong_changes_are_refused(change: str, words: str) -> None:
    with pytest.raises(SodapError, match=words) as caught:
        load_config("default", [change])
    assert "\n" not in str(caught.value)


def test_an_option_of_another_method_is_named_as_such() -> None:
    words = "^'backprop' is an option of residual-sodap, not of l2p$"
    with pytest.raises(SodapError, match=words):
        load_config("default", ["method=l2p", "backprop=cls_row"])
    having = [m for m in method_names() if "faithful" in find_method(m).Config.model_fields]
    assert len(having) > 1
    with pytest.raises(SodapError, match=rf"of {', '.join(map(re.escape, having))}, not of ridge$"):
        load_config("ridge", ["faithful=true"])


def test_a_method_is_not_a_recipe() -> None:
    with pytest.raises(SodapError, match=r"'l2p' is a method, .* `sodap run default method=l2p`"):
        load_config("l2p", ["stream=digits-mini"])
    assert load_config("ridge").method == "ridge", "the name of a recipe as well"


def test_a_difference_is_described_with_its_full_key() -> None:
    before = {"a": 1, "b": {"c": {"d": 2, "e": 3}}, "gone": 4}
    assert difference(before, {"a": 1, "b": {"c": {"d": 2, "e": 3}}}) is None
    assert difference(before, {"b": {"c": {"d": 2, "e": 5}}}) == "b.c.e (3 instead of 5)"
    assert difference(before, {"b": None}) == "b ({'c': {'d': 2, 'e': 3}} instead of None)"
    fewer = {"b": {"c": {"d": 2}}}
    assert difference(before, fewer) == "b.c ({'d': 2, 'e': 3} instead of {'d': 2})"
    assert difference(before, {"a": 1, "new": 6}) == "new (None instead of 6)"


def test_recipe_files_of_a_user(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("# Mine.\n\nmethod: sequential\nseed: 4\n")
    assert load_config(str(mine)).seed == 4
    assert read_recipe(str(mine))[0] == "Mine."
    mine.write_text("colour: blue\n")
    with pytest.raises(SodapError, match="'colour': extra inputs"):
        load_config(str(mine))
    mine.write_text("a: [")
    with pytest.raises(SodapError, match="not valid YAML"):
        load_config(str(mine))
    mine.write_text("- a\n")
    with pytest.raises(SodapError, match="key: value"):
        load_config(str(mine))
    with pytest.raises(SodapError, match="no recipe is called 'none'"):
        load_config("none")


@pytest.mark.parametrize("method", method_names())
def test_every_key_is_unique(method: str) -> None:
    names = [*find_method(method).Config.model_fields, *Training.model_fields]
    names += RunConfig.model_fields
    assert len(names) == len(set(names))


def test_every_setting_has_a_description() -> None:
    for model in (RunConfig, Training):
        for name, field in model.model_fields.items():
            assert field.description, name


def test_a_bool_is_not_a_number() -> None:
    for change in (
        "lr=true",
        "epochs=yes",
        "image_size=false",
        "training.lr=on",
        "options.pool_size=true",
    ):
        with pytest.raises(SodapError, match="takes a number, not"):
            load_config("default", [change])
    assert load_config("default", ["compile=true"]).training.compile


class Texts(Sequential):
    """A method with a text among its options."""

    name = "texts"

    class Config(MethodConfig):
        prompt: str = Field("a photo", description="words")


class Clash(Sequential):
    """A method with an option that has the name of a training setting."""

    name = "clash"

    class Config(MethodConfig):
        patience: int = Field(2, description="of its own")


def test_options_of_a_registered_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", {**registry._METHODS, "texts": Texts, "clash": Clash})
    for text in ("2024", "no", "1e-3"):
        config = load_config("default", ["method=texts", f"prompt={text}"])
        assert config.options == {"prompt": text}
    with pytest.raises(SodapError, match="option 'patience' of clash has the name of a setting"):
        load_config("default", ["method=clash", "patience=9"])
