"""Pseudo feature replay: samples from class-wise Gaussians, equation (13)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from sodap.errors import SodapError
from sodap.preserving.statistics import ClassStatistics


class Gaussians(NamedTuple):
    """K diagonal Gaussians to sample from, one for each observed class of each kept stage."""

    weight: Tensor  # [K], probability up to a common factor
    mean: Tensor  # [K, D]
    std: Tensor  # [K, D]
    label: Tensor  # [K]


class PseudoReplay(nn.Module):
    """Class statistics of past stages, from which pseudo features are sampled.

    `keep="merged"` (the paper) merges all stages into one Gaussian per class, in which the distance
    between two domains turns into variance; `"per_stage"` keeps one per class and stage.
    """

    _device: Tensor  # empty; tells the device while there are no statistics

    def __init__(
        self, classes: int, width: int, keep: Literal["merged", "per_stage"] = "merged"
    ) -> None:
        super().__init__()
        self.classes = classes
        self.width = width
        self.keep = keep
        self.stages = nn.ModuleList()
        self._gaussians: Gaussians | None = None  # computed from `stages` when first needed
        self.register_buffer("_device", torch.empty(0), persistent=False)

    def absorb(self, statistics: ClassStatistics) -> None:
        """Keep the statistics of a stage that has ended, and move to their device."""
        if statistics.mean.shape != (self.classes, self.width):
            raise SodapError(
                f"statistics of shape {list(statistics.mean.shape)} cannot be added to those of "
                f"{self.classes} classes and width {self.width}"
            )
        self.to(statistics.mean.device)
        if self.keep == "merged" and len(self.stages):
            next(self._kept()).merge(statistics)
        else:
            self.stages.append(copy.deepcopy(statistics))
        self._gaussians = None

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sample features `[count, D]` and their classes `[count]`; all observed classes equally.

        The generator must be on the same device. Nothing is copied to the host, except once after
        each change of the statistics.
        """
        if self._gaussians is None:
            self._gaussians = self._derive()
        weight, mean, std, label = self._gaussians
        drawn = torch.multinomial(weight, count, replacement=True, generator=generator)
        noise = torch.randn(count, self.width, generator=generator, device=mean.device)
        return mean[drawn] + noise * std[drawn], label[drawn]

    def _derive(self) -> Gaussians:
        kept = list(self._kept())
        if not any(bool(statistics.observed.any()) for statistics in kept):
            raise SodapError("pseudo replay has no statistics yet: finish a stage first")
        count = torch.stack([statistics.count for statistics in kept])  # [S, C]
        mean = torch.stack([statistics.mean for statistics in kept])  # [S, C, D]
        std = torch.stack([statistics.variance for statistics in kept]).sqrt()
        # Each observed class has weight 1, divided among its stages by their number of features.
        weight = count / count.sum(dim=0).clamp(min=1)
        stage, label = torch.nonzero(count, as_tuple=True)
        weight, mean, std = (
            each[stage, label].to(torch.get_default_dtype()) for each in (weight, mean, std)
        )
        return Gaussians(weight, mean, std, label)

    def _kept(self) -> Iterator[ClassStatistics]:
        return (cast(ClassStatistics, stage) for stage in self.stages)

    @property
    def stored_bytes(self) -> int:
        """Size of the kept statistics."""
        return sum(buffer.nbytes for buffer in self.buffers())

    # The Gaussians are outdated once the statistics are moved or loaded.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._gaussians = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *arguments: Any
    ) -> None:
        """Take over as many stages as the state has."""
        found = re.compile(re.escape(f"{prefix}stages.") + r"(\d+)\.")
        stages = {match[1] for key in state_dict if (match := found.match(key))}
        self.stages = nn.ModuleList(
            ClassStatistics(self.classes, self.width).to(self._device.device) for _ in stages
        )
        self._gaussians = None
        super()._load_from_state_dict(state_dict, prefix, *arguments)
