"""Configuration of a run: a recipe (YAML) with the user's changes (key=value)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from sodap.backbones.names import MICRO, ask_for_backbone
from sodap.errors import SodapError, invalid
from sodap.learning.training import Training
from sodap.methods import check_method_name, find_method, method_names
from sodap.runs.named_yaml import RECIPES, read_named_yaml, yaml_names
from sodap.streams.folds import Fold
from sodap.streams.loading import check_stream_name
from sodap.streams.plans import GroupNames
from sodap.streams.registry import stream_names


class RunConfig(BaseModel):
    """Everything that determines the result of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str = Field(
        "digits",
        description="stream, protocol or data set by name; folder DOMAIN/CLASS/image, or table",
    )
    data: str | None = Field(
        None, description="folder of the data sets; default: $SODAP_DATA, or ./data"
    )
    splits: str | None = Field(
        None, description="saved splits.csv, or folder with the lists of the paper's authors"
    )
    split_seed: int = Field(0, ge=0, description="seed of random splits")
    fold: str | None = Field(
        None, description="2/5: test the second fifth of the images, learn from the others"
    )
    groups: GroupNames = Field(
        "separate", description="shared: groups of one name in two data sets are one patient"
    )
    classes: str | None = Field(
        None, description="confirm the classes of a folder or table: NAME,NAME,... or all"
    )
    skip_unreadable: bool = Field(
        False, description="leave out image files that cannot be read, and list them"
    )
    method: str = Field("residual-sodap", description="name of a method")
    backbone: str = Field(
        MICRO, description="micro (for the embedded digits), deit_tiny, ..., or any timm ViT"
    )
    weights: str = Field("pretrained", description="pretrained, random, or a file")
    image_size: int | None = Field(
        None, ge=8, le=2048, description="side in pixels; default: that of the backbone"
    )
    seed: int = Field(0, ge=0, description="seed of all random numbers of the run")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="of the frozen backbone; auto: bf16 on a GPU, fp32 on a CPU"
    )
    training: Training = Field(Training(), description="training settings")
    options: dict[str, Any] = Field({}, description="options of the method")
    # These two change no result. They are excluded, so that a run may be resumed with other values.
    evidence: bool = Field(
        True, exclude=True, description="store predictions and routing for `sodap report`"
    )
    keep_stages: bool = Field(
        True, exclude=True, description="store the model of every stage, if it is below 64 MB"
    )

    @model_validator(mode="after")
    def _check_fold(self) -> Self:
        if self.fold is not None:
            try:
                Fold.parse(self.fold)
            except SodapError as error:
                raise ValueError(str(error)) from error
            if self.splits is not None:
                raise ValueError("'splits' and 'fold' both choose the test images; give one")
        return self

    def resolved(self) -> RunConfig:
        """The same configuration as `config.json` holds it, with every option written out."""
        return RunConfig.model_validate(self.described())

    def described(self) -> dict[str, Any]:
        """Content of `config.json`: every option of the method written out, defaults included."""
        options = find_method(self.method).Config.model_validate(self.options)
        return self.model_dump(mode="json") | {"options": options.model_dump(mode="json")}


def recipe_names() -> list[str]:
    return yaml_names(RECIPES)


def read_recipe(name: str) -> tuple[str, dict[str, Any]]:
    """Description (the opening comment) and content of a recipe."""
    if name not in recipe_names() and name in method_names():
        raise SodapError(
            f"'{name}' is a method, not a recipe; use `sodap run default method={name}`"
        )
    return read_named_yaml(RECIPES, "recipe", name)


def check_names(recipe: str, changes: Iterable[str] = ()) -> None:
    """Raise an error for an unknown recipe, method or stream, or missing backbone or weights.

    This is fast, because it does not import the method, and so torch, as `load_config` does.
    """
    _, content = read_recipe(recipe)
    given = content | dict(map(_pair, changes))
    defaults = {key: field.default for key, field in RunConfig.model_fields.items()}
    method, stream, weights = (
        str(given.get(key, defaults[key])) for key in ("method", "stream", "weights")
    )
    check_method_name(method)
    check_stream_name(stream)
    if "backbone" not in given and stream not in stream_names():
        raise ask_for_backbone(f"'{stream}'")
    check_weights(weights)


def check_backbone_chosen(config: RunConfig) -> None:
    """Raise an error if photographs would be learned with the network of the digits by default."""
    if "backbone" not in config.model_fields_set and config.stream not in stream_names():
        raise ask_for_backbone(f"'{config.stream}'")


def check_weights(weights: str) -> None:
    """Raise an error for a missing file of weights."""
    if weights not in ("pretrained", "random") and not Path(weights).is_file():
        raise SodapError(f"there is no weights file at {weights}")


