"""Records of many small runs on a stream with round numbers, for tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def a_record(method: str, seed: int, level: float, **changes: Any) -> dict[str, Any]:
    """Two domains; every second stage costs 0.02, and a seed adds its own small noise.

    It adds a little more to some methods than to others, or their difference would know no noise.
    """
    noise = 0.001 * ((seed * 7) % 5 - 2) * (1 + len(method) / 100)
    R = [[level + noise, 0.3], [level - 0.02 + noise, level + 0.02]]
    record = {
        "status": "finished",
        "config": {"method": method, "seed": seed, "stream": "weather"},
        "backbone": {"name": "micro", "image_size": 32},
        "stream": {
            "name": "weather",
            "classes": ["sun", "rain"],
            "domains": [
                {"name": "north", "counts": {"train": [3, 7], "val": [1, 1], "test": [6, 4]}},
                {"name": "south", "counts": {"train": [9, 1], "val": [1, 1], "test": [1, 9]}},
            ],
        },
        "R": {"accuracy": R, "macro_f1": (np.array(R) - 0.1).tolist()},
        "throughput": {"train": 1000.0 + seed, "inference": 5000.0},
        "stages": [
            {"trainable_parameters": 4321, "stored": []},
            {
                "trainable_parameters": 1234,
                "stored": [{"bytes": 20_000, "images": 0}, {"bytes": 560, "images": 0}],
            },
        ],
    }
    return record | changes


def write(path: Path, record: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
