"""What a probe says: which parts do nothing, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from sodap.probing import ProbeResult, describe, inert_parts
from sodap.probing.findings import MIN_IMAGES

ALIVE: dict[str, Any] = {"routing": (0.3, 0.2), "active": 0.1, "all": 0.4, "slots": (0.2, 0.1)}


def result(images: int = 200, **parts: Any) -> ProbeResult:
    """A result in which every part does something, unless said otherwise."""
    parts = ALIVE | parts
    variety, fixed = parts["routing"]
    cosine, one = parts["slots"]

    def removal(part: str, changed: float) -> dict[str, Any]:
        return {"part": part, "effect": {"changed": changed, "accuracy": -changed}, "domains": []}

    cosines = {"mean": cosine, "least": cosine}
    return ProbeResult.model_validate(
        {
            "images": images,
            "accuracy": 0.9,
            "prompts": 70,
            "active": 10,
            "variety": {"images": variety, "classes": variety, "domains": None},
            "support": 20.0,
            "layers": [],
            "domains": [],
            "memory": {"slots": 9, "keys": cosines, "values": cosines, "retrieved_spread": 0.1},
            "removals": [
                removal("image dependence", fixed),
                removal("active prompts", parts["active"]),
                removal("all prompts", parts["all"]),
                removal("memory slots", one),
            ],
        }
    )


@pytest.mark.parametrize(
    ("change", "inert"),
    [
        ({}, []),
        ({"routing": (0.006, 0.2)}, ["routing"]),
        ({"routing": (0.3, 0.0)}, ["routing"]),
        ({"active": 0.005}, ["active prompts"]),
        ({"active": 0.01}, []),
        ({"active": 0.0, "all": 0.0}, ["active prompts", "prompts"]),
        ({"slots": (0.99, 0.1)}, ["memory"]),
        ({"slots": (0.2, 0.0)}, ["memory"]),
    ],
)
def test_parts_that_do_nothing(change: dict[str, Any], inert: list[str]) -> None:
    assert [finding.part for finding in inert_parts(result(**change))] == inert
    few = result(images=MIN_IMAGES - 1, **change)
    assert inert_parts(few) == []


def test_words_do_not_depend_on_the_number_of_images() -> None:
    """On few images a part is not called inert, but nothing untrue is said either."""
    for variety in (0.0004, 0.3):
        few, many = (describe(result(n, routing=(variety, 0.2)))[0].text for n in (10, 1000))
        assert few.split(":")[0] == many.split(":")[0]
    assert "99.960 %" in describe(result(routing=(0.0004, 0.2)))[0].text


def test_words_carry_the_numbers() -> None:
    said = {finding.part: finding.text for finding in describe(result(routing=(0.006, 0.0)))}
    assert "99.4 %" in said["routing"]
    assert "0 of 200" in said["routing"]
    assert "20.0 of 70" in said["support"]
    assert "28.6 %" in said["support"]
    assert "-10.0 points" in said["active prompts"]
    assert "0.200" in said["memory"]
