"""Many runs: grids of streams, methods and seeds, searches for settings, ablations."""

from sodap.grids.ablation import Ablation
from sodap.grids.grid import Grid, grid_names, read_grid
from sodap.grids.grid_run import GridCallback, GridSummary, run_grid
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
