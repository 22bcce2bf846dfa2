"""`probe`: look at how images are routed, then take parts away and count changed answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sodap.errors import SodapError
from sodap.execution import Forward
from sodap.probing.measures import cosines, group_means, spread, support, variety
from sodap.probing.result import (
    DomainProbe,
    Effect,
    LayerProbe,
    MemoryProbe,
    Part,
    ProbeResult,
    Removal,
    SlotCosines,
    Variety,
)
from sodap.prompting import NOTHING, Inspection, Intervention
from sodap.randomness import Randomness
from sodap.streams import Split

IMAGES = 200
"""Images per domain: a share of answers of 1 % is then known to about 0.5 points over three
domains, and a pass over them takes seconds."""


class Probeable(Protocol):
    """A trained model, such as `sodap.Learner`."""

    @property
    def forward(self) -> Forward: ...


def probe(
    learner: Probeable,
    domains: Mapping[str, Split],
    *,
    images: int = IMAGES,
    by_layer: bool = False,
) -> ProbeResult | None:
    """Measure what routing, memory and prompts of a model do for its answers.

    Args:
        domains: images of each domain, by name; use a split that the model was not trained on.
        images: largest number of images per domain.
        by_layer: also take each part away in one layer at a time, which takes a pass for each.

    Returns:
        None for a method without routing.
    """
    if not domains or not all(len(split) for split in domains.values()):
        raise SodapError("a probe needs one or more domains with images")
    samples = _Samples.of(learner.forward, {k: sample(v, images) for k, v in domains.items()})
    plain = samples.passes(NOTHING)
    if plain is None:
        return None
    slots = learner.forward.method.memory_slots()
    weights, active = plain.weights, plain.active
    interventions = list(_interventions(plain, has_memory=slots is not None, by_layer=by_layer))
    removals = [
        _removal(part, layer, samples, plain, intervention)
        for part, layer, intervention in interventions
    ]
    layers = _layers(plain, samples)
    right = plain.answers == samples.labels
    return ProbeResult(
        images=len(samples.labels),
        accuracy=_mean(right),
        unit=learner.forward.method.routed_to,
        prompts=weights.shape[-1],
        active=int(active[0].sum()),
        variety=_mean_variety([layer.variety for layer in layers]),
        support=float(support(weights).mean()),
        layers=layers,
        domains=[
            DomainProbe(
                name=name,
                images=int(chosen.sum()),
                accuracy=_mean(right[chosen]),
                variety=Variety(
                    images=_number(variety(weights[chosen]).mean()),
                    classes=_between(weights[chosen], samples.labels[chosen]),
                ),
                support=float(support(weights[chosen]).mean()),
            )
            for name, chosen in samples.of_domains()
        ],
        memory=None if slots is None else _memory(slots, plain.retrieved),
        removals=removals,
    )


def sample(split: Split, count: int) -> Split:
    """At most `count` images of a split; the same ones for every model."""
    order = torch.randperm(len(split), generator=Randomness(0).generator("probe"))
    chosen = order[:count].sort().values
    return Split(split.images[chosen.to(split.images.device)], split.labels.cpu()[chosen])


# ------------------------------------------------------------------ passes


class _Passes(NamedTuple):
    """Passes over all n images."""

    answers: Tensor  # [n]
    weights: Tensor  # [n, L, N]
    active: Tensor  # [L, N]
    retrieved: Tensor | None  # [n, L, D]


class _Samples:
    """The images of all domains, on the device that computes."""

    def __init__(self, forward: Forward, names: Sequence[str], splits: Sequence[Split]) -> None:
        self.forward = forward
        self.names = names
        device = forward.runtime.device
        images = [split.images.to(device) for split in splits]
        # Domains share batches: full ones take fewer passes.
        same_size = len({each.shape[1:] for each in images}) == 1
        self.images = [torch.cat(images)] if same_size else images
        self.labels = torch.cat([split.labels.to(device) for split in splits])
        self.domain = torch.cat(
            [torch.full((len(s),), i, device=device) for i, s in enumerate(splits)]
        )

    @classmethod
    def of(cls, forward: Forward, domains: Mapping[str, Split]) -> _Samples:
        return cls(forward, list(domains), list(domains.values()))

    def of_domains(self) -> Iterator[tuple[str, Tensor]]:
        """Name of each domain, and which images are its own `[n]`."""
        for index, name in enumerate(self.names):
            yield name, self.domain == index

    def inspected(self, intervention: Intervention) -> Iterator[Inspection | None]:
        for images in self.images:
            for start in range(0, len(images), self.forward.batch_size):
                batch = images[start : start + self.forward.batch_size]
                yield self.forward.inspect(batch, intervention)

    def passes(self, intervention: Intervention) -> _Passes | None:
        """One pass over all images; None for a method without routing."""
        found: list[Inspection] = []
        for each in self.inspected(intervention):
            if each is None:
                return None
            found.append(each)
        first = found[0].selections
        return _Passes(
            torch.cat([each.logits.argmax(-1) for each in found]),
            torch.cat([torch.stack([s.weights for s in i.selections], 1) for i in found]),
            torch.stack([selection.active for selection in first]),
            torch.cat([torch.stack(each.retrieved, 1) for each in found])
            if found[0].retrieved
            else None,
        )

    def answers(self, intervention: Intervention) -> Tensor:
        """Answers `[n]` of the model without a part."""
        logits = [each.logits for each in self.inspected(intervention) if each is not None]
        return torch.cat(logits).argmax(-1)


# ------------------------------------------------------------------ removals


def _interventions(
    plain: _Passes, *, has_memory: bool, by_layer: bool
) -> Iterator[tuple[Part, int | None, Intervention]]:
    """All removals: of the whole part, and layer by layer."""
    mean = tuple(plain.weights.mean(0))
    depth = len(mean)
    where: list[int | None] = [None, *(range(depth) if by_layer and depth > 1 else ())]
    for layer in where:
        layers = None if layer is None else frozenset({layer})
        yield "image dependence", layer, Intervention(fixed=mean, layers=layers)
        if not plain.active.all():  # in stage 1 the active prompts are all prompts
            yield "active prompts", layer, Intervention(zero="active", layers=layers)
        yield "all prompts", layer, Intervention(zero="all", layers=layers)
        if has_memory:
            yield "memory slots", layer, Intervention(one_slot=True, layers=layers)


def _removal(
    part: Part, layer: int | None, samples: _Samples, plain: _Passes, intervention: Intervention
) -> Removal:
    answers = samples.answers(intervention)
    changed = answers != plain.answers
    gained = (answers == samples.labels).double() - (plain.answers == samples.labels).double()

    def effect(chosen: Tensor) -> Effect:
        return Effect(changed=_mean(changed[chosen]), accuracy=_mean(gained[chosen]))

    return Removal(
        part=part,
        layer=layer,
        effect=effect(torch.ones_like(changed)),
        domains=[effect(chosen) for _, chosen in samples.of_domains()],
    )


# ------------------------------------------------------------------ routing


def _layers(plain: _Passes, samples: _Samples) -> list[LayerProbe]:
    weights, active = plain.weights, plain.active
    between_images = variety(weights)
    classes = [
        variety(group_means(weights[chosen], samples.labels[chosen]))
        for _, chosen in samples.of_domains()
    ]
    between_classes = torch.stack(classes).nanmean(0)
    between_domains = variety(group_means(weights, samples.domain))
    parts: dict[str, Tensor] = {}
    if not active.all():
        parts["active"] = variety(weights * active)
        parts["frozen"] = variety(weights * ~active)
    spreads = None if plain.retrieved is None else spread(plain.retrieved)
    return [
        LayerProbe(
            variety=Variety(
                images=_number(between_images[layer]),
                classes=_number(between_classes[layer]),
                domains=_number(between_domains[layer]),
                **{name: _number(each[layer]) for name, each in parts.items()},
            ),
            support=float(selected),
            retrieved_spread=None if spreads is None else float(spreads[layer]),
        )
        for layer, selected in enumerate(support(weights))
    ]


def _between(weights: Tensor, groups: Tensor) -> float | None:
    return _number(variety(group_means(weights, groups)).mean())


def _memory(slots: tuple[Tensor, Tensor], retrieved: Tensor | None) -> MemoryProbe:
    keys, values = (cosines(each) for each in slots)
    return MemoryProbe(
        slots=len(slots[0]),
        keys=None if keys is None else SlotCosines(**keys._asdict()),
        values=None if values is None else SlotCosines(**values._asdict()),
        retrieved_spread=0.0 if retrieved is None else float(spread(retrieved).mean()),
    )


def _mean_variety(layers: Sequence[Variety]) -> Variety:
    """Mean over layers, of the measures that every layer has."""
    means: dict[str, float | None] = {}
    for name in Variety.model_fields:
        found = [value for layer in layers if (value := getattr(layer, name)) is not None]
        means[name] = sum(found) / len(found) if found else None
    return Variety(**means)


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _number(value: Tensor) -> float | None:
    """A number; None for NaN."""
    return None if value.isnan() else float(value)
