"""The paper's method: what is frozen, what is switched, what is kept."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sodap.execution import GraphedCallable, Runtime
from sodap.learning import Learner, Training
from sodap.methods.residual_sodap import ResidualSodap
from tests.conftest import NO_IMAGES, make_batch, make_stream

TRAINING = Training(epochs=2, patience=2, batch_size=16, lr=0.01, weight_decay=0.5)
THREE = make_stream(domains=3)


def taught(stages: int, **options: Any) -> tuple[Learner, list[Any]]:
    small = {"bottleneck": 32, "pool_size": 12, "capacity": 64, "drift_batch": 8} | options
    learner = Learner(THREE.classes, training=TRAINING, options=small, device="cpu")
    return learner, [learner.learn(domain) for domain in THREE.domains[:stages]]


def sodap_of(learner: Learner) -> ResidualSodap:
    assert isinstance(learner.method, ResidualSodap)
    return learner.method


def shared_state(method: ResidualSodap) -> dict[str, Tensor]:
    """All of the prompter but the rows of its pool."""
    return {
        key: value.clone()
        for key, value in method.prompter.state_dict().items()
        if not key.startswith("pool.")
    }


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[key], two[key]) for key in one)


def test_what_is_frozen_is_bit_identical() -> None:
    learner, _ = taught(2)
    method = sodap_of(learner)
    frozen = method.prompter.pool.frozen
    keys = method.prompter.pool.keys[:, frozen].clone()
    values = method.prompter.pool.values[:, frozen].clone()
    shared, backbone = shared_state(method), method.backbone.digest()

    learner.learn(THREE.domains[2])

    assert torch.equal(method.prompter.pool.keys[:, frozen], keys)
    assert torch.equal(method.prompter.pool.values[:, frozen], values)
    assert equal(shared, shared_state(method))
    assert method.backbone.digest() == backbone
    assert method.prompter.pool.frozen_count > int(frozen.sum())


def test_shared_parts_train_in_the_first_stage() -> None:
    untouched = shared_state(sodap_of(taught(0)[0]))
    learned = shared_state(sodap_of(taught(1)[0]))
    moved = [key for key in learned if not torch.equal(learned[key], untouched[key])]
    assert {"memory.keys", "memory.values"} <= set(moved)
    assert any("W_up" in key for key in moved)


@pytest.mark.parametrize("reading", ["trainable", "low_lr"])
def test_other_readings_let_the_shared_parts_move(reading: str) -> None:
    learner, _ = taught(1, shared_after_stage1=reading)
    before = shared_state(sodap_of(learner))
    learner.learn(THREE.domains[1])
    assert not equal(before, shared_state(sodap_of(learner)))


def test_low_lr_is_low() -> None:
    method = sodap_of(taught(2, shared_after_stage1="low_lr", shared_lr=0.25)[0])
    rates = sorted({group["lr"] for group in method.parameter_groups(1.0, 0.1)})
    assert rates == [0.25, 1.0]


def test_prompts_and_loss_weights_never_decay() -> None:
    method = sodap_of(taught(2)[0])
    for group in method.parameter_groups(1.0, 0.1):
        if group["weight_decay"]:
            assert [id(p) for p in group["params"]] == [id(method.head.weight)]


def test_the_memory_writes_when_it_may() -> None:
    for choice, moves in {"stage1": False, "always": True}.items():
        learner, _ = taught(1, memory_write=choice)
        before = shared_state(sodap_of(learner))
        learner.learn(THREE.domains[1])
        after = shared_state(sodap_of(learner))
        assert torch.equal(before["memory.keys"], after["memory.keys"]) != moves, choice


def test_losses_of_each_stage() -> None:
    _, (first, second) = taught(2)
    assert list(first.history[-1]["losses"]) == ["ce", "div"]
    assert first.history[-1]["weights"] == {}
    names = ["ce", "div", "norm", "real", "pseudo"]
    assert list(second.history[-1]["losses"]) == names
    assert list(second.history[-1]["weights"]) == names
    # The student starts as its teacher: both distillation losses start at zero.
    assert second.history[0]["losses"]["real"] < 0.1


SWITCHES = {
    "query_enhancer": {"ce", "div", "norm", "real", "pseudo"},
    "pudd": {"ce", "div", "real", "pseudo"},
    "sodap": {"ce", "div", "norm", "real", "pseudo"},
    "distill": {"ce", "div", "norm"},
    "pseudo": {"ce", "div", "norm", "real"},
    "l_div": {"ce", "norm", "real", "pseudo"},
    "l_norm": {"ce", "div", "real", "pseudo"},
    "uw": {"ce", "div", "norm", "real", "pseudo"},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_of_the_ablation(switch: str) -> None:
    learner, (_, second) = taught(2, **{switch: False})
    method = sodap_of(learner)
    assert set(second.history[-1]["losses"]) == SWITCHES[switch]
    if switch == "query_enhancer":
        assert method.prompter.memory is None
    if switch == "pudd":
        assert method.pool()["frozen"] == 0
        assert "drift" not in second.begun
    if switch == "sodap":
        assert method.prompter.router.softmax
        assert method.prompter.router.joint
        assert method.pool()["frozen"] > 0
    if switch == "uw":
        assert second.history[-1]["weights"] == {}


@pytest.mark.parametrize(
    "options",
    [
        {"context": "cls"},
        {"per_layer": "adapters"},
        {"per_layer": "all"},
        {"merge": "paper"},
        {"stats": "per_stage"},
        {"memory_write": "learned"},
        {"temperature": 1.0},
        {"alpha": 2.0},
        {"alpha": 1.3},
        {"feature_norm": False},
        {"drift_prefill": False},
        {"drift_batch": 0},
        {"selection": "softmax"},
        {"combination": "joint"},
        {"pseudo_samples": 5},
        {"backprop": "cls_row"},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)
def test_every_reading_learns_three_domains(options: dict[str, Any]) -> None:
    learner, stages = taught(3, **options)
    for stage in stages:
        for row in stage.history:
            assert all(math.isfinite(v) for v in row["losses"].values())
    restored = Learner(
        THREE.classes, training=TRAINING, options=learner.metadata()["options"], device="cpu"
    )
    restored.restore(learner.method.state(), 3, 3)
    images = THREE.domains[0].test.images
    assert torch.equal(
        restored.predict(images).probabilities, learner.predict(images).probabilities
    )


def test_drift_is_measured_and_the_pool_grows() -> None:
    learner, (_, second, third) = taught(3, drift={"min_growth": 3, "max_growth": 20})
    for stage in (second, third):
        drift = stage.begun["drift"]
        assert math.isfinite(drift["score"])
        assert drift["score"] == pytest.approx(sum(map(sum, drift["scores"])) / (3 * 6), abs=1e-4)
        assert 3 <= drift["added"] <= 20
    pool = sodap_of(learner).pool()
    added = second.begun["drift"]["added"] + third.begun["drift"]["added"]
    assert pool["frozen"] + pool["active"] == 12 + added
    assert pool["active"] == third.begun["drift"]["added"]


def test_no_expansion_below_the_threshold() -> None:
    learner, (_, second) = taught(2, drift={"threshold": 1e9})
    assert second.begun["drift"]["added"] == 0
    assert sodap_of(learner).pool() == {"frozen": 0, "active": 12, "unused": 52}


def test_a_full_pool_stays_as_it_is() -> None:
    learner, stages = taught(3, capacity=20, drift={"min_growth": 8, "max_growth": 8})
    assert [stage.begun["drift"]["added"] for stage in stages[1:]] == [8, 0]
    assert sodap_of(learner).pool() == {"frozen": 12, "active": 8, "unused": 0}


def test_the_reference_is_kept_and_used() -> None:
    """The next stage starts from saved numbers: the same drift after a save, without old images."""
    learner, _ = taught(1, drift={"min_entries": 2})
    state = {key: value.clone() for key, value in learner.method.state().items()}
    restored = Learner(
        THREE.classes, training=TRAINING, options=learner.metadata()["options"], device="cpu"
    )
    restored.restore(state, 1, 1)
    one = learner.learn(THREE.domains[1]).begun["drift"]
    two = restored.learn(THREE.domains[1]).begun["drift"]
    assert one == two
    assert one["null_band"] is not None


def test_statistics_count_every_training_image_once() -> None:
    for keep, slots in {"merged": 1, "per_stage": 3}.items():
        method = sodap_of(taught(3, stats=keep)[0])
        assert len(method.replay.stages) == slots
        counts = sum(stage.count for stage in method.replay.stages)  # type: ignore[misc]
        assert torch.equal(counts, torch.full((3,), 24.0, dtype=torch.float64))  # type: ignore[arg-type]


def test_the_teacher_is_the_head_of_the_stage_before() -> None:
    learner, _ = taught(1)
    method = sodap_of(learner)
    teacher = method.teacher.weight.clone()
    assert torch.equal(teacher, method.head.weight)
    learner.learn(THREE.domains[1])
    assert torch.equal(method.teacher.weight, method.head.weight)
    assert not torch.equal(method.teacher.weight, teacher)


def test_the_teacher_stands_still_and_the_student_is_held_to_it() -> None:
    learner, _ = taught(1)
    method = sodap_of(learner)
    teacher = method.teacher.weight.clone()
    seen: list[Tensor] = []
    second = learner.learn(
        THREE.domains[1], on_epoch=lambda _: seen.append(method.teacher.weight.clone())
    )
    assert all(torch.equal(each, teacher) for each in seen)
    for name in ("real", "pseudo"):
        assert second.history[-1]["losses"][name] > 0
    assert any(weight != 1 for weight in second.history[-1]["weights"].values())


@pytest.mark.parametrize("loss", ["real", "pseudo"])
def test_distillation_pulls_the_student_only(loss: str) -> None:
    learner, _ = taught(2)
    method = sodap_of(learner).train()
    with torch.no_grad():
        method.head.weight.add_(0.1 * torch.randn_like(method.head.weight))
    split = THREE.domains[1].train
    images = method.backbone.prepare(split.images)
    value = method.losses(make_batch(method, images, split.labels))[loss]
    (gradient,) = torch.autograd.grad(value, [method.head.weight])
    assert gradient.abs().max() > 0
    assert not method.teacher.weight.requires_grad
    # A step against the gradient brings the student nearer.
    with torch.no_grad():
        method.head.weight.sub_(0.05 * gradient)
    nearer = method.losses(make_batch(method, images, split.labels))[loss]
    assert nearer < value


def test_the_old_domain_is_what_a_new_one_is_compared_with() -> None:
    scores = {}
    for prefill in (True, False):
        _, (_, second) = taught(2, drift={"min_entries": 2}, drift_prefill=prefill)
        scores[prefill] = second.begun["drift"]["scores"]
    assert scores[True][0] != scores[False][0]
    assert scores[False][0] == [0.0] * 6  # nothing came before


@pytest.mark.parametrize("batch", [5, 8, 24])
def test_groups_of_images_do_not_follow_the_batch(batch: int) -> None:
    training = TRAINING.model_copy(update={"batch_size": batch})
    options = {"bottleneck": 16, "pool_size": 8, "capacity": 32, "drift_batch": 8}
    learner = Learner(THREE.classes, training=training, options=options, device="cpu")
    learner.learn(THREE.domains[0])
    drift = learner.learn(THREE.domains[1]).begun["drift"]
    assert len(drift["scores"]) == 24 // 8


def test_without_a_base_nothing_is_held_back() -> None:
    _, (_, second) = taught(2, drift={"threshold": 1e9})
    assert second.history[-1]["losses"]["norm"] == 0


def test_layer_0_routes_all_images_alike_in_the_literal_reading() -> None:
    for context, alike in {"cls": True, "patch_mean": False}.items():
        method = sodap_of(taught(1, context=context)[0])
        images = method.backbone.prepare(THREE.domains[0].test.images)
        first, *_ = method.routing(images)
        assert torch.equal(first.active, first.active[:1].expand_as(first.active)) == alike


def test_routing_weights_are_distributions() -> None:
    method = sodap_of(taught(3)[0])
    images = method.backbone.prepare(THREE.domains[0].test.images)
    for routing in method.routing(images):
        for weights in (routing.active, routing.joined):
            torch.testing.assert_close(weights.sum(-1), torch.ones(len(images)))
        # Two generations are frozen, and each has kept a distribution of its own.
        torch.testing.assert_close(routing.frozen.sum(-1), 2 * torch.ones(len(images)))


def test_along_the_cls_row_the_losses_are_the_same_and_the_gradients_alike() -> None:
    split = THREE.domains[1].train
    found = []
    for backprop in ("full", "cls_row"):
        method = sodap_of(taught(0, backprop=backprop)[0]).train()
        method.begin_stage(1, NO_IMAGES)
        images = method.backbone.prepare(split.images)
        losses = method.losses(make_batch(method, images, split.labels))
        total: Any = method.total(losses)
        total.backward()
        trained = {n: p.grad for n, p in method.named_parameters() if p.grad is not None}
        found.append((losses, trained))
    (losses, full), (same, row) = found
    for name, loss in losses.items():
        assert torch.equal(loss, same[name])
    assert full.keys() == row.keys()
    for name in full:
        if full[name].norm() > 1e-6:
            similar = torch.nn.functional.cosine_similarity(
                full[name].flatten(), row[name].flatten(), 0
            )
            assert similar > 0.8, name


def test_along_the_cls_row_it_learns() -> None:
    learner = Learner(
        THREE.classes,
        training=Training(epochs=12, patience=12, batch_size=16, lr=3e-3),
        options={"bottleneck": 32, "pool_size": 12, "capacity": 64, "backprop": "cls_row"},
        device="cpu",
    )
    history = learner.learn(THREE.domains[0]).history
    assert history[-1]["losses"]["ce"] < 0.5 * history[0]["losses"]["ce"]
    assert learner.evaluate(THREE.domains[0]).accuracy > 0.8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at its own tensors
@pytest.mark.parametrize("backprop", ["full", "cls_row"])
def test_a_recorded_step_is_the_plain_one(backprop: str) -> None:
    """As a CUDA graph and compiled, last batches, too: the same learner in the end, but rounding.

    What it kept of the domains is the same as well, although looks are filled up to full batches.
    """
    stream = make_stream(domains=2, count=100)  # six full batches and a rest
    found = []
    for changes in ({"cuda_graphs": False}, {"cuda_graphs": True}, {"compile": True}):
        learner = Learner(
            stream.classes,
            training=TRAINING.model_copy(update={"lr": 3e-3, **changes}),
            options={"bottleneck": 32, "pool_size": 12, "capacity": 64, "backprop": backprop},
            device="cuda",
            precision="fp32",
        )
        for domain in stream.domains:
            learner.learn(domain)
        found.append(learner.predict(stream.domains[0].test.images).probabilities)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=2e-2)


def test_looks_may_be_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are for a recording, whose batches are all of one size: the same is seen and kept."""
    plain, stages = taught(3)
    monkeypatch.setattr(Runtime, "graphs", lambda *_: True)
    monkeypatch.setattr(GraphedCallable, "active", property(lambda _: True))
    full, said = taught(3)
    for one, other in zip(stages, said, strict=True):
        assert other.ended["pool"] == one.ended["pool"]
        entropy = one.ended["entropy_per_layer"]
        assert other.ended["entropy_per_layer"] == pytest.approx(entropy, rel=1e-6)
    for one, other in zip(stages[1:], said[1:], strict=True):
        drift = one.begun["drift"]
        assert other.begun["drift"]["added"] == drift["added"]
        assert other.begun["drift"]["score"] == pytest.approx(drift["score"], rel=1e-3)
    for name, value in plain.method.state().items():
        torch.testing.assert_close(full.method.state()[name], value, atol=1e-5, rtol=1e-4)
