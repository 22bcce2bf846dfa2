"""Answers to single test images, as records keep them: short texts, a character or number each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from sodap.evaluation import DomainAnswers

if TYPE_CHECKING:
    from sodap.streams import Stream

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Ints = NDArray[np.int64]


class StoredAnswers(BaseModel):
    """Answers to the test images of a domain, in the order of the images."""

    model_config = ConfigDict(frozen=True)

    labels: str
    units: str = ""
    """Numbers of groups; images of one group have the same. Empty: every image is by itself."""
    answers: list[str]
    """One text for each stage."""
    folds: list[int] = Field([])
    """Numbers of images of each fold, if several runs are pooled."""

    def decoded(self) -> DomainAnswers:
        labels = decode(self.labels)
        units = decode(self.units) if self.units else np.arange(len(labels))
        answers = np.stack([decode(each) for each in self.answers])
        folds = np.repeat(np.arange(len(self.folds)), self.folds) if self.folds else None
        return DomainAnswers(labels, units, answers, folds)


def decoded_run(stored: Sequence[StoredAnswers]) -> list[DomainAnswers]:
    """The answers of a run by domain; an image without a group is a unit of its own."""
    found: list[DomainAnswers] = []
    start = 0
    for each in stored:
        domain = each.decoded()
        if not each.units:  # no unit is in two domains
            count = len(domain.labels)
            units = np.arange(start, start + count)
            domain = replace(domain, units=units)
            start += count
        found.append(domain)
    return found


def encode(values: Sequence[int] | Ints) -> str:
    """`[0, 2, 11]` as `02b`; with a value above 35 all as decimal numbers, `0,2,40,`."""
    numbers = np.asarray(values, np.int64)
    if len(numbers) and numbers.max() >= len(DIGITS):
        return "".join(f"{number}," for number in numbers.tolist())
    return "".join(DIGITS[number] for number in numbers.tolist())


def decode(text: str) -> Ints:
    """The values that `encode` wrote."""
    if "," in text:
        return np.array(text.rstrip(",").split(","), np.int64)
    return np.array([int(sign, 36) for sign in text], np.int64)


def unit_numbers(stream: Stream) -> list[Ints | None]:
    """The group of every test image, by tested domain; None for a stream without files.

    Groups are numbered by their names over all splits, so the folds of a stream agree.
    """
    if not stream.rows:
        return [None] * len(stream.tested)
    origins = {domain.name: domain.origin for domain in stream.tested}
    keys = [
        (origins[row.domain], row.group, "") if row.group else (row.domain, "", row.path)
        for row in stream.rows
    ]
    number = {key: place for place, key in enumerate(sorted(set(keys)))}
    found: dict[str, list[int]] = {domain.name: [] for domain in stream.tested}
    for row, key in zip(stream.rows, keys, strict=True):
        if row.split == "test":
            found[row.domain].append(number[key])
    return [np.array(found[domain.name], np.int64) for domain in stream.tested]


def stored_answers(stream: Stream, stages: Sequence[Sequence[str]]) -> list[StoredAnswers]:
    """The answers of a run, from the texts `[stage][domain]`."""
    return [
        StoredAnswers(
            labels=encode(domain.test.labels.cpu().numpy()),
            units="" if units is None else encode(units),
            answers=[stage[place] for stage in stages],
        )
        for place, (domain, units) in enumerate(
            zip(stream.tested, unit_numbers(stream), strict=True)
        )
    ]


def joined(parts: Sequence[StoredAnswers]) -> StoredAnswers:
    """The answers to the images of several folds, as one."""

    def join(texts: Sequence[str]) -> str:
        return encode(np.concatenate([decode(text) for text in texts]))

    grouped = all(part.units for part in parts)
    stages = zip(*(part.answers for part in parts), strict=True)
    return StoredAnswers(
        labels=join([part.labels for part in parts]),
        units=join([part.units for part in parts]) if grouped else "",
        answers=[join(stage) for stage in stages],
        folds=[len(decode(part.labels)) for part in parts],
    )
