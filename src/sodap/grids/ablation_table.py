"""The table of an ablation, as the paper prints its own: scores, and points against the whole.

A cell is mean ± standard deviation over seeds. Differences are taken seed by seed and given in
points, hundredths of the score: the same start values, the same order of images, one part less.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from sodap.evaluation import PairedDifference, SeedMean, mean_over_seeds, paired_difference
from sodap.grids.ablation import FULL, Ablation, Variant, parts_of
from sodap.runs.runner import finished_record
from sodap.storage import write_bytes, write_json

SCORES = {"average_accuracy": "AvgACC", "average_forgetting": "AvgF"}

Seeds = Mapping[int, float]
"""A score by seed."""


@dataclass(frozen=True)
class Row:
    """What one variant has scored."""

    variant: Variant
    parts: Mapping[str, bool]
    """The paper's eight parts, and whether they are at work."""
    scores: Mapping[str, Seeds]
    """`average_accuracy` and `average_forgetting` of the finished runs."""
    full: Mapping[str, Seeds]
    """The same of the full method."""

    @property
    def runs(self) -> int:
        return len(self.scores["average_accuracy"])

    def spread(self, score: str) -> SeedMean | None:
        numbers = list(self.scores[score].values())
        return mean_over_seeds(numbers) if numbers else None

    def difference(self, score: str) -> PairedDifference | None:
        """This variant minus the full method, over the seeds that both have."""
        mine, theirs = self.scores[score], self.full[score]
        common = [seed for seed in mine if seed in theirs]
        if not common or self.variant == FULL:
            return None
        return paired_difference([mine[s] for s in common], [theirs[s] for s in common])


def table_of(ablation: Ablation) -> list[Row]:
    """From the records of the finished runs, the full method first."""
    full = _scores(ablation, FULL)
    return [
        Row(
            variant,
            parts_of(ablation.config(variant)),
            full if variant == FULL else _scores(ablation, variant),
            full,
        )
        for variant in ablation.variants()
    ]


def _scores(ablation: Ablation, variant: Variant) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {score: {} for score in SCORES}
    for seed in ablation.seeds:
        folder = ablation.folder(variant, seed)
        record = finished_record(folder)
        if record is not None:
            for score in SCORES:
                value = getattr(record.metrics.accuracy, score)
                if value is not None:  # one domain cannot be forgotten
                    found[score][seed] = value
    return found


# ---------------------------------------------------------------------- single cells


def show(found: SeedMean | None, plus: str = " ± ") -> str:
    if found is None:
        return "–"
    return f"{found.mean:.3f}" + ("" if found.sd is None else f"{plus}{found.sd:.3f}")


def show_points(row: Row, score: str) -> str:
    """With a sign; `*` where 0 lies outside both intervals (see `PairedDifference.sign`)."""
    if row.variant == FULL:
        return "+0.0" if row.scores[score] else "–"
    gap = row.difference(score)
    if gap is None:
        return "–"
    return f"{round(100 * gap.mean, 1) + 0.0:+.1f}" + ("*" if gap.sign else "")


# ---------------------------------------------------------------------- the files


def write_table(ablation: Ablation, rows: Sequence[Row]) -> list[Path]:
    """`ablation.md`, `.csv` and `.json` in the ablation's folder."""
    paths = [ablation.out / f"ablation.{form}" for form in ("md", "csv", "json")]
    write_bytes(paths[0], as_markdown(ablation, rows).encode())
    write_bytes(paths[1], as_csv(rows).encode())
    write_json(paths[2], as_json(ablation, rows))
    return paths


def as_markdown(ablation: Ablation, rows: Sequence[Row]) -> str:
    config = ablation.config(FULL)
    changed = " ".join([ablation.recipe, *ablation.changes])
    heads = ["variant", *rows[0].parts, "seeds", "AvgACC", "AvgF", "ΔAvgACC", "ΔAvgF"]
    lines = [
        f"# Ablation of {config.method} on {config.stream}",
        "",
        f"Recipe and changes: `{changed}`. Backbone: {config.backbone}.",
        "",
        f"| {' | '.join(heads)} |",
        f"|---|{':-:|' * len(rows[0].parts)}{'--:|' * 5}",
    ]
    for group, members in groupby(rows, lambda row: row.variant.group):
        if group:
            lines.append(f"| *{group}* |{' |' * (len(heads) - 1)}")
        for row in members:
            ticks = ["✓" if on else "" for on in row.parts.values()]
            cells = [show(row.spread(score)) for score in SCORES]
            cells += [show_points(row, score) for score in SCORES]
            lines.append(f"| {' | '.join([row.variant.title, *ticks, str(row.runs), *cells])} |")
    return "\n".join(lines) + (
        "\n\nMean ± standard deviation over seeds. Δ is the change against the full method in "
        "points (hundredths), seed by seed; * where two 95 % intervals, a bootstrap's and "
        "Student's, leave 0 out, each for itself: not corrected for the number of comparisons.\n"
    )


def as_csv(rows: Sequence[Row]) -> str:
    """Every number in full; differences in points."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [f"{score}_{part}" for score in SCORES for part in _NUMBERS]
    writer.writerow(["variant", "title", "changes", *rows[0].parts, "seeds", *columns])
    for row in rows:
        numbers = [_numbers(row, score)[part] for score in SCORES for part in _NUMBERS]
        variant = row.variant
        named = [variant.name, variant.title, " ".join(variant.changes)]
        writer.writerow([*named, *(int(on) for on in row.parts.values()), row.runs, *numbers])
    return out.getvalue()


def as_json(ablation: Ablation, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "command": list(ablation.command),
        "recipe": ablation.recipe,
        "changes": list(ablation.changes),
        "config": ablation.config(FULL).described(),
        "seeds": list(ablation.seeds),
        "rows": [
            {
                "variant": row.variant.name,
                "title": row.variant.title,
                "group": row.variant.group or None,
                "changes": list(row.variant.changes),
                "parts": dict(row.parts),
                "runs": {
                    score: {str(s): v for s, v in row.scores[score].items()} for score in SCORES
                },
                **{score: _numbers(row, score) for score in SCORES},
            }
            for row in rows
        ],
    }


_NUMBERS = ("mean", "sd", "points", "points_low", "points_high")


def _numbers(row: Row, score: str) -> dict[str, float | None]:
    found, gap = row.spread(score), row.difference(score)

    def points(value: float | None) -> float | None:
        return None if value is None else 100 * value

    return {
        "mean": found.mean if found else None,
        "sd": found.sd if found else None,
        "points": points(gap.mean) if gap else None,
        "points_low": points(gap.low) if gap else None,
        "points_high": points(gap.high) if gap else None,
    }
