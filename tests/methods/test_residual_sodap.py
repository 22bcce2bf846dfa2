"""The paper's method: what is frozen, what is switched, what is kept.

Losses, gradients and state of whole stages are compared with a naive program in
`tests/test_naive_residual_sodap.py`.
"""

from __future__ import annotations

import copy
import math
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sodap.execution import GraphedCallable, Runtime
from sodap.learning import Learner, StageProgress, Training
from sodap.methods import Observations
from sodap.methods.residual_sodap import ResidualSodap
from sodap.preserving import distillation_loss
from sodap.probing import probe
from sodap.prompting import Intervention
from sodap.runs import read_recipe
from tests.conftest import NO_IMAGES, TINY_VIT, make_batch, make_stream

TRAINING = Training(epochs=2, patience=2, batch_size=16, lr=0.01, weight_decay=0.5)
THREE = make_stream(domains=3)
SMALL = {"bottleneck": 32, "pool_size": 12, "capacity": 64, "drift_batch": 8}
DRIFT = {"min_growth": 3, "max_growth": 20}


def new(training: Training = TRAINING, **options: Any) -> Learner:
    options = SMALL | {"drift": DRIFT} | options
    return Learner(THREE.classes, training=training, options=options, device="cpu", **TINY_VIT)


def taught(
    stages: int, training: Training = TRAINING, **options: Any
) -> tuple[Learner, list[StageProgress]]:
    """A learner after some stages, which may be taught on, and how they went."""
    learner = new(training, **options)
    return learner, [learner.learn(domain) for domain in THREE.domains[:stages]]


@cache
def _default(stages: int) -> tuple[Learner, list[StageProgress]]:
    if stages == 0:
        return new(), []
    learner, earlier = copy.deepcopy(_default(stages - 1))
    return learner, [*earlier, learner.learn(THREE.domains[stages - 1])]


def default(stages: int) -> tuple[Learner, list[StageProgress]]:
    """The same with default options: learned once, and copied."""
    return copy.deepcopy(_default(stages))


def sodap_of(learner: Learner) -> ResidualSodap:
    assert isinstance(learner.method, ResidualSodap)
    return learner.method


def prepared(method: ResidualSodap, domain: int = 0) -> Tensor:
    return method.backbone.prepare(THREE.domains[domain].test.images)


def shared_state(method: ResidualSodap) -> dict[str, Tensor]:
    """State of the prompter without its pool."""
    state = method.prompter.state_dict().items()
    return {key: value.clone() for key, value in state if not key.startswith("pool.")}


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[key], two[key]) for key in one)


# ------------------------------------------------------------------ what trains, what is frozen


def test_frozen_parts_are_bit_identical() -> None:
    learner, _ = default(2)
    method = sodap_of(learner)
    pool = method.prompter.pool
    size = pool.size
    keys, values = pool.keys[:, :size].clone(), pool.values[:, : pool.frozen_count].clone()
    shared, backbone = shared_state(method), method.backbone.digest()
    frozen = pool.frozen_count

    learner.learn(THREE.domains[2])

    assert pool.frozen_count == size  # what was active has been frozen
    assert torch.equal(pool.keys[:, :size], keys)
    assert torch.equal(pool.values[:, :frozen], values)
    assert equal(shared, shared_state(method))
    assert method.backbone.digest() == backbone


def test_shared_parts_train_in_the_first_stage() -> None:
    before, after = (shared_state(sodap_of(default(stages)[0])) for stages in (0, 1))
    unmoved = [key for key in after if torch.equal(after[key], before[key])]
    assert not unmoved


@pytest.mark.parametrize("reading", ["trainable", "low_lr"])
def test_other_readings_train_the_shared_parts_on(reading: str) -> None:
    learner, _ = taught(1, shared_after_stage1=reading, shared_lr=0.25)
    method = sodap_of(learner)
    before = shared_state(method)
    learner.learn(THREE.domains[1])
    after = shared_state(method)
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert moved == {key for key in after if key not in ("memory.keys", "memory.values")}
    rates = {group["lr"] for group in method.parameter_groups(1.0, 0.1)}
    assert rates == ({1.0} if reading == "trainable" else {0.25, 1.0})


