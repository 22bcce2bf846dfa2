"""How alike the prompts of a pool are, at the end of the section on routing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sodap.reporting.figures.accuracy import BLUE, ORANGE, WIDTH
from sodap.reporting.figures.heat_maps import veil
from sodap.reporting.figures.svg import INK, STYLE
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Cell, Drawing, Table
from sodap.runs.evidence import StageEvidence


def likeness_drawings(run: ShownRun) -> Iterator[Drawing]:
    """One, or none where no stage left the cosines of its prompts."""
    alike = [stage for stage in run.evidence if stage.similarity is not None]
    if alike:
        yield Drawing(
            "prompt-likeness",
            f"Cosine similarity of the prompts of {run.title} after each stage",
            likeness_figure(run, alike),
            "Cosine similarity of all pairs of prompts after each stage: blue alike, orange "
            "opposite, clear unrelated. Lines part the prompts of different stages. The picture "
            "before an expansion is that of the stage before.",
            [likeness_table(run, alike)],
            wide=len(alike) > 3,
        )


def likeness_figure(run: ShownRun, stages: Sequence[StageEvidence]) -> Figure:
    across = min(len(stages), 4)
    down = -(-len(stages) // across)
    with rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH, 2.0 * across), 2.1 * down + 0.2))
        ends: list[int] = []
        for place, stage in enumerate(stages, 1):
            assert stage.similarity is not None
            cosines = stage.similarity.float().numpy().astype(np.float64)
            axes = figure.add_subplot(down, across, place)
            picture = np.where(
                cosines[..., None] < 0, veil(-cosines, ORANGE, 1.0), veil(cosines, BLUE, 1.0)
            )
            axes.imshow(picture, interpolation="none")
            for end in ends:
                axes.axhline(end - 0.5, color=INK, alpha=0.5, lw=0.6)
                axes.axvline(end - 0.5, color=INK, alpha=0.5, lw=0.6)
            if not ends or len(cosines) > ends[-1]:
                ends.append(len(cosines))
            axes.set_title(f"after stage {stage.number}", size=9)
            axes.tick_params(length=0, labelsize=8)
    return figure


def likeness_table(run: ShownRun, stages: Sequence[StageEvidence]) -> Table:
    """Mean size of the cosine between different prompts: old, new, and old with new."""
    rows: list[Sequence[str | Cell]] = []
    for stage in stages:
        assert stage.similarity is not None
        cosines = np.abs(stage.similarity.float().numpy().astype(np.float64))
        frozen = stage.pool.frozen if stage.pool is not None else 0
        parts = (_pairs(cosines[:frozen, :frozen]), _pairs(cosines[frozen:, frozen:]))
        between = float(cosines[:frozen, frozen:].mean()) if 0 < frozen < len(cosines) else None
        numbers = [*parts, between, _largest(cosines)]
        rows.append(
            [
                f"stage {stage.number}",
                *(Cell("–" if v is None else f"{v:.3f}", v) for v in numbers),
            ]
        )
    return Table(
        "Mean size of the cosine between two different prompts",
        ["After", "Among frozen", "Among active", "Frozen with active", "Largest of all"],
        rows,
    )


def _pairs(cosines: NDArray[np.float64]) -> float | None:
    """The mean off the diagonal."""
    count = len(cosines)
    if count < 2:
        return None
    return float((cosines.sum() - np.trace(cosines)) / (count * (count - 1)))


def _largest(cosines: NDArray[np.float64]) -> float | None:
    if len(cosines) < 2:
        return None
    return float(cosines[~np.eye(len(cosines), dtype=bool)].max())