class Case(BaseModel):
    """What a recipe sets for some streams or methods only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: list[str] | None = Field(None, description="streams; default: any")
    method: list[str] | None = Field(None, description="methods; default: any")
    training: dict[str, Any] = Field({}, description="training settings")
    options: dict[str, Any] = Field({}, description="options of the methods")

    def applies(self, stream: str, method: str) -> bool:
        return (self.stream is None or stream in self.stream) and (
            self.method is None or method in self.method
        )


def load_config(recipe: str, changes: Iterable[str] = ()) -> RunConfig:
    """A recipe with `key=value` changes; keys are those of the run, its training or its method."""
    _, content = read_recipe(recipe)
    pairs = [_pair(change) for change in changes]
    own = content.get("method", "residual-sodap")
    method = str(dict(pairs).get("method", own))
    if method != own:
        content.pop("options", None)  # they are options of the recipe's method
    stream = str(dict(pairs).get("stream", content.get("stream", "digits")))
    for case in _cases(content.pop("cases", []), recipe):
        if case.applies(stream, method):
            for part in ("training", "options"):
                content[part] = (content.get(part) or {}) | getattr(case, part)
    places = _places(method)
    for key, text in pairs:
        first, *rest = key.split(".")
        if first not in places:
            raise SodapError(_unknown(first, places, method))
        path, kind = places[first]
        if rest:  # `training.lr` is `lr`; the type of other nested keys is not known here
            parent, nested = places.get(rest[0], ([], Any))
            kind = nested if parent == [first] and len(rest) == 1 else Any
        value = _value(key, text, kind)
        target: dict[str, Any] = content
        for step in [*path, *([first] if rest else []), *rest[:-1]]:
            inner = target.setdefault(step, {})
            if not isinstance(inner, dict):
                raise SodapError(f"'{key}' cannot be set, because '{step}' has no keys")
            target = inner
        target[rest[-1] if rest else first] = value
    return validate(content, f"recipe '{recipe}'")


def _cases(content: Any, recipe: str) -> list[Case]:
    """The cases of a recipe; later ones win."""
    try:
        return TypeAdapter(list[Case]).validate_python(content)
    except ValidationError as error:
        raise invalid(f"recipe '{recipe}', 'cases'", error) from error


def validate(content: Mapping[str, Any], source: str) -> RunConfig:
    """Check all settings, those of the method included; `source` is for the error message."""
    try:
        config = RunConfig.model_validate(content)
        config.described()
    except ValidationError as error:
        raise invalid(source, error) from error
    check_backbone_chosen(config)
    return config


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that differs, in words: `training.epochs (2 instead of 3)`."""
    for key, value in now.items():
        former = before.get(key)
        if former != value:
            if isinstance(former, Mapping) and isinstance(value, Mapping):
                inner = difference(former, value)
                if inner is not None:
                    return f"{key}.{inner}"
            return f"{key} ({former!r} instead of {value!r})"
    return None


def _unknown(key: str, known: Iterable[str], method: str) -> str:
    """Message about an unknown key, which may belong to another method or be misspelt."""
    owners = [name for name in method_names() if key in find_method(name).Config.model_fields]
    if owners:
        return f"'{key}' is an option of {', '.join(owners)}, not of {method}"
    close = difflib.get_close_matches(key, known, 1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    return f"'{key}' is no key of the run, its training or {method}{hint}"


def _pair(change: str) -> tuple[str, str]:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise SodapError(f"'{change}' is not of the form key=value")
    return key, text


def _value(key: str, text: str, kind: Any) -> Any:
    if kind in (str, str | None):  # a folder may be called 2024 or yes
        return None if not text or (text == "null" and kind is not str) else text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if isinstance(value, str):
        try:  # YAML reads 1e-3 as a string
            value = float(value)
        except ValueError:
            value = text
    if isinstance(value, bool) and kind in (int, float, int | None, float | None):
        raise SodapError(f"'{key}' takes a number, not '{text}'")  # pydantic would read 1 or 0
    return value


def _places(method: str) -> dict[str, tuple[list[str], Any]]:
    """Path (`lr` is in `training`, `context` in `options`) and type of every key."""
    places: dict[str, tuple[list[str], Any]] = {}
    options = find_method(method).Config
    models: list[tuple[list[str], type[BaseModel]]]
    models = [([], RunConfig), (["training"], Training), (["options"], options)]
    for path, model in models:
        for name, field in model.model_fields.items():
            if name in places:
                raise SodapError(
                    f"the option '{name}' of {method} has the name of a setting of every run; "
                    f"rename the option"
                )
            places[name] = path, field.annotation
    return places
