"""Many runs: grids of streams, methods and seeds, searches for settings, ablations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sodap.grids.ablation import Ablation
    from sodap.grids.grid import Grid
    from sodap.grids.grid_run import GridCallback, GridSummary, run_grid
    from sodap.grids.recipe import grid_names, read_grid
    from sodap.grids.task import Task

__all__ = [
    "Ablation",
    "Grid",
    "GridCallback",
    "GridSummary",
    "Task",
    "grid_names",
    "read_grid",
    "run_grid",
]

_MODULES = {
    "Ablation": "ablation",
    "Grid": "grid",
    **dict.fromkeys(("GridCallback", "GridSummary", "run_grid"), "grid_run"),
    **dict.fromkeys(("grid_names", "read_grid"), "recipe"),
    "Task": "task",
}


def __getattr__(name: str) -> Any:
    """Import torch only when it is needed: grid files are read without it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'sodap.grids' has no attribute '{name}'")
    return getattr(import_module(f"sodap.grids.{_MODULES[name]}"), name)