def test_prompts_and_loss_weights_never_decay() -> None:
    method = sodap_of(default(2)[0])
    groups = method.parameter_groups(1.0, 0.1)
    decayed = [id(p) for group in groups if group["weight_decay"] for p in group["params"]]
    assert decayed == [id(method.head.weight)]
    trained = [id(p) for group in groups for p in group["params"]]
    assert len(set(trained)) == len(trained)
    assert set(trained) == {id(p) for p in method.parameters() if p.requires_grad}


@pytest.mark.parametrize(("choice", "moves"), [("stage1", False), ("always", True)])
def test_the_memory_is_written_when_the_option_says(choice: str, moves: bool) -> None:
    learner, _ = taught(1, memory_write=choice)
    before = shared_state(sodap_of(learner))
    learner.learn(THREE.domains[1])
    after = shared_state(sodap_of(learner))
    for name in ("memory.keys", "memory.values"):
        assert torch.equal(before[name], after[name]) != moves


# ------------------------------------------------------------------ losses


def test_losses_and_weights_of_each_stage() -> None:
    _, (first, second, third) = default(3)
    for row in first.history:
        assert [*row["losses"]] == ["ce", "div"]
        assert row["weights"] == {}
    names = ["ce", "div", "norm", "real", "pseudo"]
    for stage in (second, third):
        for row in stage.history:
            assert [*row["losses"]] == [*row["weights"]] == names
        # The student starts as its teacher, so both distillation losses start at zero and grow.
        for name in ("real", "pseudo"):
            losses = stage.trace.losses[name]
            assert losses[0] == pytest.approx(0, abs=1e-6)
            assert losses[1:].min() > 0
        # Each weight starts at 1 and moves by about the learning rate a step.
        for name in names:
            weights = stage.trace.weights[name]
            assert weights[0] == pytest.approx(1, abs=0.03)
            assert weights[-1] != weights[0]
    assert second.trace.losses["norm"].min() > 0


def test_without_frozen_prompts_there_is_no_norm_loss() -> None:
    _, (_, second) = taught(2, drift={"threshold": 1e9})
    assert not second.trace.losses["norm"].any()
    _, (first, second) = taught(2, drift={"threshold": 1e9}, l_norm_base=True)
    assert "norm" not in first.trace.losses
    assert second.trace.losses["norm"].min() > 0


def test_loss_weights_are_bounded_after_each_step() -> None:
    method = sodap_of(default(1)[0])
    method.begin_stage(2, Observations([(prepared(method), THREE.domains[0].test.labels)]))
    split = THREE.domains[1].train
    method.losses(make_batch(method, method.backbone.prepare(split.images), split.labels))
    with torch.no_grad():
        method.balance.log_variance.copy_(torch.tensor([-9.0, 9.0, 0.0, -3.5, 6.5]))
    method.after_step()
    assert method.balance.log_variance.tolist() == [-3.0, 6.0, 0.0, -3.0, 6.0]


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
    options: dict[str, Any] = {switch: False}
    learner, (_, second) = taught(2, **options)
    method = sodap_of(learner)
    assert set(second.history[-1]["losses"]) == SWITCHES[switch]
    assert set(second.history[-1]["weights"]) == (SWITCHES[switch] if switch != "uw" else set())
    assert (method.prompter.memory is None) == (switch == "query_enhancer")
    assert (
        ("drift" in second.begun) == (method.prompter.pool.frozen_count > 0) == (switch != "pudd")
    )
    sets = 1 if switch in ("sodap", "pudd") else 2
    for routing in method.routing(prepared(method)):
        torch.testing.assert_close(routing.weights.sum(-1), torch.full((12,), float(sets)))


@pytest.mark.parametrize("loss", ["real", "pseudo"])
def test_distillation_pulls_the_student_only(loss: str) -> None:
    method = sodap_of(default(2)[0]).train()
    with torch.no_grad():
        method.head.weight.add_(0.1 * torch.randn_like(method.head.weight))
    split = THREE.domains[1].train
    images = method.backbone.prepare(split.images)
    value = method.losses(make_batch(method, images, split.labels))[loss]
    (gradient,) = torch.autograd.grad(value, [method.head.weight], retain_graph=True)
    assert gradient.abs().max() > 0
    assert not method.teacher.weight.requires_grad
    # Real features pass the gradient on to the prompts, sampled ones have none to pass on.
    prompts = method.prompter.pool.trained_values
    reaches_prompts = torch.autograd.grad(value, [prompts], allow_unused=True)[0] is not None
    assert reaches_prompts == (loss == "real")
    # A step against the gradient brings the student nearer to the teacher.
    with torch.no_grad():
        method.head.weight.sub_(0.05 * gradient)
    assert method.losses(make_batch(method, images, split.labels))[loss] < value


