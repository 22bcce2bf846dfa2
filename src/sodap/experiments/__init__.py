"""Recipes, runs and their records."""

from sodap.experiments.config import RunConfig, load_config, read_recipe, recipe_names
from sodap.experiments.environment import environment
from sodap.experiments.run import Observer, is_finished, run

__all__ = [
    "Observer",
    "RunConfig",
    "environment",
    "is_finished",
    "load_config",
    "read_recipe",
    "recipe_names",
    "run",
]
