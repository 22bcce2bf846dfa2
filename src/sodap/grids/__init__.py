"""Many runs: grids of streams, methods and seeds, searches for settings, ablations."""

from typing import TYPE_CHECKING

from sodap.lazy import lazy_attributes

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

__getattr__ = lazy_attributes(
    __name__,
    {
        "Ablation": "ablation",
        "Grid": "grid",
        **dict.fromkeys(("GridCallback", "GridSummary", "run_grid"), "grid_run"),
        **dict.fromkeys(("grid_names", "read_grid"), "recipe"),
        "Task": "task",
    },
)