def test_the_number_of_pseudo_samples() -> None:
    method = sodap_of(default(2)[0]).train()
    split = THREE.domains[1].train
    batch = make_batch(method, method.backbone.prepare(split.images), split.labels)
    with torch.no_grad():
        method.head.weight.add_(0.1 * torch.randn_like(method.head.weight))
    for option, count in ((0, len(split)), (5, 5)):
        method.config = method.config.model_copy(update={"pseudo_samples": option})
        batch.generator.manual_seed(3)
        found = method.losses(batch)["pseudo"]
        sampled, _ = method.replay.sample(count, torch.Generator().manual_seed(3))
        expected = distillation_loss(method.head(sampled), method.teacher(sampled), 2.0)
        torch.testing.assert_close(found, expected)


# ------------------------------------------------------------------ readings


@pytest.mark.parametrize(
    "options",
    [
        {"context": "cls"},
        {"per_layer": "adapters"},
        {"per_layer": "all"},
        {"merge": "paper"},
        {"stats": "per_stage"},
        {"memory_write": "learned"},
        {"temperature": 0.3},
        {"alpha": 2.0},
        {"alpha": 1.3},
        {"feature_norm": False},
        {"capacity": None, "memory_norm": False, "drift_sets": "joined"},
        {"drift_prefill": False},
        {"drift_batch": 0},
        {"selection": "softmax"},
        {"combination": "joint"},
        {"backprop": "cls_row"},
        {"fast": False},
        {"memory_assignment": "nearest", "key_start": "clusters"},
        {"queries": "standardised", "combination": "competing"},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)
def test_every_reading_learns_and_is_restored(options: dict[str, Any]) -> None:
    lr = 1e-2 if options.get("feature_norm", True) else 3e-2  # features before the norm are small
    training = Training(epochs=16, patience=16, batch_size=24, lr=lr)
    learner = new(training, **options)
    first = learner.learn(THREE.domains[0])
    losses = first.trace.losses["ce"]
    assert losses[-1] < 0.5 * losses[0]
    assert learner.evaluate(THREE.domains[0]).accuracy > 0.8
    learner.learn(THREE.domains[1])
    assert learner.evaluate(THREE.domains[1]).accuracy > 0.8
    restored = new(training, **options)
    restored.restore(learner.method.state(), 2, 2)
    images = THREE.domains[0].test.images
    assert torch.equal(
        restored.predict(images).probabilities, learner.predict(images).probabilities
    )


SELECTIVE = read_recipe("selective")[1]["options"]


def test_the_parts_of_the_selective_reading_are_alive() -> None:
    """Routing depends on the image, slots differ, and logits need the parts that are there."""
    learner, stages = taught(3, training=Training(epochs=8, batch_size=16, lr=0.01), **SELECTIVE)
    result = probe(learner, {domain.name: domain.test for domain in THREE.domains})
    assert result is not None
    assert result.variety.images is not None
    assert result.variety.images > 0.05
    assert result.support < 0.75 * result.prompts
    assert result.memory is not None
    for slots in (result.memory.keys, result.memory.values):
        assert slots is not None
        assert slots.mean < 0.9
    method = sodap_of(learner).eval()
    images = method.backbone.prepare(THREE.domains[-1].test.images)
    whole = method.inspect(images).logits
    for part in (Intervention(zero="active"), Intervention(one_slot=True)):
        change = (method.inspect(images, part).logits - whole).norm() / whole.norm()
        assert change > 1e-3
    # The statistics and clusters of the first domain stay as they are.
    assert method.prompter.standardiser is not None
    first, _ = taught(1, training=Training(epochs=8, batch_size=16, lr=0.01), **SELECTIVE)
    earlier = sodap_of(first).prompter.standardiser
    assert earlier is not None
    assert equal(method.prompter.standardiser.state_dict(), earlier.state_dict())
    assert stages[1].begun["drift"]["added"] >= 3
    assert any("deviation" in asset.name for asset in learner.stored())


def test_what_routes_learns_at_a_rate_of_its_own() -> None:
    method = sodap_of(new(router_lr=0.1))
    slow = {name for name, _ in method.named_parameters() if method.lr_factor(name) == 0.1}
    assert {"prompter.pool.trained_keys", "prompter.adapters.0.W_down"} < slow
    assert all(
        method.lr_factor(name) == 1.0 for name in ("head.weight", "prompter.adapters.0.W_up")
    )
    assert "prompter.pool.trained_values" not in slow


def test_models_of_the_first_versions_are_restored() -> None:
    learner, _ = default(2)
    state = learner.method.state()
    old = {key.replace("replay.", "memory.", 1): value for key, value in state.items()}
    assert old.keys() != state.keys()
    restored = new()
    restored.restore(old, 2, 2)
    assert equal(restored.method.state(), state)


def test_features_before_and_after_the_last_norm() -> None:
    after, before = (sodap_of(new(feature_norm=norm)).eval() for norm in (True, False))
    images = prepared(after)
    torch.testing.assert_close(
        after.features(images)[0], after.backbone.norm(before.features(images)[0])
    )


@pytest.mark.parametrize(("context", "constant"), [("cls", True), ("patch_mean", False)])
def test_layer_0_routes_all_images_the_same_in_the_literal_reading(
    context: str, constant: bool
) -> None:
    method = sodap_of(taught(1, context=context)[0])
    first, *_ = method.routing(prepared(method))
    assert torch.equal(first.active, first.active[:1].expand_as(first.active)) == constant
    assert method.drift_layers == range(int(constant), method.backbone.depth)


def test_routing_weights_are_distributions() -> None:
    method = sodap_of(default(3)[0])
    images = prepared(method)
    for routing in method.routing(images):
        assert routing.weights.shape == (len(images), method.prompter.pool.size)
        for weights in (routing.active, routing.joined):
            torch.testing.assert_close(weights.sum(-1), torch.ones(len(images)))
        # The prompts of two stages are frozen, and each keeps a distribution of its own.
        torch.testing.assert_close(routing.frozen.sum(-1), 2 * torch.ones(len(images)))


def test_along_the_cls_row_the_losses_are_the_same_and_the_gradients_similar() -> None:
    split = THREE.domains[1].train
    found = []
    for backprop in ("full", "cls_row"):
        method = sodap_of(new(backprop=backprop)).train()
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
            similarity = torch.nn.functional.cosine_similarity(
                full[name].flatten(), row[name].flatten(), 0
            )
            assert similarity > 0.8, name


# ------------------------------------------------------------------ drift and the pool


def test_drift_is_measured_and_the_pool_grows() -> None:
    learner, stages = default(3)
    sizes = [12]
    for stage in stages[1:]:
        drift = stage.begun["drift"]
        assert drift["score"] == pytest.approx(sum(map(sum, drift["scores"])) / (3 * 6), abs=1e-4)
        active = stages[len(sizes) - 1].ended["pool"]["active"]
        wanted = min(max(math.floor(active * drift["score"] / 5), 3), 20)
        assert drift["added"] == wanted == stage.ended["pool"]["active"]
        sizes.append(sizes[-1] + wanted)
    assert sodap_of(learner).pool() == {
        "frozen": sizes[-2],
        "active": sizes[-1] - sizes[-2],
        "unused": 64 - sizes[-1],
    }


def test_no_expansion_below_the_threshold() -> None:
    learner, (_, second) = taught(2, drift={"threshold": 1e9})
    assert second.begun["drift"]["added"] == 0
    assert sodap_of(learner).pool() == {"frozen": 0, "active": 12, "unused": 52}


def test_a_full_pool_stays_as_it_is() -> None:
    learner, stages = taught(3, capacity=20, drift={"min_growth": 8, "max_growth": 8})
    assert [stage.begun["drift"]["added"] for stage in stages[1:]] == [8, 0]
    assert sodap_of(learner).pool() == {"frozen": 12, "active": 8, "unused": 0}


def test_drift_after_a_save_needs_no_old_image() -> None:
    learner, _ = taught(1, drift={"min_entries": 2})
    restored = new(drift={"min_entries": 2})
    restored.restore(copy.deepcopy(learner.method.state()), 1, 1)
    one, two = (each.learn(THREE.domains[1]).begun["drift"] for each in (learner, restored))
    assert one == two
    assert one["null_band"] is not None


def test_a_new_domain_is_compared_with_the_old_one() -> None:
    scores = {}
    for prefill in (True, False):
        _, (_, second) = taught(2, drift={"min_entries": 2}, drift_prefill=prefill)
        scores[prefill] = second.begun["drift"]["scores"]
    assert scores[True][0] != scores[False][0]
    assert scores[False][0] == [0.0] * 6  # nothing to compare with


@pytest.mark.parametrize("batch", [5, 24])
def test_usage_vectors_do_not_depend_on_the_batch_size(batch: int) -> None:
    learner = new(TRAINING.model_copy(update={"batch_size": batch}))
    learner.learn(THREE.domains[0])
    drift = learner.learn(THREE.domains[1]).begun["drift"]
    assert len(drift["scores"]) == 24 // 8


# ------------------------------------------------------------------ what is kept


@pytest.mark.parametrize(("keep", "slots"), [("merged", 1), ("per_stage", 3)])
def test_statistics_count_every_training_image_once(keep: str, slots: int) -> None:
    learner = default(3)[0] if keep == "merged" else taught(3, stats=keep)[0]
    statistics: list[Any] = list(sodap_of(learner).replay.stages)
    assert len(statistics) == slots
    counts = torch.stack([each.count for each in statistics]).sum(0)
    assert torch.equal(counts, torch.full((3,), 24.0, dtype=torch.float64))


def test_the_teacher_is_the_head_of_the_stage_before() -> None:
    learner, _ = default(1)
    method = sodap_of(learner)
    teacher = method.teacher.weight.clone()
    assert torch.equal(teacher, method.head.weight)
    during: list[Tensor] = []
    learner.learn(THREE.domains[1], on_epoch=lambda _: during.append(method.teacher.weight.clone()))
    assert all(torch.equal(each, teacher) for each in during)
    assert torch.equal(method.teacher.weight, method.head.weight)
    assert not torch.equal(method.teacher.weight, teacher)


def test_what_is_stored_does_not_grow_with_the_stages() -> None:
    stored = [
        {asset.name: asset.bytes for asset in default(stages)[0].stored()} for stages in (1, 2, 3)
    ]
    assert all(one == two for one, two in pairwise(stored))
    assert not any(asset.images for asset in default(3)[0].stored())


# ------------------------------------------------------------------ graphs and padding


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch inspects its own tensors
@pytest.mark.parametrize("options", [{}, {"backprop": "cls_row"}, {"fast": False}], ids=str)
def test_captured_and_compiled_steps_are_the_eager_ones(options: dict[str, Any]) -> None:
    stream = make_stream(domains=2, count=100)  # six full batches and a rest
    found = []
    for changes in ({"cuda_graphs": False}, {"cuda_graphs": True}, {"compile": True}):
        learner = Learner(
            stream.classes,
            training=TRAINING.model_copy(update={"lr": 3e-3, **changes}),
            options={"bottleneck": 32, "pool_size": 12, "capacity": 64, **options},
            device="cuda",
            precision="fp32",
            **TINY_VIT,
        )
        for domain in stream.domains:
            learner.learn(domain)
        found.append(learner.predict(stream.domains[0].test.images).probabilities)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=2e-2)


def test_padded_passes_keep_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured pass pads its last batch; statistics, drift and growth stay the same."""
    plain, stages = default(3)
    monkeypatch.setattr(Runtime, "graphs", lambda *_: True)
    monkeypatch.setattr(GraphedCallable, "active", property(lambda _: True))
    padded, others = taught(3)
    for one, other in zip(stages, others, strict=True):
        assert other.ended["pool"] == one.ended["pool"]
        entropy = one.ended["entropy_per_layer"]
        assert other.ended["entropy_per_layer"] == pytest.approx(entropy, rel=1e-6)
    for one, other in zip(stages[1:], others[1:], strict=True):
        drift = one.begun["drift"]
        assert other.begun["drift"]["added"] == drift["added"]
        assert other.begun["drift"]["score"] == pytest.approx(drift["score"], rel=1e-3)
    for name, value in plain.method.state().items():
        torch.testing.assert_close(padded.method.state()[name], value, atol=1e-5, rtol=1e-4)
