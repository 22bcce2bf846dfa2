"""YAML files by name: those that come with the package (recipes, grids), or a user's own."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from sodap.errors import SodapError

RECIPES = resources.files("sodap.runs").joinpath("recipes")
GRIDS = resources.files("sodap").joinpath("grids")


def yaml_names(folder: Traversable) -> list[str]:
    """Names of the YAML files in a folder of the package, without `.yaml`."""
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def read_named_yaml(folder: Traversable, kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Description (the opening comment) and content of a file in `folder`, or of a user's file.

    `kind` says in error messages what the file is: a recipe or a grid.
    """
    try:
        text = _text(folder, kind, name)
    except (OSError, UnicodeDecodeError) as error:
        raise SodapError(f"{kind} '{name}' cannot be read as text") from error
    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SodapError(f"{kind} '{name}' is not valid YAML") from error
    if not isinstance(content, dict):
        raise SodapError(f"{kind} '{name}' must consist of 'key: value' lines")
    opening = [line[1:].strip() for line in text.split("\n\n")[0].splitlines() if line[:1] == "#"]
    return " ".join(opening), content


def _text(folder: Traversable, kind: str, name: str) -> str:
    if name in yaml_names(folder):
        return folder.joinpath(f"{name}.yaml").read_text("utf-8")
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        return Path(name).read_text("utf-8")
    raise SodapError(
        f"no {kind} is called '{name}'; there are: {', '.join(yaml_names(folder))}, "
        f"or give the path of a YAML file"
    )
