"""The stream of a run, as its configuration names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sodap.backbones import native_size
from sodap.errors import SodapError
from sodap.runs.config import RunConfig
from sodap.runs.reading import read_record
from sodap.runs.record import RunRecord, StreamInfo
from sodap.streams import Stream, load_stream, make_plan
from sodap.streams.build import build_stream
from sodap.streams.class_names import ALL_CLASSES
from sodap.streams.grey import GreyRanges
from sodap.streams.loading import checked_plan
from sodap.streams.plans import Plan, continued

SPLITS = "splits.csv"
"""Name of the file with the splits in the folder of a run."""


def load_run_stream(
    config: RunConfig,
    folder: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    with_new: bool = False,
) -> Stream:
    """Load the stream of a run.

    A run that has begun in `folder` keeps its splits, classes, domains and ranges. Domains that
    were added since are left out, or with `with_new` come last.
    """
    size = config.image_size or native_size(config.backbone)
    begun = None if folder is None else _begun(folder)
    if folder is not None and begun is not None:
        plan = _plan_begun(config, folder, begun, with_new=with_new)
        stream = build_stream(
            plan,
            size,
            on_progress,
            GreyRanges.from_json(begun.stream.ranges),
            skip_unreadable=config.skip_unreadable,
        )
        # Files that were left out at the start are not in the saved splits: keep what was noted.
        notes = dict.fromkeys((*begun.stream.notes, *stream.notes))
        return replace(stream, notes=tuple(notes))
    saved = None if folder is None or not (folder / SPLITS).is_file() else folder / SPLITS
    return load_stream(
        config.stream,
        size,
        data=config.data,
        split_seed=config.split_seed,
        splits=config.splits if saved is None else str(saved),
        fold=config.fold,
        groups=config.groups,
        classes=config.classes,
        skip_unreadable=config.skip_unreadable,
        on_progress=on_progress,
    )


def new_domains(config: RunConfig, folder: Path) -> list[str]:
    """Domains that were added to the stream since the run in `folder` began."""
    begun = _begun(folder)
    if begun is None:
        return []
    try:
        plan = make_plan(
            config.stream, data=config.data, splits=str(folder / SPLITS), classes=ALL_CLASSES
        )
    except SodapError:  # the images may be gone; a finished run does not need them
        return []
    known = {domain.name for domain in begun.stream.domains}
    return [domain.name for domain in plan.domains if domain.name not in known]


def _begun(folder: Path) -> RunRecord | None:
    """The record of a run that has begun with the images of files; None if there is none."""
    if not (folder / SPLITS).is_file():
        return None
    try:
        return read_record(folder / "record.json")
    except SodapError:  # killed before it was written, or damaged
        return None


def _plan_begun(config: RunConfig, folder: Path, begun: RunRecord, *, with_new: bool) -> Plan:
    plan = checked_plan(
        config.stream,
        data=config.data,
        split_seed=config.split_seed,
        splits=str(folder / SPLITS),
        fold=config.fold,
        groups=config.groups,
        classes=ALL_CLASSES,
    )
    known = [domain.name for domain in begun.stream.domains]
    return continued(plan, known, begun.stream.classes, with_new=with_new)


# ------------------------------------------------------------------ in the record


def stream_info(stream: Stream) -> StreamInfo:
    """What the record says about a stream."""
    domains = [
        {
            "name": domain.name,
            "counts": {
                kind: split.labels.bincount(minlength=len(stream.classes)).tolist()
                for kind, split in domain.splits()
            },
        }
        for domain in stream.tested
    ]
    return StreamInfo.model_validate(
        {
            "name": stream.name,
            "classes": list(stream.classes),
            "notes": list(stream.notes),
            "domains": domains,
            "ranges": stream.ranges.to_json(),
            "origins": [domain.origin for domain in stream.tested] if stream.rows else [],
        }
    )


def comparable(info: StreamInfo) -> StreamInfo:
    """The part that must stay the same when a run is resumed."""
    return info.model_copy(update={"notes": [], "origins": []})
