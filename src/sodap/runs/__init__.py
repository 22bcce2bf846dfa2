"""One run: its configuration, what it writes, and how it resumes."""

from typing import TYPE_CHECKING

from sodap.lazy import lazy_attributes
from sodap.runs.config import RunConfig, load_config, read_recipe, recipe_names

if TYPE_CHECKING:
    from sodap.runs.callback import RunCallback
    from sodap.runs.extension import extend
    from sodap.runs.record import RunContext, RunRecord
    from sodap.runs.runner import run

__all__ = [
    "RunCallback",
    "RunConfig",
    "RunContext",
    "RunRecord",
    "extend",
    "load_config",
    "read_recipe",
    "recipe_names",
    "run",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "RunCallback": "callback",
        "RunContext": "record",
        "RunRecord": "record",
        "extend": "extension",
        "run": "runner",
    },
)
