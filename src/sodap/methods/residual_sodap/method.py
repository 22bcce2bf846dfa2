"""Residual SODAP: the paper's section 3, assembled from its four parts.

3.1  prompting    sparse routing over frozen and active prompts, added to CLS
3.2  preserving   a teacher head and class statistics instead of old images
3.3  drift        how much prompt usage changes decides how much the pool grows
3.4  balancing    learned weights of the five losses
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.balancing import UncertaintyWeighting
from sodap.drift import (
    DriftDetector,
    DriftScores,
    UsageReference,
    UsageWindow,
    expansion,
    null_band,
    should_expand,
    usage_set,
)
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
from sodap.methods.registry import register_method
from sodap.methods.residual_sodap.ablation import OTHER_READINGS, REMOVALS, active_parts
from sodap.methods.residual_sodap.config import ResidualSodapConfig
from sodap.methods.residual_sodap.starting import start_from_images
from sodap.methods.residual_sodap.usage import GroupMeans, usage_of, usage_threshold
from sodap.preserving import ClassStatistics, PseudoReplay, distillation_loss
from sodap.prompting import (
    NOTHING,
    Inspection,
    Intervention,
    Prompter,
    PromptPass,
    Routing,
)
from sodap.prompting.fast import FastPrompter
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


@register_method
class ResidualSodap(Method):
    """Sparse residual prompts in a frozen ViT, with statistics instead of stored images."""

    name = "residual-sodap"
    family = "prompt"
    trains = "prompts, router, head"
    stores = "class statistics, means of queries, teacher head, prompt usage"
    Config = ResidualSodapConfig
    without_decay = ("prompter.pool.*",)
    running = ("prompter.memory.keys", "prompter.memory.values")
    derived = ("replay._gaussians", "fast_prompter._partition")

    removals = REMOVALS
    other_ways = OTHER_READINGS

    config: ResidualSodapConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c = self.config
        self.prompter = Prompter(
            c,
            width=backbone.width,
            depth=backbone.depth,
            heads=backbone.heads,
            prefix_tokens=backbone.prefix_tokens,
            generator=randomness.generator("init prompts"),
        )
        self.fast_prompter = FastPrompter(self.prompter) if c.fast else None
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))
        self.teacher = copy.deepcopy(self.head).requires_grad_(False)
        self.replay = PseudoReplay(classes, backbone.width, keep=c.stats)
        self.balance = UncertaintyWeighting(c.loss_names)
        self.drift_layers = c.drift_layers(backbone.depth)
        self.reference = UsageReference(len(self.drift_layers), c.capacity, c.drift.window - 1)
        self._last_pass: tuple[PromptPass, Tensor] | None = None

    # ------------------------------------------------------------------ one batch

    def features(self, images: Tensor) -> tuple[Tensor, PromptPass]:
        """Features f `[B, D]` of the prompted backbone, and the prompts of each layer."""
        prompts = (self.fast_prompter or self.prompter).start()
        c, backbone = self.config, self.backbone
        forward = backbone.along_cls if c.backprop == "cls_row" else backbone
        features: Tensor = forward(images, cls=prompts.cls, norm=c.feature_norm)
        return features.to(self.head.weight.dtype), prompts

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images)[0])
        return logits

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, names = self.config, self.config.loss_names
        features, prompts = self.features(batch.images)
        self._last_pass = prompts, features.detach()
        logits = self.head(features)

        losses = {"ce": F.cross_entropy(logits, batch.labels)}
        if "div" in names:
            losses["div"] = self.prompter.diversity(prompts)
        if self.stage == 1:
            return losses
        if "norm" in names:
            norm = self.prompter.norm()
            # Without F the active prompts are the base, not a residual, and may be large.
            counts = c.l_norm_base or self.prompter.pool.frozen_count > 0
            losses["norm"] = norm if counts else torch.zeros_like(norm)
        if "real" in names:
            losses["real"] = distillation_loss(
                logits, self.teacher(features), c.distill_temperature
            )
        if "pseudo" in names:
            count = c.pseudo_samples or len(batch.labels)
            sampled, _ = self.replay.sample(count, batch.generator)
            losses["pseudo"] = distillation_loss(
                self.head(sampled), self.teacher(sampled), c.distill_temperature
            )
        return losses

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        if self.stage == 1 or not self.config.uw:
            return super().total(losses)
        total: Tensor = self.balance(losses)
        return total

    def after_step(self) -> None:
        write = self.config.memory_write
        if write == "always" or (write == "stage1" and self.stage == 1):
            assert self._last_pass is not None
            self.prompter.remember(*self._last_pass)
        self._last_pass = None
        self.balance.project()

    # ------------------------------------------------------------------ stages

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self.stage = number
        self.balance.reset()
        info: dict[str, Any] = {}
        if number > 1 and self.config.pudd:
            info["drift"] = self._measure_drift_and_grow(train)
        grown = number == 1 or info.get("drift", {}).get("added", 0) > 0
        start_from_images(self, train, new_prompts=grown)
        self._freeze_shared_parts()
        return info | {"pool": self.pool()}

    def _measure_drift_and_grow(self, train: Observations) -> dict[str, Any]:
        """Score how differently the new domain uses the prompts, and expand the pool by it."""
        c, pool = self.config, self.prompter.pool
        window = self.reference.window(pool.size) if c.drift_prefill else self._empty_window()
        band, past = null_band(window, c.drift), window.filled
        drift = self._observe(train, window)
        added = 0
        if should_expand(drift.mean, c.drift):
            wanted = expansion(pool.active_count, drift.mean, c.drift)
            device = self.head.weight.device
            added = pool.expand(
                wanted, self.randomness.generator("new prompts", self.stage, device=device)
            )
        return {
            "score": drift.mean,
            "scores": drift.scores.round(4).tolist(),  # [batches, layers]
            "entropy_per_layer": drift.entropy.mean(0).tolist(),
            "overlap_per_layer": drift.overlap.mean(0).tolist(),
            "null_band": None if band is None else band._asdict(),
            "past_batches": past,
            "needed_batches": c.drift.needed,
            "added": added,
        }

    def _freeze_shared_parts(self) -> None:
        """Choose whether the shared parts train; frozen prompts are buffers and never do."""
        trainable = self.stage == 1 or self.config.shared_after_stage1 != "frozen"
        for parameter in self.prompter.shared_parameters():
            parameter.requires_grad_(trainable)

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Keep class statistics, the head as teacher, and prompt usage of this domain."""
        statistics = ClassStatistics(self.classes, self.backbone.width).to(self.head.weight.device)
        window = self._empty_window()
        usage = self._observe(train, window, statistics)
        self.replay.absorb(statistics)
        self.teacher.load_state_dict(self.head.state_dict())
        self.reference.keep(window)
        return {"pool": self.pool(), "entropy_per_layer": usage.entropy.mean(0).tolist()}

    def _empty_window(self) -> UsageWindow:
        layers, size = len(self.drift_layers), self.prompter.pool.size
        return UsageWindow(layers, size, self.config.drift.window - 1)

    def _observe(
        self,
        observations: Observations,
        window: UsageWindow,
        statistics: ClassStatistics | None = None,
    ) -> DriftScores:
        """Score a domain's prompt usage against `window`, and add it to the window.

        The same pass updates `statistics`, if given.
        """
        means = GroupMeans(self.config.drift_batch)
        for (features, usage), labels in observations.map(self._features_and_usage):
            means.add(usage)
            if statistics is not None:
                statistics.update(features, labels)
        usage, within = means.stacked().double().cpu().unbind(1)  # [groups, L, N]
        groups, settings = self.prompter.groups, self.config.drift
        if self.config.drift_sets == "own":
            used = usage_set(within.numpy(), usage_threshold(groups.sizes, settings).numpy())
        else:
            used = usage_set(usage.numpy(), usage_threshold([groups.size], settings).numpy())
        detector = DriftDetector(
            len(self.drift_layers), self.prompter.pool.size, self.config.drift, window
        )
        return detector.scan(usage.numpy(), used)

    def _features_and_usage(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[B, D]`, and prompt usage of the scored layers `[B, 2, L, N]`."""
        features, prompts = self.features(images)
        return features, usage_of([prompts.routings[layer] for layer in self.drift_layers])

    # ------------------------------------------------------------------ the rest of the contract

    @classmethod
    def active_parts(cls, options: Mapping[str, Any]) -> dict[str, bool]:
        return active_parts(options)

    def compile_parts(self) -> None:
        super().compile_parts()
        if self.fast_prompter is not None:
            self.fast_prompter.compile()

    def lr_factor(self, name: str) -> float:
        """Factors of the parts that decide the routing, and of shared parts after stage 1."""
        shared = name.startswith("prompter.") and not name.startswith("prompter.pool.")
        slow = self.stage > 1 and self.config.shared_after_stage1 == "low_lr"
        routes = (shared and "W_up" not in name) or name == "prompter.pool.trained_keys"
        factor = self.config.shared_lr if shared and slow else 1.0
        return factor * self.config.router_lr if routes else factor

    def pool(self) -> dict[str, int | None]:
        """Number of frozen, active and unused prompts; None unused without a capacity."""
        pool = self.prompter.pool
        return {
            "frozen": pool.frozen_count,
            "active": pool.active_count,
            "unused": pool.unused_count,
        }

    def loss_weights(self) -> dict[str, Tensor]:
        return self.balance.weights() if self.stage > 1 and self.config.uw else {}

    def prompt_values(self) -> Tensor:
        return self.prompter.pool.values[:, : self.prompter.pool.size]

    @torch.no_grad()
    def routing(self, images: Tensor) -> list[Routing]:
        return self.features(images)[1].routings

    @torch.no_grad()
    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection:
        """The pass with the equations as printed, which is equal to the fast one up to rounding."""
        prompts = self.prompter.start(intervention)
        features = self.backbone(images, cls=prompts.cls, norm=self.config.feature_norm)
        logits = self.head(features.to(self.head.weight.dtype))
        return Inspection(logits, prompts.selections, prompts.retrieved)

    def memory_slots(self) -> tuple[Tensor, Tensor] | None:
        bank = self.prompter.memory
        return None if bank is None else (bank.keys, bank.values)

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        # The statistics were called `memory` in models saved by the first versions.
        state = {re.sub(r"^memory\.", "replay.", key): value for key, value in state.items()}
        super().restore(state, stage)
        self._freeze_shared_parts()

    def stored(self) -> list[Asset]:
        bank = self.prompter.memory
        averages = {} if bank is None else {"keys": bank.keys, "values": bank.values}
        standardiser = self.prompter.standardiser
        if standardiser is not None:
            averages |= {"mean": standardiser.mean, "deviation": standardiser.std}
        return [
            Asset("class means and variances", "statistics", self.replay.stored_bytes),
            *(
                Asset(f"running means of queries ({name})", "statistics", slots.nbytes)
                for name, slots in averages.items()
            ),
            Asset("classifier of the stage before", "teacher", tensor_bytes(self.teacher)),
            Asset("prompt usage of the last domain", "usage", tensor_bytes(self.reference)),
        ]

    def trainable_count(self) -> int:
        """Count the active rows of the pool only, and loss weights only from stage 2 on."""
        weights = len(self.config.loss_names) if self.stage > 1 and self.config.uw else 0
        head = self.head.weight.numel() + self.head.bias.numel()
        return head + self.prompter.trainable_count() + weights
