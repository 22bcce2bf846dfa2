"""Printing and saving of figures with their targets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sodap.runs.environment import environment
from sodap.storage import write_json

Targets = Mapping[str, tuple[float, str]]
"""Bound and `>=` or `<=` of each figure."""


def reached(value: float, bound: float, sign: str) -> bool:
    """Whether a figure is on the right side of its bound."""
    return value >= bound if sign == ">=" else value <= bound


def show(figures: Mapping[str, float], targets: Targets) -> None:
    """Print every figure, with its target if it has one."""
    for name, value in figures.items():
        remark = ""
        if name in targets:
            bound, sign = targets[name]
            verdict = "reached" if reached(value, bound, sign) else "MISSED"
            remark = f"   target {sign} {bound:g}: {verdict}"
        print(f"{name:36}{value:10.3f}{remark}")


def write(path: Path, figures: Mapping[str, float], targets: Targets, **more: Any) -> None:
    """Write figures, targets, `more` and the machine to a JSON file."""
    record = {
        **more,
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "targets": {name: f"{sign} {bound:g}" for name, (bound, sign) in targets.items()},
        "machine": environment().model_dump(mode="json"),
    }
    write_json(path, record)
