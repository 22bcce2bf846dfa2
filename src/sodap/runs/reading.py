"""Read the files of a run, also those of older formats and kept results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sodap.errors import SodapError, invalid
from sodap.runs.config import RunConfig
from sodap.runs.kept import KeptResult
from sodap.runs.record import (
    FORMAT,
    EpochRow,
    MetricsByMeasure,
    ResultMatrices,
    RunRecord,
    StreamInfo,
)
from sodap.storage import read_json


def read_record(path: Path) -> RunRecord:
    """Read a `record.json` of any format, or a kept result."""
    content = read_json(path)
    if "status" not in content:
        return checked(KeptResult, content, path, "record").as_record()
    return checked(RunRecord, upgrade(content, path), path, "record")


def upgrade(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Content of a record in the present format.

    Format 1 has no number and no sum of what is stored.
    """
    found = content.get("format", 1)
    if found == FORMAT:
        return content
    if found != 1:
        raise SodapError(
            f"{path} has format {found}, and this version of sodap reads formats up to {FORMAT}; "
            f"update sodap"
        )
    try:
        stages = [
            stage | {"stored_bytes": sum(asset["bytes"] for asset in stage["stored"])}
            for stage in content["stages"]
        ]
    except (LookupError, TypeError) as error:
        raise SodapError(f"{path} is not the record of a run") from error
    return content | {"format": FORMAT, "stages": stages}


def without_record(config: RunConfig, note: str) -> RunRecord:
    """Stand-in for the record of a run that has only a configuration."""
    nothing = ResultMatrices(accuracy=[], macro_f1=[])
    return RunRecord(
        command=[],
        config=config,
        environment=None,
        stream=StreamInfo(name=Path(config.stream).name, classes=[], domains=[]),
        backbone=None,
        status="no record",
        note=note,
        R=nothing,
        metrics=MetricsByMeasure.of(nothing),
        stages=[],
    )


def read_log(path: Path) -> tuple[list[EpochRow], int]:
    """Rows of a `log.jsonl`, and how many lines are damaged; nothing if there is no file."""
    if not path.is_file():
        return [], 0
    rows: list[EpochRow] = []
    damaged = 0
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            rows.append(EpochRow.model_validate({"steps": 0} | json.loads(line)))
        except (ValueError, TypeError, RecursionError):
            damaged += 1
    return rows, damaged


S = TypeVar("S", bound=BaseModel)


def checked(model: type[S], content: Any, path: Path, kind: str) -> S:
    """Content of a file as a model; if it does not fit, an error that names the file."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise invalid(f"{path} is not a valid {kind}", error) from error
