"""What a probe found, in words, and which parts do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sodap.formats import plural
from sodap.probing.result import Effect, Part, ProbeResult

MIN_VARIETY = 0.05
"""Routings of two images that differ by less do not depend on the image in any useful way: routers
with random keys that were never trained differ by 0.06 to 0.09."""

MIN_CHANGED = 0.01
"""A part whose removal changes fewer than 1 of 100 answers has no share in what the model does: it
is less than the difference between two seeds."""

MAX_SLOT_COSINE = 0.9
"""Slots that are more alike than this, on average, store the same vector: what is left of two unit
vectors after their common part is taken away is then less than half of each."""

MIN_IMAGES = 50
"""On fewer images no part is called inert: with 50, a part that matters for 1 of 17 answers is
missed in 1 of 20 cases."""


class Finding(NamedTuple):
    """One sentence or two about a part of the model."""

    part: str
    """routing | support | prompts | active prompts | memory | ..."""
    inert: bool
    """Whether the part does nothing."""
    text: str


def describe(result: ProbeResult) -> list[Finding]:
    """Everything that a probe found, in words."""
    return list(_findings(result))


def inert_parts(result: ProbeResult) -> list[Finding]:
    """Parts that do nothing."""
    return [finding for finding in _findings(result) if finding.inert]


def _findings(result: ProbeResult) -> Iterator[Finding]:
    yield _routing(result)
    share = _percent(result.support_share)
    yield Finding(
        "support",
        False,
        f"An image uses {result.support:.1f} of {plural(result.prompts, result.unit)} ({share}), "
        f"on average over images and layers.",
    )
    units = f"{result.unit}s"
    without: tuple[tuple[Part, str, str], ...] = (
        ("active prompts", f"active {units}", f"the {units} of the last stage"),
        ("all prompts", units, f"any {units}"),
    )
    for part, name, words in without:
        found = _effect(result, part)
        if found is not None:
            unused = _does_nothing(found, result)
            opening = f"The {name} do nothing: without" if unused else "Without"
            yield Finding(name, unused, f"{opening} {words}, {_effect_words(found, result)}.")
    if result.memory is not None:
        yield _memory(result)


def _routing(result: ProbeResult) -> Finding:
    between, effect = result.variety.images, _effect(result, "image dependence")
    if between is None or effect is None:
        return Finding("routing", False, "Routing was seen for one image only.")
    shared = f"two images share {_percent(1 - between)} of their weights"
    others = [
        f"the mean routings of two {name} {_percent(1 - value)}"
        for name, value in (
            ("classes", result.variety.classes),
            ("domains", result.variety.domains),
        )
        if value is not None
    ]
    listed = ", ".join([shared, *others])
    fixed = f"With one routing for all images, {_effect_words(effect, result)}."
    if between < MIN_VARIETY:
        inert = result.images >= MIN_IMAGES
        return Finding("routing", inert, f"Routing hardly depends on the image: {listed}. {fixed}")
    if _does_nothing(effect, result):
        text = f"Routing depends on the image ({listed}), but the answers do not need it. {fixed}"
        return Finding("routing", True, text)
    return Finding("routing", False, f"Routing depends on the image: {listed}. {fixed}")


def _memory(result: ProbeResult) -> Finding:
    memory, effect = result.memory, _effect(result, "memory slots")
    assert memory is not None
    assert effect is not None
    found = [
        (name, cosines)
        for name, cosines in (("keys", memory.keys), ("values", memory.values))
        if cosines is not None
    ]
    alike = [
        f"{name} have a mean cosine of {cosines.mean:.3f} (least {cosines.least:.3f})"
        for name, cosines in found
    ]
    same = any(cosines.mean > MAX_SLOT_COSINE for _, cosines in found)
    listed = f"The {plural(memory.slots, 'memory slot')}: {', '.join(alike)}. " if alike else ""
    spread = f"What images read there differs by {_percent(memory.retrieved_spread)} of its length."
    unused = _does_nothing(effect, result)
    inert = result.images >= MIN_IMAGES and (unused or same)
    reason = ""
    if inert:
        why = "one slot gives the same answers" if unused else "its slots are nearly the same"
        reason = f"The memory does nothing that one slot would not do: {why}. "
    text = f"{reason}{listed}{spread} With one slot for all, {_effect_words(effect, result)}."
    return Finding("memory", inert, text)


def _effect(result: ProbeResult, part: Part) -> Effect | None:
    removal = result.removal(part)
    return None if removal is None else removal.effect


def _does_nothing(effect: Effect, result: ProbeResult) -> bool:
    return result.images >= MIN_IMAGES and effect.changed < MIN_CHANGED


def _effect_words(effect: Effect, result: ProbeResult) -> str:
    changed = round(effect.changed * result.images)
    points = round(100 * effect.accuracy, 1) + 0.0  # never -0.0
    accuracy = "accuracy stays" if points == 0 else f"accuracy changes by {points:+.1f} points"
    verb = "changes" if changed == 1 else "change"
    counted = f"{changed:,} of {plural(result.images, 'answer')} {verb}"
    return f"{counted} ({_percent(effect.changed)}) and {accuracy}"


def _percent(share: float) -> str:
    """`42.7 %`; near 0 and 100 with more digits, so that almost all does not look like all."""
    near = min(share, 1 - share)
    return f"{100 * share:.{3 if 0 < near < 0.001 else 1}f} %"
