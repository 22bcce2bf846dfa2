"""Small streams, records and logs with numbers that are easy to recognise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from sodap.learning.trace import Trace, TraceBuffer
from sodap.runs.record import EpochRow, MetricsByMeasure, ResultMatrices, RunRecord
from sodap.streams import Domain, Split, Stream

DOMAINS = ("snow", "rain", "fog")
CLASSES = ("cat", "dog")


def grey_stream(
    domains: Sequence[str] = DOMAINS, classes: Sequence[str] = CLASSES, size: int = 8
) -> Stream:
    """Every image of class c in domain d has the grey level 10 * d + c."""

    def split(domain: int) -> Split:
        labels = torch.arange(len(classes)).repeat(2)
        grey = (10 * domain + labels).to(torch.uint8)
        return Split(grey[:, None, None, None].expand(-1, 3, size, size).contiguous(), labels)

    return Stream(
        "weather",
        tuple(classes),
        tuple(Domain(name, split(d), split(d), split(d)) for d, name in enumerate(domains)),
    )


ENVIRONMENT = {
    "sodap": "0.1.0",
    "commit": "c0ffee",
    "python": "3.11.7",
    "packages": {"torch": "2.11.0", "timm": None},
    "system": "Linux x86_64",
    "processor": "Abacus x 2",
    "threads": 2,
    "gpu": None,
}


def a_record(
    method: str = "residual-sodap",
    seed: int = 0,
    level: float = 0.8,
    *,
    edits: Mapping[str, Any] | None = None,
    **more: Any,
) -> RunRecord:
    """A finished run of two domains; the second stage costs the first domain 0.02 of accuracy.

    The seed adds noise, a little more for methods with long names. `edits` and `more` are as for
    `edited`.
    """
    noise = 0.001 * ((seed * 7) % 5 - 2) * (1 + len(method) / 100)
    R = [[level + noise, 0.3], [level - 0.02 + noise, level + 0.02]]
    stored = [
        {"name": "means", "kind": "statistics", "bytes": 20_000, "images": 0},
        {"name": "counts", "kind": "statistics", "bytes": 560, "images": 0},
    ]
    stage = {"epochs": 1, "seconds": 1.23}
    content = {
        "command": ["/somewhere/bin/sodap", "bench", "table1"],
        "status": "finished",
        "config": {"method": method, "seed": seed, "stream": "weather"},
        "environment": ENVIRONMENT,
        "backbone": {"name": "micro", "image_size": 32, "sha256": "ab12"},
        "stream": {
            "name": "weather",
            "classes": ["sun", "rain"],
            "domains": [
                {"name": "north", "counts": {"train": [3, 7], "val": [1, 1], "test": [6, 4]}},
                {"name": "south", "counts": {"train": [9, 1], "val": [1, 1], "test": [1, 9]}},
            ],
        },
        "R": {"accuracy": R, "macro_f1": (np.array(R) - 0.1).tolist()},
        "metrics": {"accuracy": None, "macro_f1": None},
        "throughput": {"train": 1000.0 + seed, "inference": 5000.0},
        "stages": [
            stage | {"stage": 1, "domain": "north", "trainable_parameters": 4321}
            | {"stored": [], "stored_bytes": 0},
            stage | {"stage": 2, "domain": "south", "trainable_parameters": 1234}
            | {"stored": stored, "stored_bytes": 20_560},
        ],
    }  # fmt: skip
    return edited(RunRecord.model_validate(content), edits=edits, **more)


def edited(record: RunRecord, *, edits: Mapping[str, Any] | None = None, **more: Any) -> RunRecord:
    """A record with other values.

    `edits` has keys such as `config.training.lr` or `stages.1.epochs`; `more` has top-level keys.
    The metrics follow from R.
    """
    content = record.model_dump(mode="json")
    for path, value in {**(edits or {}), **more}.items():
        place: Any = content
        *steps, last = path.split(".")
        for step in steps:
            place = place[int(step) if step.isdecimal() else step]
        place[int(last) if last.isdecimal() else last] = value
    metrics = MetricsByMeasure.of(ResultMatrices.model_validate(content["R"]))
    return RunRecord.model_validate(content | {"metrics": metrics})


def write(path: Path, content: Any) -> None:
    """Write a record or anything else as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, BaseModel):
        content = content.model_dump(mode="json")
    path.write_text(json.dumps(content))


def prompt_stages() -> RunRecord:
    """Three stages of a method with a pool and drift; the last has no range without drift."""
    stages = []
    for number, domain in enumerate(DOMAINS, 1):
        pool = {"frozen": 31 * (number - 1), "active": 31 + number, "unused": 200 - number}
        drift = {
            "score": 1.5 * number,
            "scores": [[1.0 * number, 1.2 * number], [1.7 * number, 2.1 * number]],
            "null_band": None if number == 3 else {"mean": 0.8, "low": 0.4, "high": 1.1 + number},
            "added": 31 + number,
        }
        stages.append(
            {
                "stage": number,
                "domain": domain,
                "epochs": 2,
                "begun": {"pool": pool, "drift": drift if number > 1 else None},
                "ended": {"pool": pool},
                "trainable_parameters": 7,
                "stored_bytes": 0,
                "seconds": 1.0,
            }
        )
    return edited(a_record(), stages=stages)


def results_matrix(stages: int = 3, level: float = 0.9, loss: float = 0.05) -> list[list[float]]:
    """R in which each stage after a domain's own costs it `loss`."""
    return [
        [
            round(level - loss * (stage - domain) + 0.001 * domain, 6)
            if domain <= stage
            else 0.123 + 0.01 * domain + 0.001 * stage
            for domain in range(len(DOMAINS))
        ]
        for stage in range(stages)
    ]


def a_log(stages: int = 3, *, weighed: bool = True) -> list[EpochRow]:
    """Two epochs per stage; weights from stage 2 on."""
    rows = []
    for stage in range(1, stages + 1):
        for epoch in (1, 2):
            losses = {"ce": 2.0 / epoch + stage} | ({"real": 0.01 * stage} if stage > 1 else {})
            weights = dict.fromkeys(losses, 1.0 + 0.1 * epoch) if stage > 1 and weighed else {}
            rows.append(
                EpochRow(
                    stage=stage,
                    domain=DOMAINS[stage - 1],
                    epoch=epoch,
                    lr=0.001,
                    steps=3,
                    losses=losses,
                    weights=weights,
                    val_macro_f1=0.5,
                    val_accuracy=0.5,
                    images_per_second=100.0,
                    seconds=1.0,
                )
            )
    return rows


def a_trace(rows: Sequence[EpochRow]) -> dict[int, Trace]:
    """Three steps per epoch, around the means of the log; the last batch is half as large."""
    traces: dict[int, Trace] = {}
    for row in rows:
        buffer = TraceBuffer(3, torch.device("cpu"))
        for images, off in ((4, 0.1), (4, -0.2), (2, 0.2)):
            losses = {name: torch.tensor(mean * (1 + off)) for name, mean in row.losses.items()}
            weights = {name: torch.tensor(end + off - 0.2) for name, end in row.weights.items()}
            buffer.add(images, losses, weights)
        before = traces.get(row.stage, Trace())
        traces[row.stage] = before.concat(buffer.fetch(row.epoch))
    return traces
