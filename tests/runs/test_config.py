from __future__ import annotations

import re
from pathlib import Path

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


def test_the_paper_recipe_holds_the_printed_values() -> None:
    config = load_config("paper").described()
    training, options = config["training"], config["options"]
    assert (training["lr"], training["batch_size"], training["epochs"]) == (1e-3, 64, 100)
    assert training["patience"] == 5
    assert (options["pool_size"], options["bottleneck"], options["memory_slots"]) == (60, 512, 9)
    assert (options["alpha"], options["residual"]) == (1.5, 0.1)
    assert options["distill_temperature"] == 2.0
    drift = options["drift"]
    assert (drift["window"], drift["usage_threshold"], drift["overlap_floor"]) == (100, 0.01, 0.1)
    assert (drift["entropy_weight"], drift["overlap_weight"]) == (1.0, 0.5)
    assert (drift["max_score"], drift["min_growth"], drift["max_growth"]) == (5.0, 10, 80)
    assert drift["threshold"] == 0.7
    assert options["shared_after_stage1"] == "trainable"
    assert options["context"] == "cls"
    assert all(options[s] for s in ("query_enhancer", "pudd", "sodap", "distill", "pseudo", "uw"))


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
