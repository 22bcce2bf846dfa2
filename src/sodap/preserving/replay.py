"""Pseudo feature replay: the past as Gaussians in feature space (eq. pseudo_sample)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from sodap.errors import SodapError
from sodap.preserving.statistics import ClassStatistics


class Gaussians(NamedTuple):
    """The K diagonal Gaussians to draw from, one for each observed class of each kept stage."""

    weight: Tensor  # [K], the chance of each, up to a common factor
    mean: Tensor  # [K, D]
    std: Tensor  # [K, D]
    label: Tensor  # [K]


class FeatureMemory(nn.Module):
    """What is kept of the stages that are over, and where pseudo features come from.

    `merged` (the paper) pools all stages into one Gaussian per class, in which the distance
    between two domains turns into variance; `per_stage` keeps a Gaussian per class and stage.
    """

    def __init__(
        self, classes: int, width: int, keep: Literal["merged", "per_stage"] = "merged"
    ) -> None:
        super().__init__()
        self.classes = classes
        self.width = width
        self.keep = keep
        self.stages = nn.ModuleList()
        self._gaussians: Gaussians | None = None  # derived from `stages` when first needed

    def absorb(self, statistics: ClassStatistics) -> None:
        """Keep the statistics of a stage that has ended; the memory moves to their device."""
        if statistics.mean.shape != (self.classes, self.width):
            raise SodapError(
                f"a memory of {self.classes} classes and width {self.width} "
                f"cannot absorb statistics of shape {list(statistics.mean.shape)}"
            )
        self.to(statistics.mean.device)
        if self.keep == "merged" and len(self.stages):
            next(self._kept()).merge(statistics)
        else:
            self.stages.append(copy.deepcopy(statistics))
        self._gaussians = None

    def prepare(self, stages: int) -> None:
        """Make room for `stages` absorbed stages, so that `load_state_dict` finds its slots."""
        slots = min(stages, 1) if self.keep == "merged" else stages
        self.stages = nn.ModuleList(ClassStatistics(self.classes, self.width) for _ in range(slots))
        self._gaussians = None

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw features `[count, D]` and their classes `[count]`, each observed class as likely.

        The generator must live on the memory's device. Nothing is read back from that device,
        except once after each change of what is kept.
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
            raise SodapError("no feature has been absorbed yet, so there is nothing to replay")
        count = torch.stack([statistics.count for statistics in kept])  # [S, C]
        mean = torch.stack([statistics.mean for statistics in kept])  # [S, C, D]
        std = torch.stack([statistics.variance for statistics in kept]).sqrt()
        # Every observed class has weight 1, shared by its stages in proportion to what they saw.
        weight = count / count.sum(dim=0).clamp(min=1)
        stage, label = torch.nonzero(count, as_tuple=True)
        return Gaussians(
            weight[stage, label].float(),
            mean[stage, label].float(),
            std[stage, label].float(),
            label,
        )

    def _kept(self) -> Iterator[ClassStatistics]:
        return (cast(ClassStatistics, stage) for stage in self.stages)

    @property
    def stored_bytes(self) -> int:
        """The size of all that is kept of the past."""
        return sum(buffer.nbytes for buffer in self.buffers())

    # What was derived is stale once the statistics are moved or loaded.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._gaussians = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *arguments: object) -> None:
        self._gaussians = None
        super()._load_from_state_dict(*arguments)
