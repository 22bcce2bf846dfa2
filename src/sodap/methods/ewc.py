"""Online EWC (Schwarz et al., 2018): weights that mattered before are held where they were.

How much a weight matters is its diagonal Fisher information F: how far the prediction moves with
it. From the second stage on the loss is CE + λ Σ F (θ - θ*)², where θ* are the weights at the end
of the stage before and F is a running sum over all stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector

from sodap.backbones import FrozenViT
from sodap.methods.base import Asset, Batch, MethodConfig, Observations, StageInfo
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

Kind = Literal["exact", "mc", "empirical", "mammoth"]

CHUNK = 8
"""Images whose gradients are held at once: each is a copy of all weights."""


class EwcConfig(FinetuneConfig):
    strength: float = Field(
        100.0, ge=0, description="λ, weight of the penalty; search it in powers of ten"
    )
    gamma: float = Field(1.0, ge=0, le=1, description="how much of F stays from stage to stage")
    fisher: Kind = Field(
        "exact",
        description="which labels F is about: all classes by their probability (exact), one drawn "
        "(mc), the true one (empirical), the true one by its probability (mammoth)",
    )
    fisher_images: int = Field(1024, ge=1, description="training images F is measured on at most")
    faithful: bool = Field(
        False,
        description="F as the reference code has it: fisher=mammoth, on all images, and the last "
        "batch counted as a full one",
    )


@register_method
class OnlineEwc(Finetune):
    """All weights trained, the important ones on a leash.

    F is exact by default: the expectation over the labels that the model itself believes in, which
    is what the derivation asks for, without the noise of drawing them. It costs one backward pass
    per image and class; with many classes, draw (`mc`).

    Nothing decays, neither network nor head: decay pulls towards zero, against the anchor.
    """

    name = "online-ewc"
    family = "regularisation"
    trains = "all weights"
    stores = "Fisher information, weights of the stage before"
    Config = EwcConfig
    candidates = (  # λ matters as much as the learning rate, so each gets two values
        {"lr": 3e-4, "strength": 10.0},
        {"lr": 3e-4, "strength": 1000.0},
        {"lr": 1e-3, "strength": 10.0},
        {"lr": 1e-3, "strength": 1000.0},
    )

    config: EwcConfig
    fisher: Tensor  # F [P]
    anchor: Tensor  # θ* [P]

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        count = self.trainable_count()
        self.register_buffer("fisher", torch.zeros(count))
        self.register_buffer("anchor", torch.zeros(count))

    def theta(self) -> dict[str, nn.Parameter]:
        """All that trains, in the order of F and θ*."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super().losses(batch)
        if self.stage > 1:
            moved = parameters_to_vector(self.theta().values()) - self.anchor
            losses["penalty"] = self.config.strength * (self.fisher * moved.square()).sum()
        return losses

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        c = self.config
        theta = self.theta()
        generator = self.randomness.generator("fisher", number, device=self.fisher.device)
        kind: Kind = "mammoth" if c.faithful else c.fisher
        # Training images come shuffled, so the first of them are a random sample.
        some = train if c.faithful else _first(train, c.fisher_images)
        total = torch.zeros_like(self.fisher)
        sizes = []
        for images, labels in some:
            total += squared_scores(self, theta, images, labels, kind, generator)
            sizes.append(len(labels))
        count = len(sizes) * max(sizes) if c.faithful else sum(sizes)
        self.fisher.mul_(c.gamma).add_(total / count)
        self.anchor.copy_(parameters_to_vector(theta.values()).detach())
        return {"fisher": {"images": sum(sizes), "trace": float(total.sum()) / count}}

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        return super().parameter_groups(lr, 0.0)

    def stored(self) -> list[Asset]:
        return [
            Asset("Fisher information of every weight", "fisher", self.fisher.nbytes),
            Asset("weights of the stage before", "teacher", self.anchor.nbytes),
        ]


def squared_scores(
    model: nn.Module,
    theta: Mapping[str, Tensor],
    images: Tensor,
    labels: Tensor,
    kind: Kind,
    generator: torch.Generator,
) -> Tensor:
    """Σ over images and labels of weight · (∂ log p(label | image) / ∂θ)², `[P]`.

    Squares of single images' gradients are wanted, and no batch's gradient tells them.
    """
    held = {name: weight.detach() for name, weight in theta.items()}

    def score(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, weights, (image[None],))
        return -F.cross_entropy(logits, label[None])

    scores = vmap(grad(score), in_dims=(None, 0, 0))
    total = torch.zeros(sum(weight.numel() for weight in held.values()), device=images.device)
    for some, truth in zip(torch.split(images, CHUNK), torch.split(labels, CHUNK), strict=True):
        with torch.no_grad():
            p = model(some).float().softmax(-1)
        for label, weight in _labels(kind, p, truth, generator):
            # Neither fused attention nor compiled blocks can be mapped over images, nor can the
            # gradients of mixed precisions; squares want the full one anyway.
            with (
                torch.autocast(images.device.type, enabled=False),
                sdpa_kernel(SDPBackend.MATH),
                torch.compiler.set_stance("force_eager"),
            ):
                each = scores(held, some, label)
                total += torch.cat([weight @ each[name].flatten(1).square() for name in held])
    return total


def _labels(
    kind: Kind, p: Tensor, truth: Tensor, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Which labels `[B]` to score with which weights `[B]`, given the probabilities `[B, C]`."""
    if kind == "exact":
        for label, weight in enumerate(p.unbind(1)):
            yield torch.full_like(truth, label), weight
    elif kind == "mc":
        drawn = torch.multinomial(p, 1, generator=generator)[:, 0]
        yield drawn, torch.ones_like(p[:, 0])
    elif kind == "empirical":
        yield truth, torch.ones_like(p[:, 0])
    else:
        yield truth, p.gather(1, truth[:, None])[:, 0]


def _first(batches: Observations, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `count` images of all batches."""
    for images, labels in batches:
        yield images[:count], labels[:count]
        count -= len(labels)
        if count <= 0:
            return
