"""`load_stream`: a stream by the name of a stream, protocol or data set, or by a path."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from sodap.errors import SodapError
from sodap.formats import plural
from sodap.streams.catalogue import data_roots, find_source, source_names
from sodap.streams.class_names import refuse_doubtful
from sodap.streams.folds import Fold
from sodap.streams.plans import (
    GroupNames,
    Plan,
    plan_folder,
    plan_protocol,
    plan_source,
    plan_table,
    with_classes,
)
from sodap.streams.protocols import protocol_names
from sodap.streams.registry import make_stream, stream_names
from sodap.streams.splits import read_splits

if TYPE_CHECKING:
    from sodap.streams.grey import GreyRanges
    from sodap.streams.stream import Stream

TABLES = (".csv", ".parquet")


class SplitGroupWarning(UserWarning):
    """A group (patient) is in two splits, so results will look better than they are."""


def load_stream(
    name: str,
    image_size: int = 224,
    *,
    data: str | None = None,
    split_seed: int = 0,
    splits: str | None = None,
    fold: str | None = None,
    groups: str = "separate",
    classes: str | Sequence[str] | None = None,
    ranges: GreyRanges | None = None,
    skip_unreadable: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """Load a stream, decoding its images if they are not in the cache yet.

    Args:
        name: A ready stream (`digits`), a protocol (`open-dr`), a folder DOMAIN/CLASS/image, a CSV
            or Parquet table, or a data set (`pacs`). A folder or file of the name comes before a
            data set.
        image_size: Side of the images in pixels; ready streams have a fixed size.
        data: The folder that holds the data sets; default: $SODAP_DATA, or ./data.
        split_seed: Seed of the random splits.
        splits: A file of saved splits, or the folder with the lists of the paper's authors.
        fold: "2/5" tests the second fifth of the images (see `sodap.streams.folds`); the other
            images are train and val. Domains with splits keep them.
        groups: Whether groups of the same name in two data sets of a protocol are different
            patients ("separate") or the same one ("shared"). In one folder or table they always
            are the same one.
        classes: Fixes the classes and their order for a folder or a table, as a list or as
            "benign,malignant". To learn on with a saved model, give the classes of its learner.
            Without it, classes that look misspelt are an error; "all" accepts them.
        ranges: Black and white of deep grey images (16 bits, or DICOM without a window). To learn
            on with a saved model, give `learner.ranges`; by default they are measured on the
            training images.
        skip_unreadable: Leave out files that cannot be read, which `stream.skipped` lists, instead
            of raising an error.
        on_progress: Called with the number of images decoded so far and the total.
    """
    if not 8 <= image_size <= 2048:
        raise SodapError(f"image_size must be between 8 and 2048 pixels, got {image_size}")
    if name in stream_names():
        refuse_folds(name, fold)
        return make_stream(name)
    plan = checked_plan(
        name,
        data=data,
        split_seed=split_seed,
        splits=splits,
        fold=fold,
        groups=groups,
        classes=classes,
    )
    from sodap.streams.build import build_stream  # imports torch, which a plan does not need

    return build_stream(plan, image_size, on_progress, ranges, skip_unreadable=skip_unreadable)


def checked_plan(
    name: str,
    *,
    data: str | None = None,
    split_seed: int = 0,
    splits: str | None = None,
    fold: str | None = None,
    groups: str = "separate",
    classes: str | Sequence[str] | None = None,
) -> Plan:
    """A plan to learn from: without doubtful classes, and with a warning about split groups."""
    plan = make_plan(
        name,
        data=data,
        split_seed=split_seed,
        splits=splits,
        fold=fold,
        groups=groups,
        classes=classes,
    )
    refuse_doubtful(plan.name, plan.classes, plan.doubtful_classes())
    if plan.grouped and (found := plan.split_groups()):
        warnings.warn(
            f"{plural(len(found), 'group')} of {plan.name} (such as '{found[0]}') are in two "
            f"splits, so results will look better than they are; see `sodap data check {name}`",
            SplitGroupWarning,
            stacklevel=3,
        )
    return plan


def refuse_folds(name: str, fold: str | None) -> None:
    """Raise an error if a ready stream, whose test images are fixed, should be dealt into folds."""
    if fold is not None and name in stream_names():
        raise SodapError(f"the splits of '{name}' are fixed; run it without folds")


def check_stream_name(name: str) -> None:
    """Raise an error unless there is a stream, protocol, data set, folder or table of this name."""
    known = [*stream_names(), *protocol_names(), *data_set_names()]
    if name not in known and not _is_own(Path(name)):
        raise SodapError(
            f"no stream is called '{name}', and there is no such folder or table; "
            f"there are: {', '.join(known)}"
        )


def data_set_names() -> list[str]:
    """Data sets that are streams by themselves: all but a user's own folders and tables."""
    return [name for name in source_names() if find_source(name).classes]


def _is_own(path: Path) -> bool:
    return path.is_dir() or (path.is_file() and path.suffix.lower() in TABLES)


def make_plan(
    name: str,
    *,
    data: str | None = None,
    split_seed: int = 0,
    splits: str | None = None,
    fold: str | None = None,
    groups: str = "separate",
    classes: str | Sequence[str] | None = None,
) -> Plan:
    """Plan a stream without decoding images; the arguments are those of `load_stream`."""
    check_stream_name(name)
    if groups not in get_args(GroupNames):
        raise SodapError(f"groups takes separate or shared, not '{groups}'")
    part = None if fold is None else Fold.parse(fold)
    lists = Path(splits) if splits is not None and Path(splits).is_dir() else None
    saved = None if splits is None or lists is not None else read_splits(Path(splits))
    if name in protocol_names():
        roots = data_roots(data)
        return plan_protocol(
            name,
            roots,
            split_seed,
            lists=lists,
            saved=saved,
            shared=groups == "shared",
            fold=part,
        )
    if lists is not None:
        raise SodapError(
            f"'{lists}' is a folder, but lists of splits are for paper-dr only; "
            f"give '{name}' a file of splits"
        )
    path = Path(name)
    if not _is_own(path):
        plan = plan_source(name, data_roots(data), split_seed, saved=saved, fold=part)
    elif path.is_dir():
        plan = plan_folder(path, split_seed, saved=saved, fold=part)
    else:
        plan = plan_table(path, split_seed, saved=saved, fold=part)
    return with_classes(plan, classes)
