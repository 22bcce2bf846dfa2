"""Tables of methods as JSON: every number in full, single seeds included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sodap.evaluation import PairedDifference
from sodap.reporting.tables.conclusion import conclusion
from sodap.reporting.tables.metrics import Metric
from sodap.reporting.tables.stream_table import StreamTable


def as_json_content(
    tables: Sequence[StreamTable],
    metrics: Sequence[Metric],
    against: Callable[[StreamTable], str | None],
) -> dict[str, Any]:
    """Content of a JSON file with all tables."""
    return {
        "intervals": "Student's t over seeds, 95 %",
        "tables": [_table(table, metrics, against(table)) for table in tables],
    }


def _table(table: StreamTable, metrics: Sequence[Metric], against: str | None) -> dict[str, Any]:
    differences: dict[str, dict[str, PairedDifference | None]] = {
        metric.key: {} if against is None else table.family(against, metric.key)
        for metric in metrics
    }
    return {
        "stream": table.stream,
        "backbone": table.backbone,
        "domains": list(table.domains),
        "folds": table.folds,
        "against": against,
        "difference_intervals": table.intervals,
        "constant": {
            "answer": table.constant_class,
            **{metric.key: table.constant.get(metric.key) for metric in metrics},
        },
        "conclusion": conclusion(table, against).replace("`", ""),
        "rows": [
            {
                "method": method,
                "variant_of": table.variants.get(method),
                "ranked": method in table.ranked,
                "seeds": table.seeds(method),
                "recall": _by_seed(table.recalls.get(method, {})),
                "never_found": table.never_found(method),
                **{
                    metric.key: _numbers(table, method, metric, differences[metric.key].get(method))
                    for metric in metrics
                },
            }
            for method in table.methods
        ],
    }


def _numbers(
    table: StreamTable, method: str, metric: Metric, gap: PairedDifference | None
) -> dict[str, Any]:
    mean = table.mean(method, metric.key)
    return {
        "mean": mean and mean.mean,
        "sd": mean and mean.sd,
        "low": mean and mean.low,
        "high": mean and mean.high,
        "seeds": {str(seed): value for seed, value in table.scores[method][metric.key].items()},
        "difference": gap
        and {
            "mean": gap.mean,
            "low": gap.low,
            "high": gap.high,
            "common_seeds": gap.count,
            "p": gap.p,
            "significant": gap.significant,
        },
    }


def _by_seed(found: Any) -> dict[str, dict[str, float]]:
    return {
        name: {str(seed): value for seed, value in values.items()} for name, values in found.items()
    }
