"""What a probe found, as it is kept in JSON files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

FORMAT = 1
"""Format number of a result."""

Part = Literal["image dependence", "active prompts", "all prompts", "memory slots"]
"""What is taken away: each image's own routing (all get the mean), the prompts of the current
stage or all of them (set to zero), all memory slots but one (all are replaced by their mean)."""


class _Schema(BaseModel):
    model_config = ConfigDict(frozen=True)


class Variety(_Schema):
    """Mean distance between two routings (total variation), from 0, the same, to 1."""

    images: float | None
    """Distance of two images."""
    classes: float | None = None
    """Distance of two classes of one domain, each with its mean routing."""
    domains: float | None = None
    """Distance of two domains, each with its mean routing."""
    frozen: float | None = None
    """Distance of two images, over the frozen prompts alone."""
    active: float | None = None
    """Distance of two images, over the prompts of the current stage alone."""


class LayerProbe(_Schema):
    """Routing of one layer."""

    variety: Variety
    support: float
    """Mean number of prompts that an image gives any weight."""
    retrieved_spread: float | None = None
    """How much what images read from the memory differs, relative to its length."""


class DomainProbe(_Schema):
    """Images of one domain."""

    name: str
    images: int
    accuracy: float
    variety: Variety
    """Distances between the images and classes of this domain."""
    support: float


class Effect(_Schema):
    """What a removal does to the answers."""

    changed: float
    """Share of the images with another answer."""
    accuracy: float
    """Change of accuracy; negative if the part helps."""


class Removal(_Schema):
    """The model without one part."""

    part: Part
    layer: int | None = None
    """Where it is taken away; None for all layers at once."""
    effect: Effect
    domains: list[Effect]


class SlotCosines(_Schema):
    """Cosines between two memory slots: 1 if they point the same way."""

    mean: float
    least: float


class MemoryProbe(_Schema):
    """The slots of a memory, and what images read from it."""

    slots: int
    keys: SlotCosines | None
    values: SlotCosines | None
    retrieved_spread: float


class ProbeResult(_Schema):
    """What routing, memory and prompts of one model do."""

    format: int = FORMAT
    images: int
    accuracy: float
    unit: str = "prompt"
    """What images are routed to: prompts or experts."""
    prompts: int
    active: int
    """Prompts that were trained in the last stage."""
    variety: Variety
    """Mean over layers."""
    support: float
    """Mean number of prompts that an image gives any weight, over images and layers."""
    layers: list[LayerProbe]
    domains: list[DomainProbe]
    memory: MemoryProbe | None
    removals: list[Removal]

    @property
    def support_share(self) -> float:
        """Share of the prompts that an image gives any weight."""
        return self.support / self.prompts

    def removal(self, part: Part, layer: int | None = None) -> Removal | None:
        """The removal of a part; None if it was not measured."""
        for each in self.removals:
            if each.part == part and each.layer == layer:
                return each
        return None
