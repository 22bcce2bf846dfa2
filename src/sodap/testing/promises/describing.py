"""Checks of a method's description."""

from __future__ import annotations

from sodap.methods import find_method, options_of
from sodap.testing.promises.checks import promise, require
from sodap.testing.trial import Trial


@promise
def describes_itself(trial: Trial) -> None:
    """It has a docstring, `family`, `trains`, `stores`, and a description of every option."""
    method = find_method(trial.method)
    for attribute in ("name", "family", "trains", "stores"):
        require(bool(getattr(method, attribute, "")), f"it has no {attribute}")
    require(bool(method.__doc__), f"{method.__name__} has no docstring")
    for option in options_of(method.Config):
        require(bool(option.meaning), f"option '{option.name}' has no description")
        require(option.default != "–", f"option '{option.name}' has no default")
