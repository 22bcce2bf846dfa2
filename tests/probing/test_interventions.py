"""Taking a part away in a pass equals a model that was changed in its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import TINY_VIT, make_stream
from torch import Tensor

from sodap.learning import Learner, Training
from sodap.methods import Method, method_names
from sodap.probing import ProbeResult, probe
from sodap.prompting import Intervention

STREAM = make_stream(2, 3)
SMALL: dict[str, dict[str, Any]] = {
    "moe-adapters": {"experts": 6, "selector_steps": 20},
    "uniprompt": {"pool_size": 20},
    "residual-sodap": {"shared_after_stage1": "trainable", "capacity": 128},
    "dual-prompt": {"general_layers": [0], "expert_layers": [1, 2]},
}


def learned(name: str, **options: Any) -> Learner:
    """A method after two domains, with parts large enough to matter."""
    training = Training(epochs=2, batch_size=12, lr=0.03)
    learner = Learner(
        STREAM.classes,
        method=name,
        options=SMALL.get(name, {}) | options,
        training=training,
        device="cpu",
        **TINY_VIT,
    )
    for domain in STREAM.domains:
        learner.learn(domain)
    return learner


ROUTED = [
    "coda-prompt",
    "dual-prompt",
    "l2p",
    "moe-adapters",
    "os-prompt",
    "os-prompt++",
    "residual-sodap",
    "s-prompts",
    "uniprompt",
]


@pytest.fixture(scope="module", params=ROUTED)
def learner(request: pytest.FixtureRequest) -> Learner:
    return learned(request.param)


def edited(learner: Learner, edit: Callable[[str, Tensor], Tensor]) -> Tensor:
    """Logits of the test images with another state."""
    method = learner.method
    before = {name: tensor.clone() for name, tensor in method.state().items()}
    method.restore({n: edit(n, t.clone()) for n, t in before.items()}, method.stage)
    logits = plain(method)
    method.restore(before, method.stage)
    return logits


@torch.no_grad()
def plain(method: Method) -> Tensor:
    logits: Tensor = method.eval()(prepared(method))
    return logits


def prepared(method: Method) -> Tensor:
    return method.backbone.prepare(STREAM.domains[1].test.images)


def inspected(method: Method, **parts: Any) -> Tensor:
    found = method.eval().inspect(prepared(method), Intervention(**parts))
    assert found is not None
    return found.logits


# Names of the tensors that hold the values of prompts: all of them, and the active ones.
VALUES = {
    "coda-prompt": ("pool.prompts.frozen", "pool.prompts.newest"),
    "dual-prompt": ("pool", "experts"),
    "l2p": ("", "prompts"),
    "moe-adapters": ("", ""),
    "os-prompt": ("pool.prompts.frozen", "pool.prompts.newest"),
    "os-prompt++": ("pool.prompts.frozen", "pool.prompts.newest"),
    "residual-sodap": ("prompter.pool.frozen_values", "prompter.pool.trained_values"),
    "s-prompts": ("", "past_prompts"),
    "uniprompt": ("pool.prompts.frozen", "pool.prompts.newest"),
}


def without(method: str, part: str) -> Callable[[str, Tensor], Tensor]:
    """Set values of prompts to zero in the state."""
    frozen, active = VALUES[method]
    names = (active,) if part == "active" else (frozen, active)

    def edit(name: str, tensor: Tensor) -> Tensor:
        if method == "moe-adapters":
            trained = name.endswith((".up", ".up_bias")) and "frozen" not in name
            zero = trained or (part == "all" and name.endswith(("frozen_up", "frozen_up_bias")))
        else:
            zero = name in names
        if zero and method == "s-prompts" and part == "active":
            tensor[-1] = 0  # the last domain
            return tensor
        return torch.zeros_like(tensor) if zero else tensor

    return edit


def test_a_pass_without_intervention_is_the_models_own(learner: Learner) -> None:
    torch.testing.assert_close(
        inspected(learner.method), plain(learner.method), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("part", ["active", "all"])
def test_prompts_set_to_zero(learner: Learner, part: str) -> None:
    expected = edited(learner, without(learner.method_name, part))
    found = inspected(learner.method, zero=part)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (found - plain(learner.method)).abs().max() > 1e-4


def test_one_routing_for_all_images(learner: Learner) -> None:
    """With the routing of the first image for all, only the first image is as before."""
    method = learner.method
    own = method.eval().inspect(prepared(method))
    assert own is not None
    assert len(own.selections[0].active) == own.selections[0].weights.shape[-1]
    fixed = tuple(selection.weights[0] for selection in own.selections)
    logits = inspected(method, fixed=fixed)
    torch.testing.assert_close(logits[0], own.logits[0], rtol=1e-4, atol=1e-4)
    differs = any((s.weights - s.weights[:1]).abs().max() > 1e-3 for s in own.selections)
    assert not differs or (logits - own.logits).abs().max() > 1e-6
    none = inspected(method, fixed=fixed, layers=frozenset())
    torch.testing.assert_close(none, own.logits)


def test_one_memory_slot_and_the_result_of_a_probe() -> None:
    learner = learned("residual-sodap", memory_momentum=0.5)
    method = learner.method
    slots = ("prompter.memory.keys", "prompter.memory.values")
    # Slots that differ, so that it matters which one is read.
    drawn = {
        name: 3 * torch.randn(9, 64, generator=torch.Generator().manual_seed(i))
        for i, name in enumerate(slots)
    }
    method.load_state_dict(drawn, strict=False)
    expected = edited(
        learner, lambda name, t: t.mean(0, keepdim=True).expand_as(t) if name in slots else t
    )
    found = inspected(method, one_slot=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (found - plain(method)).abs().max() > 1e-5

    result = probe(learner, {d.name: d.test for d in STREAM.domains}, by_layer=True)
    assert result is not None
    assert ProbeResult.model_validate_json(result.model_dump_json()) == result
    depth, images = method.backbone.depth, sum(len(d.test) for d in STREAM.domains)
    assert (len(result.layers), result.images) == (depth, images)
    assert len(result.removals) == 4 * (1 + depth)
    counts = [domain.images for domain in result.domains]
    for each in result.removals:
        changed = [e.changed * n for e, n in zip(each.domains, counts, strict=True)]
        assert sum(changed) / images == pytest.approx(each.effect.changed)
    answers = [inspected(method).argmax(-1), inspected(method, zero="all").argmax(-1)]
    removal = result.removal("all prompts")
    assert removal is not None
    labels = STREAM.domains[1].test.labels
    effect = removal.domains[1]
    assert effect.changed == pytest.approx(float((answers[0] != answers[1]).float().mean()))
    gain = (answers[1] == labels).float().mean() - (answers[0] == labels).float().mean()
    assert effect.accuracy == pytest.approx(float(gain))
    assert result.memory is not None
    assert result.memory.keys is not None
    assert result.memory.keys.mean < 0.3


def test_methods_without_routing_have_no_probe() -> None:
    for name in method_names():
        overridden = any(
            "inspect" in vars(each)
            for each in type(
                Learner(STREAM.classes, method=name, options=SMALL.get(name, {}), **TINY_VIT).method
            ).__mro__
            if each is not Method
        )
        assert overridden == (name in ROUTED), name
    ridge = Learner(STREAM.classes, method="ridge", device="cpu", **TINY_VIT)
    assert probe(ridge, {"one": STREAM.domains[0].val}) is None
