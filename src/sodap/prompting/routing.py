"""Routing: how much weight an image gives to each prompt, equations (4) to (6)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting.entmax import entmax
from sodap.prompting.options import PromptingOptions


class Groups(NamedTuple):
    """The sets of prompts that are routed separately: consecutive rows of the pool, A last."""

    sizes: tuple[int, ...]
    """Rows of each set."""
    scales: tuple[float, ...]
    """What the prompt of each set is multiplied by: λ_r for A beside F, else 1."""
    active: int
    """Rows of A, at the end of the last set."""
    competing: bool = False
    """Whether the weights of a set are those it wins against all sets before it."""

    @property
    def size(self) -> int:
        """Rows of all sets."""
        return sum(self.sizes)


class Routing(NamedTuple):
    """Routing weights of one layer: a distribution over each set of prompts, side by side."""

    weights: Tensor  # [B, N]
    groups: Groups

    def prompt(self, values: Tensor) -> Tensor:
        """Combine prompt values, equation (6): ``p_F + λ_r p_A``, ``[N, d] -> [B, d]``."""
        sizes, scales = self.groups.sizes, self.groups.scales
        weights, values_ = self.weights.split_with_sizes(sizes, -1), values.split_with_sizes(sizes)
        parts = zip(scales, weights, values_, strict=True)
        return torch.stack([scale * (w @ v) for scale, w, v in parts]).sum(0)

    @property
    def frozen(self) -> Tensor:
        """Weights over F, ``[B, |F|]``."""
        return self.weights[:, : self.groups.size - self.groups.active]

    @property
    def active(self) -> Tensor:
        """Weights over A, ``[B, |A|]``."""
        return self.weights[:, self.groups.size - self.groups.active :]

    @property
    def joined(self) -> Tensor:
        """One distribution over the whole pool, ``[B, N]``: the mean of those over the sets."""
        if self.groups.competing:  # the weights of a set sum to at most 1
            return self.weights / self.weights.sum(-1, keepdim=True)
        return self.weights / len(self.groups.sizes)


class Router:
    """Turns queries into routing weights; without ``sodap``, by one softmax over all prompts."""

    def __init__(self, options: PromptingOptions) -> None:
        self.joint = options.combination == "joint" or not options.sodap
        self.competing = options.combination == "competing"
        self.softmax = options.selection == "softmax" or not options.sodap
        self.merge = options.merge
        self.residual = options.residual
        self.alpha = options.alpha
        self.temperature = options.temperature

    def groups(self, generations: Sequence[int]) -> Groups:
        """Divide the pool's ``generations`` (rows added in each stage) into sets."""
        *frozen, active = generations
        if self.joint or not frozen:
            # In stage 1 there is no F: A is then the whole prompt, not a residual of nothing.
            return Groups((sum(generations),), (1.0,), active)
        if self.merge == "paper":
            frozen = [sum(frozen)]
        scales = (*[1.0] * len(frozen), self.residual)
        return Groups((*frozen, active), scales, active, self.competing)

    def route(self, z: Tensor, keys: Tensor, groups: Groups) -> Routing:
        """Route compressed queries ``[B, d]`` over keys ``[N, d]`` by cosine similarity."""
        logits = unit(z) @ unit(keys).mT  # [B, N]
        if groups.competing:
            return Routing(self._compete(logits, groups.sizes), groups)
        weights = [self.select(part) for part in logits.split_with_sizes(groups.sizes, -1)]  # (5)
        return Routing(torch.cat(weights, -1), groups)

    def _compete(self, logits: Tensor, sizes: Sequence[int]) -> Tensor:
        """Weights of each set in one distribution over it and all sets before it, ``[B, N]``.

        An image that is nearer to frozen keys gives no weight to new prompts. A set only competes
        with older ones, so its weights stay the same when the pool grows.
        """
        sets = zip(accumulate(sizes), sizes, strict=True)
        won = [self.select(logits[:, :end])[:, end - size :] for end, size in sets]
        return torch.cat(won, -1)

    def select(self, logits: Tensor) -> Tensor:
        """Turn the logits of one set into a distribution over it, equation (4)."""
        if self.softmax:
            return (logits / self.temperature).softmax(-1)
        return entmax(logits, self.alpha, temperature=self.temperature)


def unit(rows: Tensor) -> Tensor:
    """Scale rows ``[..., d]`` to length one."""
    return F.normalize(rows, dim=-1, eps=1e-6)
