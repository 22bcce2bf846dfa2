"""What a method says of itself."""

from __future__ import annotations

from sodap.methods import find_method, options_of
from sodap.testing.promises.judging import demand, promise
from sodap.testing.trial import Trial


@promise
def says_what_it_is(trial: Trial) -> None:
    """A docstring, a few words on what trains and what is stored, a line for every option."""
    method = find_method(trial.method)
    for attribute in ("name", "family", "trains", "stores"):
        demand(bool(getattr(method, attribute, "")), f"it has no {attribute}")
    demand(bool(method.__doc__), f"{method.__name__} has no docstring")
    for option in options_of(method.Config):
        demand(bool(option.meaning), f"option '{option.name}' has no description")
        demand(option.default != "–", f"option '{option.name}' has no default")
