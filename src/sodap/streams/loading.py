"""From a name to a stream: a registered one, a protocol, a folder or a table of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sodap.errors import SodapError
from sodap.streams.catalogue import data_roots
from sodap.streams.plans import Plan, build_stream, over_classes, plan, plan_folder, plan_table
from sodap.streams.protocols import protocol_names
from sodap.streams.registry import make_stream, stream_names
from sodap.streams.splits import read_splits
from sodap.streams.stream import Stream

TABLES = (".csv", ".parquet")


def load_stream(
    name: str,
    image_size: int = 224,
    *,
    data: str | None = None,
    split_seed: int = 0,
    splits: str | None = None,
    classes: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """A stream ready to learn.

    `name` is a registered stream, a protocol, a folder DOMAIN/CLASS/image, or a CSV or Parquet
    table. `data` is where data sets lie; by default $SODAP_DATA, or ./data. `splits` is a file of
    splits to use again, or a folder with the lists that the paper's authors published. `classes`
    fixes the classes and their order for own images: give those of a learner that learns on.
    """
    if not 8 <= image_size <= 2048:
        raise SodapError(f"image_size must lie between 8 and 2048 pixels, got {image_size}")
    if name in stream_names():
        return make_stream(name)
    plan = make_plan(name, data=data, split_seed=split_seed, splits=splits, classes=classes)
    return build_stream(plan, image_size, on_progress)


def make_plan(
    name: str,
    *,
    data: str | None = None,
    split_seed: int = 0,
    splits: str | None = None,
    classes: Sequence[str] | None = None,
) -> Plan:
    """Which images a stream will be made of, without decoding one."""
    lists = Path(splits) if splits is not None and Path(splits).is_dir() else None
    saved = None if splits is None or lists is not None else read_splits(Path(splits))
    if name in protocol_names():
        return plan(name, data_roots(data), split_seed, lists=lists, saved=saved)
    if lists is not None:
        raise SodapError(f"lists of splits are for paper-dr; '{name}' needs a file of splits")
    path = Path(name)
    if path.is_dir():
        return over_classes(plan_folder(path, split_seed, saved=saved), classes)
    if path.is_file() and path.suffix.lower() in TABLES:
        return over_classes(plan_table(path, split_seed, saved=saved), classes)
    raise SodapError(
        f"no stream is called '{name}', and no folder and no table is there; "
        f"there are: {', '.join([*stream_names(), *protocol_names()])}"
    )
