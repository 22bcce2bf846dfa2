"""The method against a naive program written from the paper: losses, gradients, state, answers."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor

from sodap.learning import Learner, Training
from sodap.methods import Batch
from sodap.methods.residual_sodap import ResidualSodap
from sodap.randomness import Randomness
from sodap.runs import load_config
from sodap.streams import Domain, Split
from tests.conftest import TINY_VIT, make_stream
from tests.naive_residual_sodap import Batches, Naive

Step = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Losses and gradients of one training step, by name."""

STREAM = make_stream(domains=3, count=20)  # two full batches and a rest
TRAINING = Training(epochs=3, patience=2, batch_size=8, lr=0.01, weight_decay=0.1)
# Sizes for a small network; all else is as the recipes have it.
SMALL = {"pool_size": 6, "bottleneck": 16, "memory_slots": 3}
# Above the mean weight of a prompt in the whole pool, below that in its own set.
SMALL_DRIFT = {"min_growth": 2, "usage_threshold": 0.1}
SMALL_DEFAULT = {"drift_batch": 4, "capacity": 40}


@pytest.fixture
def double() -> Iterator[None]:
    """Everything in float64, the learner included."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Teaching:
    """The package's learner, with the losses and gradients of every step."""

    def __init__(self, options: dict[str, Any], seed: int) -> None:
        self.learner = Learner(
            STREAM.classes, options=options, training=TRAINING, seed=seed, device="cpu", **TINY_VIT
        )
        method = self.learner.method
        assert isinstance(method, ResidualSodap)
        self.method = method.double()
        prepare = method.backbone.prepare
        method.backbone.prepare = lambda images: prepare(images).double()  # type: ignore[method-assign]
        self.steps: list[Step] = []
        compute = method.losses

        def losses(batch: Batch) -> dict[str, Tensor]:
            found = compute(batch)
            self.steps.append(({name: loss.detach() for name, loss in found.items()}, {}))
            return found

        def before_step() -> None:
            self.steps[-1][1].update(named(method, grads=True))

        method.losses, method.before_step = losses, before_step  # type: ignore[method-assign]


def named(method: ResidualSodap, *, grads: bool = False) -> dict[str, Tensor]:
    """Parameters (or their gradients) by the names of the naive program; of the pool, A."""
    found = {}
    rows = slice(method.prompter.pool.frozen_count, method.prompter.pool.size)
    for name, parameter in method.named_parameters():
        if name.startswith(("backbone.", "teacher.")):
            continue
        tensor = parameter.grad if grads else parameter
        short = name.removeprefix("prompter.").removeprefix("adapters.0.").removeprefix("memory.")
        short = short.removeprefix("enhancer.").replace("balance.log_variance", "s")
        if short.startswith("pool."):
            short = short.removeprefix("pool.trained_")
            tensor = None if tensor is None else tensor[0, rows]
        if tensor is not None:
            found[short] = tensor.detach().clone()
    return found


def batches(method: ResidualSodap, split: Split, order: torch.Generator) -> Batches:
    rows = torch.randperm(len(split), generator=order).split(TRAINING.batch_size)  # type: ignore[no-untyped-call]
    return [(method.backbone.prepare(split.images[row]), split.labels[row]) for row in rows]


class Oracle:
    """The naive program and the loop that trains it."""

    def __init__(self, method: ResidualSodap, literal: bool, seed: int) -> None:
        memory = method.prompter.memory
        assert memory is not None
        config = method.config
        self.method, self.randomness = method, Randomness(seed)
        self.naive = Naive(
            method.backbone.vit,
            {name: tensor.requires_grad_() for name, tensor in named(method).items()},
            {"keys": memory.keys.clone(), "values": memory.values.clone()},
            memory.heads,
            literal,
            min_growth=config.drift.min_growth,
            group=config.drift_batch,
            tau_s=config.drift.usage_threshold,
        )
        self.steps: list[Step] = []

    def new_prompts(self, count: int) -> tuple[Tensor, Tensor]:
        draw = self.randomness.generator("new prompts", self.naive.stage)
        width = self.naive.p["W_down"].shape[1]
        return tuple(0.02 * torch.randn(count, width, generator=draw) for _ in range(2))  # type: ignore[return-value]

    def trained(self) -> dict[str, Tensor]:
        naive = self.naive
        if naive.literal or naive.stage == 1:
            return dict(naive.p)
        return {name: naive.p[name] for name in ("keys", "values", "head.weight", "head.bias", "s")}

    def learn(self, domain: Domain) -> float:
        naive, stage = self.naive, self.naive.stage + 1
        order = self.randomness.generator("drift order", stage)
        with torch.no_grad():
            drift = naive.begin_stage(batches(self.method, domain.train, order), self.new_prompts)
        trained = self.trained()
        free = {"keys", "values", "s"}
        decayed = [p for name, p in trained.items() if p.ndim == 2 and name not in free]
        others = [p for name, p in trained.items() if p.ndim != 2 or name in free]
        optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": TRAINING.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ]
        )
        best, best_epoch = -1.0, 0
        kept: list[dict[str, Tensor]] = []
        for epoch in range(1, TRAINING.epochs + 1):
            for group in optimizer.param_groups:
                decay = 0.5 * (1 + math.cos(math.pi * (epoch - 1) / TRAINING.epochs))
                group["lr"] = TRAINING.lr * decay
            draw = torch.Generator().manual_seed(self.randomness.number("replay", stage, epoch))
            order = self.randomness.generator("order", stage, epoch)
            for images, labels in batches(self.method, domain.train, order):
                self.step(images, labels, optimizer, draw)
            score = f1_score(domain.val.labels, self.answers(domain.val), average="macro")
            if score > best:
                best, best_epoch = score, epoch
                kept = [
                    {k: v.detach().clone() for k, v in part.items()} for part in (naive.p, naive.m)
                ]
            if epoch - best_epoch >= TRAINING.patience:
                break
        for part, values in zip((naive.p, naive.m), kept, strict=True):
            for name, value in values.items():
                part[name].data.copy_(value)
        with torch.no_grad():
            order = self.randomness.generator("reference order", stage)
            naive.end_stage(batches(self.method, domain.train, order))
        return drift

    def step(self, images: Tensor, labels: Tensor, optimizer: Any, draw: torch.Generator) -> None:
        naive = self.naive
        losses, layers = naive.losses(images, labels, draw)
        optimizer.zero_grad()
        naive.total(losses).backward()  # type: ignore[no-untyped-call]
        grads = {n: p.grad.clone() for n, p in self.trained().items() if p.grad is not None}
        self.steps.append(({n: loss.detach() for n, loss in losses.items()}, grads))
        optimizer.step()
        naive.p["s"].data.clamp_(-3, 6)
        if naive.literal or naive.stage == 1:
            naive.write(layers)

    def answers(self, split: Split) -> Tensor:
        with torch.no_grad():
            features, _ = self.naive.features(self.method.backbone.prepare(split.images))
            return self.naive.head(features).argmax(-1)


