"""The table of an ablation: the full method and its variants, compared as in any other table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sodap.errors import SodapError
from sodap.grids.ablation import Ablation
from sodap.methods.variants import FULL, Variant
from sodap.reporting.tables.conclusion import conclusion
from sodap.reporting.tables.formats import as_csv, as_markdown, recall_markdown
from sodap.reporting.tables.metrics import METRICS, Metric
from sodap.reporting.tables.results import Result
from sodap.reporting.tables.stream_table import StreamTable, make_tables
from sodap.runs.runner import finished_record
from sodap.storage import write_bytes, write_json

VIEWS = {
    "Accuracy": ("final_average", "average_accuracy", "macro_f1"),
    "Forgetting": ("average_forgetting", "backward_transfer"),
}
"""Each view compares its first metric with that of the full method."""


def metrics_of(view: str) -> list[Metric]:
    return [METRICS[key] for key in VIEWS[view]]


def ablation_table(ablation: Ablation) -> StreamTable:
    """All finished runs; the row of the full method has the name of the method."""
    full = ablation.method.name
    results = []
    for variant in ablation.variants:
        for seed in ablation.seeds:
            folder = ablation.folder(variant, seed)
            record = finished_record(folder)
            if record is not None:
                results.append(Result.of(record, folder, _row(ablation, variant)))
    if not any(result.row == full for result in results):
        raise SodapError("no run of the full method is finished, so there is nothing to compare")
    (table,) = make_tables(results)
    return table


def _row(ablation: Ablation, variant: Variant) -> str:
    """Name of a variant's row."""
    return ablation.method.name if variant == FULL else variant.title


def write_ablation(ablation: Ablation, table: StreamTable) -> list[Path]:
    """Write `ablation.md`, `.csv` and `.json` into the folder of the ablation."""
    paths = [ablation.out / f"ablation.{form}" for form in ("md", "csv", "json")]
    write_bytes(paths[0], _markdown(ablation, table).encode())
    metrics = [METRICS[key] for keys in VIEWS.values() for key in keys]
    write_bytes(paths[1], as_csv([table], metrics, lambda _: ablation.method.name).encode())
    write_json(paths[2], _json(ablation, table))
    return paths


def _markdown(ablation: Ablation, table: StreamTable) -> str:
    full = ablation.method
    settings = " ".join([ablation.recipe, *ablation.changes])
    lines = [
        f"# Ablation of {full.name} on {table.stream}",
        "",
        f"Recipe and changes: `{settings}`. Backbone: {table.backbone}.",
    ]
    for view in VIEWS:
        lines += ["", f"## {view}", "", as_markdown(table, metrics_of(view), full.name).rstrip()]
    if recalls := recall_markdown(table):
        lines += ["", "## Recall", "", recalls.rstrip()]
    lines += ["", conclusion(table)]
    parts = list(full.active_parts(ablation.config(FULL).options))
    lines += ["", "## Parts", "", f"| {' | '.join(['variant', 'settings', *parts])} |"]
    lines += [f"|---|---|{':-:|' * len(parts)}"]
    for variant in ablation.variants:
        active = full.active_parts(ablation.config(variant).options)
        marks = ["✓" if active[part] else "" for part in parts]
        changes = f"`{' '.join(variant.changes)}`" if variant.changes else ""
        lines.append(f"| {' | '.join([variant.title, changes, *marks])} |")
    return "\n".join(lines) + "\n"


def _json(ablation: Ablation, table: StreamTable) -> dict[str, Any]:
    full = ablation.method.name
    pairs = [(row, full) for row in table.methods if row != full]
    rows: dict[str, dict[str, Any]] = {row: {} for row in table.methods}
    for key in (key for keys in VIEWS.values() for key in keys):
        gaps = dict(zip(pairs, table.differences(pairs, key), strict=True))
        for row, cells in rows.items():
            mean, gap = table.mean(row, key), gaps.get((row, full))
            cells[key] = {
                "mean": mean and mean.mean,
                "sd": mean and mean.sd,
                "seeds": {str(seed): value for seed, value in table.scores[row][key].items()},
                "difference": gap and gap.mean,
                "difference_low": gap and gap.low,
                "difference_high": gap and gap.high,
                "p": gap and gap.p,
                "significant": None if gap is None else gap.significant,
            }
    return {
        "command": list(ablation.command),
        "recipe": ablation.recipe,
        "changes": list(ablation.changes),
        "config": ablation.config(FULL).model_dump(mode="json"),
        "seeds": list(ablation.seeds),
        "intervals": table.intervals,
        "constant": {"answer": table.constant_class, **table.constant},
        "rows": [
            {
                "variant": variant.name,
                "title": variant.title,
                "group": variant.group or None,
                "changes": list(variant.changes),
                "parts": ablation.method.active_parts(ablation.config(variant).options),
                **rows.get(_row(ablation, variant), {}),
                "recall": table.recalls.get(_row(ablation, variant), {}),
            }
            for variant in ablation.variants
        ],
    }
