"""Online EWC (Schwarz et al., 2018): important weights are kept close to their earlier values.

The importance of a weight is its diagonal Fisher information F. From the second stage on the loss
is CE + λ Σ F (θ - θ*)², where θ* are the weights at the end of the previous stage and F is summed
over all stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector

from sodap.methods.base import Asset, Batch, MethodConfig, Observations, StageInfo
from sodap.methods.finetune import Finetune, FinetuneConfig
from sodap.methods.registry import register_method
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT

Kind = Literal["exact", "mc", "empirical", "mammoth"]

MOMENTUM, DECAY = 0.9, 5e-4
"""Settings of SGD, as in the table of hyperparameters in the paper on Residual SODAP."""

CHUNK = 8
"""Images whose gradients are computed at once; each gradient is as large as the network."""


class EwcConfig(FinetuneConfig):
    """Strength of the penalty and estimate of the Fisher information."""

    strength: float = Field(
        100.0, ge=0, description="λ, weight of the penalty; search over powers of ten"
    )
    gamma: float = Field(1.0, ge=0, le=1, description="γ, decay of F from stage to stage")
    fisher: Kind = Field(
        "exact",
        description="labels in F: all classes weighted by their probability (exact), one drawn "
        "from it (mc), the true one (empirical), or the true one weighted by its probability "
        "(mammoth)",
    )
    fisher_images: int = Field(1024, ge=1, description="maximum number of training images for F")
    faithful: bool = Field(
        False,
        description="as in the reference code: fisher=mammoth, all images, a smaller last batch "
        "counted as full; SGD with momentum 0.9 and decay 5e-4, as Residual SODAP's paper lists",
    )


@register_method
class OnlineEwc(Finetune):
    """All weights trained, with a penalty on changes of important ones.

    By default F is exact, the expectation over labels drawn from the model's own prediction, as in
    the derivation. This takes one backward pass per image and class; use `mc` with many classes.
    """

    name = "online-ewc"
    family = "regularisation"
    trains = "all weights"
    stores = "Fisher information, weights of the stage before"
    Config = EwcConfig
    without_decay = ("*",)  # decay would pull against θ*
    candidates = (  # λ matters as much as the learning rate, so both have two values
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

    @property
    def sgd_momentum(self) -> float | None:
        return MOMENTUM if self.config.faithful else None

    @property
    def graph_safe(self) -> bool:
        """SGD makes its momentum in the first step, which a captured step would repeat."""
        return super().graph_safe and not self.config.faithful

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        groups = super().parameter_groups(lr, weight_decay)
        if self.config.faithful:  # of all weights, biases included
            return [group | {"weight_decay": DECAY} for group in groups]
        return groups

    def theta(self) -> dict[str, nn.Parameter]:
        """Trained weights by name in the order of F and θ*: the network, then the head."""
        trained = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        return dict(sorted(trained, key=lambda item: item[0].startswith("head.")))

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
        # Training images are shuffled, so the first ones are a random sample.
        sample = train if c.faithful else _first(train, c.fisher_images)
        total = torch.zeros_like(self.fisher)
        sizes = []
        for images, labels in sample:
            total += squared_scores(self, theta, images, labels, kind, generator)
            sizes.append(len(labels))
        count = len(sizes) * max(sizes) if c.faithful else sum(sizes)
        self.fisher.mul_(c.gamma).add_(total / count)
        self.anchor.copy_(parameters_to_vector(theta.values()).detach())
        return {"fisher": {"images": sum(sizes), "trace": float(total.sum()) / count}}

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

    Needs the gradient of every single image, which a batch's gradient does not give.
    """
    constant = {name: weight.detach() for name, weight in theta.items()}

    def score(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, weights, (image[None],))
        return -F.cross_entropy(logits, label[None])

    scores = vmap(grad(score), in_dims=(None, 0, 0))
    total = torch.zeros(sum(weight.numel() for weight in constant.values()), device=images.device)
    for chunk, truth in zip(torch.split(images, CHUNK), torch.split(labels, CHUNK), strict=True):
        with torch.no_grad():
            p = model(chunk).float().softmax(-1)
        for label, weight in _labels(kind, p, truth, generator):
            # vmap supports neither fused attention nor compiled blocks nor mixed precision.
            with (
                torch.autocast(images.device.type, enabled=False),
                sdpa_kernel(SDPBackend.MATH),
                torch.compiler.set_stance("force_eager"),
            ):
                each = scores(constant, chunk, label)
                total += torch.cat([weight @ each[name].flatten(1).square() for name in constant])
    return total


def _labels(
    kind: Kind, p: Tensor, truth: Tensor, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Labels `[B]` and their weights `[B]` for F, given the probabilities `[B, C]`."""
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


def _first(train: Observations, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches with the first `count` images."""
    for images, labels in train:
        yield images[:count], labels[:count]
        count -= len(labels)
        if count <= 0:
            return
