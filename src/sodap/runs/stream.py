"""The stream of a run, as its configuration names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sodap.backbones import native_size
from sodap.errors import SodapError
from sodap.runs.config import RunConfig
from sodap.runs.reading import read_record
from sodap.streams import Stream, load_stream
from sodap.streams.class_names import ALL_CLASSES
from sodap.streams.grey import GreyRanges

SPLITS = "splits.csv"
"""Name of the file with the splits in the folder of a run."""


def load_run_stream(
    config: RunConfig,
    folder: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """Load the stream of a run; one that has begun in `folder` keeps its splits and ranges."""
    saved = None if folder is None else folder / SPLITS
    begun = saved is not None and saved.is_file()
    return load_stream(
        config.stream,
        config.image_size or native_size(config.backbone),
        data=config.data,
        split_seed=config.split_seed,
        splits=str(saved) if begun else config.splits,
        groups=config.groups,
        classes=config.classes or (ALL_CLASSES if begun else None),
        ranges=None if folder is None else _saved_ranges(folder / "record.json"),
        on_progress=on_progress,
    )


def _saved_ranges(record: Path) -> GreyRanges | None:
    """The ranges that a run began with; None if it has not begun or its record is damaged."""
    try:
        return GreyRanges.from_json(read_record(record).stream.ranges)
    except SodapError:
        return None
