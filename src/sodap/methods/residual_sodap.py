"""Residual SODAP, the paper on one screen, put together from its rooms.

3.1  prompting    sparse routing over frozen and active prompts, injected into CLS
3.2  preserving   a teacher head and class statistics stand in for the old images
3.3  drift        how much prompt usage changed decides how much the pool grows
3.4  balancing    the five losses weigh themselves
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.backbones import FrozenViT
from sodap.balancing import UncertaintyWeighting
from sodap.drift import (
    DriftDetector,
    DriftReport,
    UsageReference,
    UsageWindow,
    expansion,
    null_band,
    should_expand,
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
from sodap.methods.residual_sodap_config import ResidualSodapConfig
from sodap.preserving import ClassStatistics, FeatureMemory, distillation_loss
from sodap.prompting import Prompter, PromptPass, Routing
from sodap.randomness import Randomness


@register_method
class ResidualSodap(Method):
    """Frozen ViT, sparse residual prompts, statistics instead of images."""

    name = "residual-sodap"
    family = "prompt"
    trains = "prompts, router, head"
    stores = "class statistics, means of queries, teacher head, prompt usage"
    Config = ResidualSodapConfig
    running = ("prompter.memory.keys", "prompter.memory.values")
    derived = ("memory._gaussians", "prompter._partition")

    config: ResidualSodapConfig

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        c = self.config
        combination = c.combination if c.sodap else "joint"
        self.prompter = Prompter(
            width=backbone.width,
            depth=backbone.depth,
            heads=backbone.heads,
            prefix_tokens=backbone.prefix_tokens,
            pool_size=c.pool_size,
            capacity=c.capacity,
            bottleneck=c.bottleneck,
            memory_slots=c.memory_slots,
            memory_momentum=c.memory_momentum,
            memory_learnable=c.memory_write == "learned",
            query_enhancer=c.query_enhancer,
            context=c.context,
            alpha=c.alpha,
            temperature=c.temperature,
            residual=c.residual,
            selection=c.selection if c.sodap else "softmax",
            combination=combination,
            merge=c.merge if combination == "residual" else "paper",  # one set has no scale to keep
            per_layer=c.per_layer,
            generator=randomness.generator("init prompts"),
        )
        self.head = LinearHead(backbone.width, classes, randomness.generator("init head"))
        self.teacher = copy.deepcopy(self.head).requires_grad_(False)
        self.memory = FeatureMemory(classes, backbone.width, keep=c.stats)
        self.balance = UncertaintyWeighting(self.loss_names)
        self.reference = UsageReference(len(self._layers()), c.capacity, c.drift.window - 1)
        self._last_pass: PromptPass | None = None
        self._has_base = False

    @property
    def loss_names(self) -> list[str]:
        """The losses of a later stage; stage 1 has only the first two."""
        c = self.config
        chosen = {
            "ce": True,
            "div": c.l_div,
            "norm": c.l_norm and c.pudd,
            "real": c.distill,
            "pseudo": c.distill and c.pseudo,
        }
        return [name for name, wanted in chosen.items() if wanted]

    # ------------------------------------------------------------------ one batch

    def features(self, images: Tensor) -> tuple[Tensor, PromptPass]:
        """CLS features `[B, D]` of the prompted backbone, and how each layer was routed."""
        prompts = self.prompter.start()
        c, network = self.config, self.backbone
        through = network.along_cls if c.backprop == "cls_row" else network
        features: Tensor = through(images, cls=prompts.cls, norm=c.feature_norm)
        return features.float(), prompts

    def compile_parts(self) -> None:
        super().compile_parts()
        self.prompter.compile_visits()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images)[0])
        return logits

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, names = self.config, self.loss_names
        features, prompts = self.features(batch.images)
        self._last_pass = prompts
        logits = self.head(features)

        losses = {"ce": F.cross_entropy(logits, batch.labels)}
        if "div" in names:
            losses["div"] = self.prompter.diversity(prompts)
        if self.stage == 1:
            return losses
        if "norm" in names:
            # Without F the active prompts are no residual but the base: nothing to hold back.
            norm = self.prompter.norm()
            losses["norm"] = norm if self._has_base else torch.zeros_like(norm)
        if "real" in names:
            losses["real"] = distillation_loss(
                logits, self.teacher(features), c.distill_temperature
            )
        if "pseudo" in names:
            imagined, _ = self.memory.sample(c.pseudo_samples or len(batch.labels), batch.generator)
            losses["pseudo"] = distillation_loss(
                self.head(imagined), self.teacher(imagined), c.distill_temperature
            )
        return losses

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        if self.stage == 1 or not self.config.uw:
            return super().total(losses)
        total: Tensor = self.balance(losses)
        return total

    def after_step(self) -> None:
        if self.config.memory_write == "always" or (
            self.config.memory_write == "stage1" and self.stage == 1
        ):
            assert self._last_pass is not None
            self.prompter.remember(self._last_pass)
        self._last_pass = None
        self.balance.project()

    # ------------------------------------------------------------------ stages

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self.stage = number
        self.balance.reset()
        facts: dict[str, Any] = {}
        if number > 1 and self.config.pudd:
            facts["drift"] = self._meet(number, train)
        self._choose_what_trains()
        return facts | {"pool": self.pool()}

    def _meet(self, number: int, train: Observations) -> dict[str, Any]:
        """Measure how differently the new domain uses the prompts, and grow by it."""
        c, pool = self.config, self.prompter.pool
        window = self.reference.window(self._in_use) if c.drift_prefill else self._empty_window()
        band, past = null_band(window, c.drift), window.filled
        report = self._observe(train, window)
        added = 0
        if should_expand(report.mean, c.drift):
            wanted = expansion(pool.active_count, report.mean, c.drift)
            device = self.head.weight.device
            added = self.prompter.expand(
                wanted, self.randomness.generator("new prompts", number, device=device)
            )
        return {
            "score": report.mean,
            "scores": report.scores.round(4).tolist(),  # [batches, layers]
            "entropy_per_layer": report.entropy.mean(0).tolist(),
            "overlap_per_layer": report.overlap.mean(0).tolist(),
            "null_band": None if band is None else band._asdict(),
            "past_batches": past,
            "needed_batches": c.drift.needed,
            "added": added,
        }

    def _choose_what_trains(self) -> None:
        """Gradient steps from now on; frozen prompts are buffers and need no guard."""
        thawed = self.stage == 1 or self.config.shared_after_stage1 != "frozen"
        for parameter in self.prompter.shared_parameters():
            parameter.requires_grad_(thawed)
        self._has_base = self.prompter.pool.frozen_count > 0

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Keep three things of this domain: class statistics, the head, and prompt usage."""
        statistics = ClassStatistics(self.classes, self.backbone.width).to(self.head.weight.device)
        window = self._empty_window()
        report = self._observe(train, window, statistics)
        self.memory.absorb(statistics)
        self.teacher.load_state_dict(self.head.state_dict())
        self.reference.keep(window)
        return {"pool": self.pool(), "entropy_per_layer": report.entropy.mean(0).tolist()}

    def _empty_window(self) -> UsageWindow:
        return UsageWindow(len(self._layers()), self._in_use, self.config.drift.window - 1)

    # ------------------------------------------------------------------ usage of the pool

    def _layers(self) -> range:
        """Layers whose routing can tell one image from another."""
        constant_first = self.config.context == "cls" or not self.config.query_enhancer
        return range(int(self.config.drift_skip_first and constant_first), self.backbone.depth)

    @property
    def _in_use(self) -> int:
        return self.prompter.pool.frozen_count + self.prompter.pool.active_count

    @torch.no_grad()
    def _observe(
        self,
        observations: Observations,
        window: UsageWindow,
        statistics: ClassStatistics | None = None,
    ) -> DriftReport:
        """Score the prompt usage of all images, group by group, against `window`, and add it.

        From stage 2 on an image has several distributions (over F and over A, or with
        `merge=rescale` one over the prompts of each stage): its usage is their mean, and a prompt
        counts as used if its own distribution gives it enough weight.
        """
        in_use, layers = self._in_use, self._layers()
        least = self._usage_threshold()[:in_use]
        groups: list[Tensor] = []  # [2, L, N] each: joined weights, and weights in the own set
        rest = least.new_empty(0, 2, len(layers), in_use)  # images that do not fill a group yet
        for (features, usage), labels in observations.map(self._look):
            if statistics is not None:
                statistics.update(features, labels)
            weights = torch.cat([rest, usage[..., :in_use]])  # [B, 2, L, N]
            size = self.config.drift_batch or len(weights)
            whole = len(weights) // size * size
            groups += [weights[at : at + size].mean(0) for at in range(0, whole, size)]
            rest = weights[whole:]  # at the end of the domain it is left out: noisier than a group
        if not groups:
            groups = [rest.mean(0)]  # a domain of fewer images than a group
        usage, within = torch.stack(groups, 1)
        detector = DriftDetector(len(layers), in_use, self.config.drift, window)
        return detector.scan(usage.double().cpu().numpy(), (within > least).cpu().numpy())

    def _look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[B, D]`, and the weights of all prompts, joined and in the own set.

        These are `[B, 2, L, N]`.
        """
        features, prompts = self.features(images)
        chosen = [prompts.routings[layer] for layer in self._layers()]
        joined, own = ([r.joined for r in chosen], [r.weights for r in chosen])
        return features, torch.stack([torch.stack(joined, 1), torch.stack(own, 1)], 1)

    def _usage_threshold(self) -> Tensor:
        """From which mean weight on a prompt counts as used, `[capacity]`.

        A relative threshold is counted in the mean weight of the set that the prompt is routed in.
        """
        drift, prompter = self.config.drift, self.prompter
        segments = prompter.router.partition(prompter.pool.sets).segments
        even = segments.members / segments.sizes  # [capacity]
        unit = even if drift.relative_threshold else torch.ones_like(even)
        return drift.usage_threshold * unit

    # ------------------------------------------------------------------ what others ask

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Decay on the head's and the adapters' matrices; never on prompts or loss weights."""
        slow = self.stage > 1 and self.config.shared_after_stage1 == "low_lr"
        shared = [p for p in self.prompter.shared_parameters() if p.requires_grad]
        shared_lr = lr * self.config.shared_lr if slow else lr
        free = [*self.prompter.pool.parameters(), self.head.bias, *self.balance.parameters()]
        groups = [
            {"params": [self.head.weight], "lr": lr, "weight_decay": weight_decay},
            {"params": free, "lr": lr, "weight_decay": 0.0},
        ]
        for matrices in (True, False):
            members = [p for p in shared if (p.ndim >= 2) == matrices]
            if members:
                decay = weight_decay if matrices else 0.0
                groups.append({"params": members, "lr": shared_lr, "weight_decay": decay})
        return groups

    def pool(self) -> dict[str, int]:
        pool = self.prompter.pool
        return {
            "frozen": pool.frozen_count,
            "active": pool.active_count,
            "unused": pool.unused_count,
        }

    def loss_weights(self) -> dict[str, Tensor]:
        return self.balance.weights() if self.stage > 1 and self.config.uw else {}

    def prompt_values(self) -> Tensor:
        return self.prompter.pool.values[:, : self._in_use]

    @torch.no_grad()
    def routing(self, images: Tensor) -> list[Routing]:
        prompts = self.features(images)[1]
        partition = prompts.partition.copy()
        return [routing._replace(partition=partition) for routing in prompts.routings]

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        kept = {key.split(".")[2] for key in state if key.startswith("memory.stages.")}
        self.memory.prepare(len(kept))
        self.memory.to(self.head.weight.device)
        super().restore(state, stage)
        self._choose_what_trains()

    def stored(self) -> list[Asset]:
        bank = self.prompter.memory
        averages = {} if bank is None else {"keys": bank.keys, "values": bank.values}
        return [
            Asset("class means and variances", "statistics", self.memory.stored_bytes),
            *(
                Asset(f"running means of queries ({name})", "statistics", slots.nbytes)
                for name, slots in averages.items()
            ),
            Asset("classifier of the stage before", "teacher", tensor_bytes(self.teacher)),
            Asset("prompt usage of the last domain", "usage", tensor_bytes(self.reference)),
        ]

    def trainable_count(self) -> int:
        """Of the pool only its active rows train, of the losses' weights none in stage 1."""
        weighed = len(self.loss_names) if self.stage > 1 and self.config.uw else 0
        head = self.head.weight.numel() + self.head.bias.numel()
        return head + self.prompter.trainable_count() + weighed