@dataclass(frozen=True)
class After:
    """The naive program after a stage."""

    naive: Naive
    drift: float
    steps: list[Step]
    answers: list[Tensor]  # to the test images of each domain


@cache
def oracle(literal: bool, seed: int) -> list[After]:
    """Train the naive program for three stages."""
    program, stages = Oracle(Teaching(options(literal), seed).method, literal, seed), []
    for domain in STREAM.domains:
        program.steps = []
        drift = program.learn(domain)
        answers = [program.answers(tested.test) for tested in STREAM.domains]
        vit = {id(program.naive.vit): program.naive.vit}  # shared, not copied
        stages.append(After(copy.deepcopy(program.naive, vit), drift, program.steps, answers))
    return stages


def options(literal: bool) -> dict[str, Any]:
    """Options of the recipe `paper` or `default`, for a small network."""
    found = load_config("paper" if literal else "default").options
    small = found | SMALL | ({} if literal else SMALL_DEFAULT)
    return small | {"drift": found.get("drift", {}) | SMALL_DRIFT}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "fast", "seed", "frozen"),
    [
        ("paper", True, 2, [6, 2]),  # grows twice
        ("paper", False, 1, [6]),  # the first score is below θ: nothing is frozen in stage 2
        ("default", True, 0, [6, 2]),
        ("default", False, 0, [6, 2]),
    ],
    ids=lambda value: str(value),
)
def test_three_stages(recipe: str, fast: bool, seed: int, frozen: list[int], double: None) -> None:
    literal = recipe == "paper"
    stages = oracle(literal, seed)
    assert [len(keys) for keys, _ in stages[-1].naive.frozen] == frozen  # it tests what it should
    teaching = Teaching(options(literal) | {"fast": fast}, seed)
    for number, (domain, after) in enumerate(zip(STREAM.domains, stages, strict=True), 1):
        teaching.steps = []
        progress = teaching.learner.learn(domain)
        if number > 1:
            assert progress.begun["drift"]["score"] == pytest.approx(after.drift, rel=1e-6)
        compare_steps(teaching.steps, after.steps)
        compare_state(teaching.method, after.naive)
        for tested, answers in zip(STREAM.domains, after.answers, strict=True):  # a row of R
            assert torch.equal(teaching.learner.evaluate(tested).predictions.classes, answers)


def same(found: Any, expected: Any, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9, msg=lambda m: f"{what}: {m}")


def compare_steps(found: list[Step], expected: list[Step]) -> None:
    assert len(found) == len(expected)
    for index, ((losses, grads), (naive_losses, naive_grads)) in enumerate(
        zip(found, expected, strict=True)
    ):
        same(losses, naive_losses, f"losses of step {index}")
        assert grads.keys() == naive_grads.keys()
        for name, grad in naive_grads.items():
            same(grads[name], grad, f"gradient of {name}, step {index}")


def compare_usage(method: ResidualSodap, naive: Naive) -> None:
    """Entropies H and sets S of the stage's last images, by layer."""
    kept = method.reference.window(method.prompter.pool.size)
    for number, layer in enumerate(method.drift_layers):
        expected = naive.window[layer]
        assert kept.filled == len(expected)
        same(
            torch.from_numpy(kept.past_entropies[number]),
            torch.tensor([h for h, _ in expected]),
            "H",
        )
        sets = [set(used.nonzero()[0].tolist()) for used in kept.past_sets[number]]
        assert sets == [used for _, used in expected]


def compare_state(method: ResidualSodap, naive: Naive) -> None:
    pool, memory = method.prompter.pool, method.prompter.memory
    for name, value in named(method).items():
        same(value, naive.p[name].detach(), name)
    assert pool.frozen_count == sum(len(keys) for keys, _ in naive.frozen)
    if naive.frozen:
        for part, rows in enumerate((pool.keys, pool.values)):
            expected = torch.cat([frozen[part] for frozen in naive.frozen])
            same(rows[0, : pool.frozen_count].detach(), expected, "frozen prompts")
    assert memory is not None
    same({"keys": memory.keys, "values": memory.values}, naive.m, "memory")
    same((method.teacher.weight, method.teacher.bias), naive.teacher, "teacher")
    compare_usage(method, naive)
    statistics: Any = method.replay.stages[0]
    for c, count in naive.n.items():
        assert statistics.count[c] == count
        same(statistics.mean[c], naive.mu[c], "class mean")
        same(statistics.variance[c], naive.Q[c] / (count - 1), "class variance")
