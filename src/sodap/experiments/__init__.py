"""Recipes, runs and their records."""

from sodap.experiments.ablation import Ablation
from sodap.experiments.config import RunConfig, load_config, read_recipe, recipe_names
from sodap.experiments.environment import environment
from sodap.experiments.grid import Grid, GridObserver, Outcome, grid_names, read_grid
from sodap.experiments.observer import Observer
from sodap.experiments.run import is_finished, run
from sodap.experiments.task import Task

__all__ = [
    "Ablation",
    "Grid",
    "GridObserver",
    "Observer",
    "Outcome",
    "RunConfig",
    "Task",
    "environment",
    "grid_names",
    "is_finished",
    "load_config",
    "read_grid",
    "read_recipe",
    "recipe_names",
    "run",
]
