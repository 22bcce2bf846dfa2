"""Many runs: grids of streams, methods and seeds, searches for settings, ablations."""

from sodap.grids.ablation import Ablation
from sodap.grids.grid import Grid, GridCallback, GridSummary, grid_names, read_grid
from sodap.grids.task import Task

__all__ = [
    "Ablation",
    "Grid",
    "GridCallback",
    "GridSummary",
    "Task",
    "grid_names",
    "read_grid",
]
