"""One run: its configuration, what it writes, and how it resumes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sodap.runs.config import RunConfig, load_config, read_recipe, recipe_names

if TYPE_CHECKING:
    from sodap.runs.callback import RunCallback
    from sodap.runs.record import RunContext, RunRecord
    from sodap.runs.runner import run

__all__ = [
    "RunCallback",
    "RunConfig",
    "RunContext",
    "RunRecord",
    "load_config",
    "read_recipe",
    "recipe_names",
    "run",
]

_MODULES = {
    "RunCallback": "callback",
    "RunContext": "record",
    "RunRecord": "record",
    "run": "runner",
}


def __getattr__(name: str) -> Any:
    """Import torch only when it is needed: recipes are read without it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'sodap.runs' has no attribute '{name}'")
    return getattr(import_module(f"sodap.runs.{_MODULES[name]}"), name)
