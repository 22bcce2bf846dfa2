"""Configuration of a run: a recipe (YAML) with the user's changes (key=value)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sodap.errors import SodapError
from sodap.learning.training import Training
from sodap.methods import check_method_name, find_method, method_names
from sodap.runs.named_yaml import RECIPES, read_named_yaml, yaml_names
from sodap.streams.loading import check_stream_name


class RunConfig(BaseModel):
    """Everything that determines the result of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: str = Field(
        "digits", description="a stream's or protocol's name, a folder DOMAIN/CLASS/image, a table"
    )
    data: str | None = Field(
        None, description="where data sets lie; default: $SODAP_DATA, or the folder data"
    )
    splits: str | None = Field(
        None, description="a file of splits to use again, or the folder of the authors' lists"
    )
    split_seed: int = Field(0, ge=0, description="which images train, validate and test")
    method: str = Field("residual-sodap", description="a method's name")
    backbone: str = Field("micro", description="micro, deit_tiny, ..., or any timm ViT")
    weights: str = Field("pretrained", description="pretrained, random, or a file")
    image_size: int | None = Field(
        None, ge=8, le=2048, description="pixels a side; default: what the backbone was made for"
    )
    seed: int = Field(0, ge=0, description="every random number of the run follows from it")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="of the frozen trunk; auto = bf16 on a GPU, fp32 elsewhere"
    )
    training: Training = Field(Training(), description="how a stage is trained")
    options: dict[str, Any] = Field({}, description="options of the method")
    # These two change no result. They are excluded, so that a run may be resumed with other values.
    evidence: bool = Field(
        True, exclude=True, description="leave answers and routing for `sodap report`"
    )
    keep_stages: bool = Field(
        True, exclude=True, description="keep the model of every stage, where it is below 64 MB"
    )

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
    """A recipe's description (the comment it opens with) and its content."""
    if name not in recipe_names() and name in method_names():
        raise SodapError(f"'{name}' is a method, no recipe: `sodap run default method={name}`")
    return read_named_yaml(RECIPES, "recipe", name)


def check_names(recipe: str, changes: Iterable[str] = ()) -> None:
    """Raise an error for a wrong recipe, method or stream, or a missing file of weights.

    It takes a moment. `load_config` finds the same mistakes, but imports the method and so torch.
    """
    _, content = read_recipe(recipe)
    given = content | dict(map(_pair, changes))
    defaults = {key: field.default for key, field in RunConfig.model_fields.items()}
    method, stream, weights = (
        str(given.get(key, defaults[key])) for key in ("method", "stream", "weights")
    )
    check_method_name(method)
    check_stream_name(stream)
    check_weights(weights)


def check_weights(weights: str) -> None:
    """Raise an error for a missing file of weights."""
    if weights not in ("pretrained", "random") and not Path(weights).is_file():
        raise SodapError(f"there is no weights file at {weights}")


def load_config(recipe: str, changes: Iterable[str] = ()) -> RunConfig:
    """The recipe with `key=value` changes. A key may belong to the run, training or the method."""
    _, content = read_recipe(recipe)
    pairs = [_pair(change) for change in changes]
    own = content.get("method", "residual-sodap")
    method = str(dict(pairs).get("method", own))
    if method != own:
        content.pop("options", None)  # the recipe's options belong to the recipe's method
    homes = _homes(method)
    for key, text in pairs:
        first, *rest = key.split(".")
        if first not in homes:
            raise SodapError(_unknown(first, homes, method))
        home, kind = homes[first]
        if rest:  # `training.lr` is `lr`; of other parts, the type is not known here
            there, inner = homes.get(rest[0], ([], Any))
            kind = inner if there == [first] and len(rest) == 1 else Any
        value = _value(key, text, kind)
        place: dict[str, Any] = content
        for step in [*home, *([first] if rest else []), *rest[:-1]]:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                raise SodapError(f"'{key}' cannot be set: '{step}' has no parts")
            place = inner
        place[rest[-1] if rest else first] = value
    return validate(content, f"recipe '{recipe}'")


def validate(content: Mapping[str, Any], source: str) -> RunConfig:
    try:
        config = RunConfig.model_validate(content)
        config.described()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        given = first.get("input")
        shown = f" (got {given!r})" if isinstance(given, (str, int, float, bool)) else ""
        where = f"{source}, '{key}'" if key else source  # what two keys together do wrong has none
        said = first["msg"].lower().removeprefix("value error, ")
        raise SodapError(f"{where}: {said}{shown}") from error
    return config


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that is another one now, in words: `training.epochs (2 instead of 3)`."""
    for key, value in now.items():
        former = before.get(key)
        if former != value:
            if isinstance(former, Mapping) and isinstance(value, Mapping):
                inner = difference(former, value)
                if inner is not None:
                    return f"{key}.{inner}"
            return f"{key} ({former!r} instead of {value!r})"
    return None


def _unknown(key: str, homes: Iterable[str], method: str) -> str:
    """Why there is no such key: it is another method's, or else perhaps misspelt."""
    owners = [name for name in method_names() if key in find_method(name).Config.model_fields]
    if owners:
        return f"'{key}' is an option of {', '.join(owners)}, not of {method}"
    close = difflib.get_close_matches(key, homes, 1)
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
        try:  # YAML takes 1e-3 for a word
            value = float(value)
        except ValueError:
            value = text
    if isinstance(value, bool) and kind in (int, float, int | None, float | None):
        raise SodapError(f"'{key}' takes a number, not '{text}'")  # which would pass for 1 or 0
    return value


def _homes(method: str) -> dict[str, tuple[list[str], Any]]:
    """Where each key lives (`lr` in training, `context` in the method's options), and its type."""
    homes: dict[str, tuple[list[str], Any]] = {}
    options = find_method(method).Config
    models: list[tuple[list[str], type[BaseModel]]]
    models = [([], RunConfig), (["training"], Training), (["options"], options)]
    for place, model in models:
        for name, field in model.model_fields.items():
            if name in homes:
                raise SodapError(
                    f"{method} has an option called '{name}', as has every run; "
                    f"it can be set only under another name"
                )
            homes[name] = place, field.annotation
    return homes
