"""Residual experts: what all domains share is a frozen base, what is new in one is an expert.

    trunk     the first blocks, frozen and computed once; its patch statistics feed the gate
    base      stage 1's low-rank residual in the later blocks, and a ridge regression on the last
              blocks with sums over all domains: it cannot forget
    experts   one further low-rank residual and head per domain, trained once and frozen for good
    gate      linear discriminant analysis with the domains as classes: p(d | x)
    answer    p(y | x) = mean of base(y | x) and Σ_d p(d | x) expert_d(y | x)

An image is shown to the most probable experts only. The probability of the other domains goes to
the base. An expert answers among the classes of its domain; how probable another class is, the base
says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sodap.backbones import Lora, LoraLayout
from sodap.backbones.lora import FoldedBlocks
from sodap.freezing import resize_on_load
from sodap.methods.base import (
    Asset,
    Batch,
    LinearHead,
    Method,
    MethodConfig,
    Observations,
    StageInfo,
    tensor_bytes,
)
from sodap.methods.parts.domain_gate import DomainGate
from sodap.methods.parts.frozen_experts import FrozenExperts
from sodap.methods.parts.ridge_classifier import RidgeClassifier
from sodap.methods.parts.temperature import fit_sharpness
from sodap.methods.registry import register_method
from sodap.methods.residual_experts.ablation import OTHER_WAYS, REMOVALS
from sodap.methods.residual_experts.config import ResidualExpertsConfig
from sodap.methods.residual_experts.network import TrunkAndBranches
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


@register_method
class ResidualExperts(Method):
    """A closed-form base for all domains and one low-rank expert per domain, chosen by a gate."""

    name = "residual-experts"
    family = "expert"
    trains = "low-rank residuals, head"
    stores = "second moments, residuals and heads of past domains"
    Config = ResidualExpertsConfig
    selects_by = "nll"
    keeps_start = True
    derived = ("folded.*",)

    removals = REMOVALS
    other_ways = OTHER_WAYS

    config: ResidualExpertsConfig
    base_residual: Tensor  # [L, P]
    class_counts: Tensor  # images of each class in the current domain [C]
    ended: Tensor  # number of finished stages, []
    expert_of: Tensor  # expert of each finished stage [T]
    experts_in_use: Tensor  # []

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c = self.config
        self.network = TrunkAndBranches(backbone, c.trunk, c.read_blocks)
        self.layout = LoraLayout.of(backbone, first=self.network.length, rank=c.rank)
        width = self.network.feature_width
        self.residual = nn.Parameter(self.layout.draw(randomness.generator("init residual", 0)))
        self.head = LinearHead(width, classes, randomness.generator("init head"))
        self.register_buffer("base_residual", torch.zeros_like(self.residual.detach()))
        self.folded = FoldedBlocks(self.layout)
        self.base = RidgeClassifier(classes, width)
        self.gate = DomainGate(c.budget, self.network.statistics_width)
        self.experts = FrozenExperts(self.layout, c.budget, width, classes)
        self.register_buffer("class_counts", torch.zeros(classes))
        self.register_buffer("expert_of", torch.zeros(0, dtype=torch.int64))
        resize_on_load(self, "expert_of")
        self.register_buffer("ended", torch.zeros((), dtype=torch.int64))
        self.register_buffer("experts_in_use", torch.zeros((), dtype=torch.int64))
        self._read_state()

    def _read_state(self) -> None:
        """Read the numbers that decide what is computed; a training step must not wait for them."""
        self._finished = int(self.ended)
        self._count = int(self.experts_in_use)
        if self._finished:
            self.folded.fold(self.backbone, self.base_residual)

    # ------------------------------------------------------------------ one batch

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self._newest(self.network.trunk(batch.images)), batch.labels)}

    def forward(self, images: Tensor) -> Tensor:
        """Logarithms of the probabilities; during a stage, the logits of the expert in training."""
        trunk = self.network.trunk(images)
        if self.stage > self._finished:
            return self._newest(trunk)
        return self._answer(trunk)

    def _newest(self, trunk: Tensor) -> Tensor:
        """Logits `[B, C]` of the expert in training."""
        logits: Tensor = self.head(self.network.features(trunk, self._lora(self.residual)))
        return logits

    def _answer(self, trunk: Tensor) -> Tensor:
        """Logarithm of p(y | x) `[B, C]`."""
        c, domains = self.config, self._domains(trunk)
        share, chosen = domains.topk(min(c.shown_to, self._count), dim=1)
        if c.fast:
            answer = self._expert(trunk, chosen[:, 0]).softmax(1)
        elif not c.experts:
            answer = self._base(trunk)
        else:
            base = self._base(trunk)
            answer = (1 - share.sum(1, keepdim=True) / 2) * base
            for weight, expert in zip(share.unbind(1), chosen.unbind(1), strict=True):
                told = self._among_known(self._expert(trunk, expert), expert, base)
                answer = answer + weight.unsqueeze(1) / 2 * told
        with torch.autocast(trunk.device.type, enabled=False):
            prior = domains @ self.experts.priors()
        logarithm = answer.clamp(min=torch.finfo(answer.dtype).tiny).log()
        return (logarithm - c.balance * prior.log()).log_softmax(1)

    def _among_known(self, logits: Tensor, chosen: Tensor, base: Tensor) -> Tensor:
        """Probabilities by an expert for the classes that it knows, by the base for others."""
        known = self.experts.knows(chosen)
        own = logits.masked_fill(~known, torch.finfo(logits.dtype).min).softmax(1)
        others = base.masked_fill(known, 0.0)
        return own * (1 - others.sum(1, keepdim=True)) + others

    def _domains(self, trunk: Tensor) -> Tensor:
        """p(d | x) of each expert `[B, E]`."""
        logarithm: Tensor = self.gate(self.network.statistics(trunk))
        return logarithm.exp().float()

    def _base(self, trunk: Tensor) -> Tensor:
        """Probabilities of the base `[B, C]`."""
        logarithm: Tensor = self.base(self.network.features(trunk, self._lora()))
        return logarithm.exp().float()

    def _expert(self, trunk: Tensor, chosen: Tensor) -> Tensor:
        """Logits `[B, C]` of the expert of each image, `[B]`."""
        lora = self._lora(self.experts.residuals, chosen)
        return self.experts.logits(self.network.features(trunk, lora), chosen)

    def _lora(self, residual: Tensor | None = None, chosen: Tensor | None = None) -> Lora | None:
        """The base's weights, from stage 2 on, with a residual in addition."""
        weights = self.folded.weights() if self._finished else None
        if residual is None and weights is None:
            return None
        return self.layout.port(residual, chosen=chosen, weights=weights)

    # ------------------------------------------------------------------ stages

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        """Add the new domain to the sums of gate and base, and start an expert at the base."""
        self.stage = number
        # Every domain gets an expert. A drift test on the statistics would decide here whether the
        # domain is known: then it only adds to the sums, and its expert stays as it is.
        merged = self._make_room()
        statistics, features, labels = self._observe(train)
        self.class_counts.copy_(labels.bincount(minlength=self.classes))
        info = {"gate": self.gate.learn(statistics, self._count), "merged": merged}
        info["base"] = self.base.learn(features, labels)
        self._start_expert()
        return info

    def _observe(self, observations: Observations) -> tuple[Tensor, Tensor, Tensor]:
        """Statistics `[N, 2D]`, features of the base `[N, F]` and labels `[N]` of all images."""
        rows = [(*pair, labels) for pair, labels in observations.map(self._statistics_and_features)]
        statistics, features, labels = map(torch.cat, zip(*rows, strict=True))
        return statistics, features, labels

    def _statistics_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        trunk = self.network.trunk(images)
        return self.network.statistics(trunk), self.network.features(trunk, self._lora())

    @torch.no_grad()
    def _start_expert(self) -> None:
        """A residual of zero, and the base's solution as its head: it starts with its answers."""
        self.residual.copy_(
            self.layout.draw(self.randomness.generator("init residual", self.stage))
        )
        weight, bias = self.base.linear()
        self.head.weight.copy_(weight)
        self.head.bias.copy_(bias)

    @torch.no_grad()
    def _make_room(self) -> list[int] | None:
        """Merge the two nearest experts if the budget is used up; return their numbers."""
        last = self._count - 1
        if self._count < self.config.budget:
            return None
        one, other = self.gate.nearest_pair()
        self.experts.merge(one, other)
        self.gate.merge(one, other)
        self.expert_of[self.expert_of == other] = one
        if other != last:
            self.experts.move(last, other)
            self.gate.move(last, other)
            self.expert_of[self.expert_of == last] = other
        self._count = last
        self.experts_in_use.fill_(last)
        return [one, other]

    @torch.no_grad()
    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Freeze the expert; after stage 1 its residual becomes the base's."""
        residual, info = self.residual.detach(), self._calibration(val)
        if number == 1 and self.config.adapt:
            self.base_residual.copy_(residual)
            residual = torch.zeros_like(residual)  # to the base, nothing is added
        self.experts.freeze(self._count, residual, self.head, self.class_counts, info["sharpness"])
        self.expert_of = torch.cat([self.expert_of, self.experts_in_use.new_tensor([self._count])])
        self.experts_in_use.fill_(self._count + 1)
        self.ended.fill_(number)
        self._read_state()
        if number == 1 and self.config.adapt:
            self.base.clear()
            _, features, labels = self._observe(train)
            info["base"] = self.base.learn(features, labels)
        return info

    def _calibration(self, val: Observations) -> dict[str, Any]:
        """The factor on the logits of the new expert that its validation images ask for."""
        if not self.config.calibrate:
            return {"sharpness": 1.0}
        rows = [*val.map(lambda images: self._newest(self.network.trunk(images)))]
        logits, labels = map(torch.cat, zip(*rows, strict=True))
        return {"sharpness": fit_sharpness(logits, labels)}

    # ------------------------------------------------------------------ the rest of the contract

    def domain_probabilities(self, images: Tensor) -> Tensor:
        """Probabilities of each learned domain `[B, T]`; domains with one expert share equally."""
        domains = self._domains(self.network.trunk(images))
        together = (self.expert_of.unsqueeze(0) == self.expert_of.unsqueeze(1)).sum(0)
        return domains[:, self.expert_of] / together

    def lr_factor(self, name: str) -> float:
        return self.config.head_lr if name.startswith("head.") else 1.0

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        super().restore(state, stage)
        self._read_state()

    def stored(self) -> list[Asset]:
        if not self._finished:
            return []
        experts, images = self._count, f"{self.base.images:,} images"
        base, gate = tensor_bytes(self.base), tensor_bytes(self.gate)
        return [
            Asset(f"second moments of the features of {images}", "statistics", base),
            Asset(f"second moments of the trunk for {images}", "statistics", gate),
            Asset(f"{experts} experts", "model", experts * self.experts.bytes_each),
        ]
