"""One run: its configuration, what it writes, and how it resumes."""

from sodap.runs.callback import RunCallback
from sodap.runs.config import RunConfig, load_config, read_recipe, recipe_names
from sodap.runs.environment import environment
from sodap.runs.record import RunContext, RunRecord
from sodap.runs.run import run

__all__ = [
    "RunCallback",
    "RunConfig",
    "RunContext",
    "RunRecord",
    "environment",
    "load_config",
    "read_recipe",
    "recipe_names",
    "run",
]
