"""Figures beside their targets, on the terminal and as a record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sodap.runs.environment import environment
from sodap.storage import write_json

Targets = Mapping[str, tuple[float, str]]
"""Name -> bound and `>=` or `<=`."""


def reached(value: float, bound: float, sign: str) -> bool:
    return value >= bound if sign == ">=" else value <= bound


def show(figures: Mapping[str, float], targets: Targets) -> None:
    for name, value in figures.items():
        remark = ""
        if name in targets:
            bound, sign = targets[name]
            verdict = "reached" if reached(value, bound, sign) else "MISSED"
            remark = f"   target {sign} {bound:g}: {verdict}"
        print(f"{name:36}{value:10.3f}{remark}")


def write(path: Path, figures: Mapping[str, float], targets: Targets, **more: Any) -> None:
    record = {
        **more,
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "targets": {name: f"{sign} {bound:g}" for name, (bound, sign) in targets.items()},
        "machine": environment().model_dump(mode="json"),
    }
    write_json(path, record)
