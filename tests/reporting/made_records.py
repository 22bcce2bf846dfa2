"""Small records and streams with numbers that are easy to find again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from sodap.evaluation import summary
from sodap.learning.trace import Trace, TraceBuffer
from sodap.streams import Domain, Split, Stream

DOMAINS = ("snow", "rain", "fog")
CLASSES = ("cat", "dog")


def made_stream(
    domains: tuple[str, ...] = DOMAINS, classes: tuple[str, ...] = CLASSES, size: int = 8
) -> Stream:
    """Every image of class c in domain d has the one grey level 10 * d + c."""

    def split(domain: int) -> Split:
        labels = torch.arange(len(classes)).repeat(2)
        grey = (10 * domain + labels).to(torch.uint8)
        return Split(grey[:, None, None, None].expand(-1, 3, size, size).contiguous(), labels)

    return Stream(
        "weather",
        classes,
        tuple(Domain(name, split(d), split(d), split(d)) for d, name in enumerate(domains)),
    )


def made_record(
    stages: int = 3,
    *,
    level: float = 0.9,
    loss: float = 0.05,
    prompts: bool = True,
    stream: Stream | None = None,
) -> dict[str, Any]:
    """As `run` would return it: each stage after a domain's own costs it `loss` of accuracy."""
    stream = stream or made_stream()
    names = [domain.name for domain in stream.domains]
    accuracy = [
        [
            round(level - loss * (stage - domain) + 0.001 * domain, 6)
            if domain <= stage
            else 0.123 + 0.01 * domain + 0.001 * stage
            for domain in range(len(names))
        ]
        for stage in range(stages)
    ]
    macro_f1 = (np.array(accuracy) - 0.017).tolist()
    record = {
        "command": ["sodap", "demo", "--out", "my folder"],
        "config": {"stream": stream.name, "seed": 4711, "training": {"lr": 0.00123}},
        "environment": {
            "sodap": "0.1.0",
            "commit": "c0ffee",
            "python": "3.11.7",
            "packages": {"torch": "2.11.0", "timm": None},
            "system": "Linux x86_64",
            "processor": "Abacus x 2",
            "threads": 2,
            "gpu": None,
        },
        "stream": {"name": stream.name, "domains": [{"name": name} for name in names]},
        "backbone": {"name": "micro", "weights": "random", "image_size": 8, "sha256": "ab12"},
        "status": "finished",
        "note": None,
        "R": {"accuracy": accuracy, "macro_f1": macro_f1},
        "metrics": {"accuracy": summary(accuracy), "macro_f1": summary(macro_f1)},
        "stages": [_stage(number, names[number - 1], prompts) for number in range(1, stages + 1)],
    }
    copy: dict[str, Any] = json.loads(json.dumps(record))  # nothing that a file could not hold
    return copy


def _stage(number: int, domain: str, prompts: bool) -> dict[str, Any]:
    pool = {"frozen": 31 * (number - 1), "active": 31 + number, "unused": 200 - number}
    met = {
        "score": 1.5 * number,
        "scores": [[1.0 * number, 1.2 * number], [1.7 * number, 2.1 * number]],
        "null_band": None if number == 3 else {"mean": 0.8, "low": 0.4, "high": 1.1 + number},
        "added": 31 + number,
    }
    begun = {"pool": pool} | ({"drift": met} if number > 1 else {})
    return {
        "stage": number,
        "domain": domain,
        "epochs": 2,
        "best_epoch": 1,
        "begun": begun if prompts else {},
        "ended": {"pool": pool} if prompts else {},
        "trainable_parameters": 7654 - number,
        "stored": [{"name": "class means", "kind": "statistics", "bytes": 20560, "images": 0}]
        if prompts
        else [],
        "seconds": 10.5 + number,
    }


def made_traces(rows: list[dict[str, Any]]) -> dict[int, Trace]:
    """Three steps an epoch, around the means of the log; the last batch is half as large."""
    traces: dict[int, Trace] = {}
    for row in rows:
        buffer = TraceBuffer(3, torch.device("cpu"))
        for images, off in ((4, 0.1), (4, -0.2), (2, 0.2)):
            losses = {name: torch.tensor(mean * (1 + off)) for name, mean in row["losses"].items()}
            weights = {name: torch.tensor(end + off - 0.2) for name, end in row["weights"].items()}
            buffer.add(images, losses, weights)
        before = traces.get(row["stage"], Trace())
        traces[row["stage"]] = before.concat(buffer.fetch(row["epoch"]))
    return traces


def made_log(stages: int = 3, *, weighed: bool = True) -> list[dict[str, Any]]:
    """Two epochs a stage; weights from stage 2 on."""
    rows = []
    for stage in range(1, stages + 1):
        for epoch in (1, 2):
            losses = {"ce": 2.0 / epoch + stage} | ({"real": 0.01 * stage} if stage > 1 else {})
            weights = dict.fromkeys(losses, 1.0 + 0.1 * epoch) if stage > 1 and weighed else {}
            rows.append(
                {
                    "stage": stage,
                    "domain": DOMAINS[stage - 1],
                    "epoch": epoch,
                    "losses": losses,
                    "weights": weights,
                    "val_macro_f1": 0.5,
                }
            )
    return rows
