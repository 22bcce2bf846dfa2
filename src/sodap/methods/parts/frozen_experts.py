"""Experts of past domains: a low-rank residual and a linear head each, frozen for good."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sodap.backbones import LoraLayout
from sodap.backbones.lora import full_precision


class FrozenExperts(nn.Module):
    """Residuals and heads of at most `budget` experts, in buffers that are allocated once."""

    residuals: Tensor  # [E, L, P]
    weight: Tensor  # [E, C, D]
    bias: Tensor  # [E, C]
    class_counts: Tensor  # images of each class in the domains of each expert [E, C]

    def __init__(self, layout: LoraLayout, budget: int, width: int, classes: int) -> None:
        super().__init__()
        self.layout = layout
        self.register_buffer("residuals", torch.zeros(budget, layout.blocks, layout.size))
        self.register_buffer("weight", torch.zeros(budget, classes, width))
        self.register_buffer("bias", torch.zeros(budget, classes))
        self.register_buffer("class_counts", torch.zeros(budget, classes))

    @property
    def bytes_each(self) -> int:
        """Bytes of one expert."""
        return sum(int(each[0].nbytes) for each in self.buffers())

    @torch.no_grad()
    def freeze(
        self,
        slot: int,
        residual: Tensor,
        head: nn.Linear,
        class_counts: Tensor,
        sharpness: float = 1.0,
    ) -> None:
        """Copy an expert into a slot.

        Args:
            residual: `[L, P]`.
            class_counts: images of each class in its domain `[C]`.
            sharpness: factor on the logits of the head.
        """
        self.class_counts[slot] = class_counts
        self.residuals[slot] = residual
        self.weight[slot] = sharpness * head.weight
        self.bias[slot] = sharpness * head.bias

    def logits(self, features: Tensor, chosen: Tensor) -> Tensor:
        """Logits `[B, C]` of features `[B, D]` by the head of the expert of each image, `[B]`."""
        with torch.autocast(features.device.type, enabled=False):
            # All heads at once: gathering one for each image would copy it for each image.
            every = torch.einsum("bd,ecd->ebc", features, self.weight) + self.bias.unsqueeze(1)
            own = chosen.view(1, -1, 1).expand(1, *every.shape[1:])
            return every.gather(0, own)[0]

    def knows(self, chosen: Tensor) -> Tensor:
        """Whether the expert of each image has seen an image of each class: `[B] -> [B, C]`."""
        return self.class_counts[chosen] > 0

    def priors(self) -> Tensor:
        """Class frequencies of each expert's domains `[E, C]`, with one image more per class."""
        counts = self.class_counts + 1
        return counts / counts.sum(1, keepdim=True)

    @torch.no_grad()
    @full_precision
    def merge(self, one: int, other: int) -> None:
        """Replace expert `one` by the mean of two experts, weighted by their images."""
        pair = torch.tensor([one, other], device=self.bias.device)
        images = self.class_counts[pair].sum(1)
        weights = images / images.sum()
        self.class_counts[one] += self.class_counts[other]
        self.residuals[one] = self.layout.mean(self.residuals[pair], weights)
        for heads in (self.weight, self.bias):
            heads[one] = torch.einsum("e,e...->...", weights.to(heads), heads[pair])

    @torch.no_grad()
    def move(self, source: int, target: int) -> None:
        """Move an expert to another slot and clear its own."""
        for each in self.buffers():
            each[target] = each[source]
            each[source] = 0
