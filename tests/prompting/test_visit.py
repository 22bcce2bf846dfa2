"""A visit written out against the plain form: the same numbers, and the same gradients."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sodap.prompting import Prompter, PromptPass
from sodap.prompting.visit import look, look_back

WIDTH, DEPTH, HEADS = 24, 3, 4


def build(**options: Any) -> Prompter:
    draw = torch.Generator().manual_seed(0)
    small: dict[str, Any] = {"pool_size": 6, "capacity": 16, "bottleneck": 10, "memory_slots": 3}
    prompter = Prompter(WIDTH, DEPTH, HEADS, **(small | options), generator=draw).double()
    for parameter in prompter.parameters():  # away from zeros and ones
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    prompter.expand(4, draw)
    return prompter


def tokens(seed: int = 1, batch: int = 5) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 7, WIDTH, generator=draw, dtype=torch.float64)


def through(prompter: Prompter, seen: Tensor) -> tuple[Tensor, PromptPass]:
    """A stand-in for a ViT, whose blocks let CLS see the patches."""
    prompts = prompter.start()
    for layer in range(DEPTH):
        seen = prompts(layer, seen)
        seen = seen + (seen * (layer + 1)).tanh().mean(1, keepdim=True)
    return seen, prompts


def learn(prompter: Prompter, *, diversity: float = 1.0) -> dict[str, Tensor]:
    """Everything that comes out of a pass, forward and backward, by name."""
    seen = tokens().requires_grad_()
    found, prompts = through(prompter, seen)
    loss = found.square().mean() + diversity * prompter.diversity(prompts)
    named = {name: p for name, p in prompter.named_parameters() if p.requires_grad}
    pulls = torch.autograd.grad(loss, [seen, *named.values()], allow_unused=True)
    return {
        "output": found.detach(),
        "weights": torch.stack([each.weights.detach() for each in prompts.routings]),
        **({"attentions": torch.stack(prompts.attentions)} if prompts.attentions else {}),
        **{
            name: torch.zeros(0) if pull is None else pull
            for name, pull in zip(["tokens", *named], pulls, strict=True)
        },
    }


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Any:
    def prompt(self: PromptPass, layer: int, query: Tensor) -> Any:
        raise AssertionError("a visit was asked for")

    def use() -> None:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        monkeypatch.setattr(PromptPass, "_visits", prompt)

    return use


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bottleneck": 60},  # W2 and W_down are not multiplied out
        {"selection": "softmax"},
        {"alpha": 2.0},
        {"combination": "joint"},
        {"merge": "rescale"},
        {"per_layer": "adapters"},
        {"memory_learnable": True},
        {"context": "patch_mean"},
    ],
    ids=str,
)
def test_agrees_with_the_plain_form(options: dict[str, Any], plainly: Any) -> None:
    prompter = build(**options)
    written_out = learn(prompter)
    plainly()
    plain = learn(prompter)
    assert written_out.keys() == plain.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(written_out[name], expected, atol=1e-10, rtol=1e-8, msg=name)


def test_agrees_when_parts_are_frozen(plainly: Any) -> None:
    prompter = build()
    for parameter in prompter.shared_parameters():
        parameter.requires_grad_(False)
    prompter.adapter(0).W_up.requires_grad_(True)
    written_out = learn(prompter)
    plainly()
    for name, expected in learn(prompter).items():
        torch.testing.assert_close(written_out[name], expected, atol=1e-10, rtol=1e-8, msg=name)


def test_float32_is_within_its_precision(plainly: Any) -> None:
    prompter = build()
    plainly_in_double = build()
    nn.Module.float(prompter)
    found, prompts = through(prompter, tokens().float())
    loss = found.square().mean() + prompter.diversity(prompts)
    single = torch.autograd.grad(loss, list(prompter.parameters()))
    plainly()
    found, prompts = through(plainly_in_double, tokens())
    loss = found.square().mean() + plainly_in_double.diversity(prompts)
    double = torch.autograd.grad(loss, list(plainly_in_double.parameters()))
    largest = max(float(pull.abs().max()) for pull in double)
    for one, two in zip(single, double, strict=True):
        torch.testing.assert_close(one.double(), two, atol=1e-5 * largest, rtol=1e-5)


def test_a_gradient_through_some_layers_only(plainly: Any) -> None:
    """What no loss reaches adds nothing, and what a pass kept does not reach the next."""

    def first_layer_only(prompter: Prompter) -> list[Tensor]:
        _, prompts = through(prompter, tokens())
        loss = prompts.routings[0].weights.square().sum()
        return list(torch.autograd.grad(loss, [prompter.pool.trained_keys], retain_graph=True))

    prompter = build()
    written_out = first_layer_only(prompter)
    plainly()
    torch.testing.assert_close(written_out, first_layer_only(prompter))


def test_a_second_backward_is_the_first() -> None:
    prompter = build()
    found, prompts = through(prompter, tokens())
    loss = found.square().mean() + prompter.diversity(prompts)
    parameters = list(prompter.parameters())
    once = torch.autograd.grad(loss, parameters, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(loss, parameters)))


def test_going_back_in_parts(plainly: Any) -> None:
    """Layers that were passed on the way to something else are not counted again."""

    def in_parts(prompter: Prompter) -> Tensor:
        seen = tokens().requires_grad_()
        found, prompts = through(prompter, seen)
        torch.autograd.grad(found.square().mean(), [seen], retain_graph=True)
        loss = prompts.routings[0].weights.square().sum()
        return torch.autograd.grad(loss, [prompter.adapter(0).W_down])[0]

    prompter = build()
    written_out = in_parts(prompter)
    plainly()
    torch.testing.assert_close(written_out, in_parts(prompter), atol=1e-12, rtol=1e-9)


def test_a_second_derivative_is_refused() -> None:
    prompter = build()
    found, _ = through(prompter, tokens())
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(found.square().mean(), [prompter.pool.trained_keys], create_graph=True)


def test_a_pass_is_forgotten_without_a_collector() -> None:
    """Activations in a reference cycle would pile up on a GPU."""
    prompter = build()
    gc.disable()
    try:
        found, prompts = through(prompter, tokens())
        loss = found.square().mean() + prompter.diversity(prompts)
        loss.backward()  # type: ignore[no-untyped-call]
        left, weights = weakref.ref(prompts), weakref.ref(prompts.routings[1].weights)
        del found, prompts, loss
        assert left() is None
        assert weights() is None
    finally:
        gc.enable()


def test_compiled_looks_agree() -> None:
    plain, compiled = build(), build()
    compiled.looks = (
        torch.compile(look, fullgraph=True, backend="aot_eager"),
        torch.compile(look_back, fullgraph=True, backend="aot_eager"),
    )
    expected = learn(plain)
    for name, found in learn(compiled).items():
        torch.testing.assert_close(found, expected[name], atol=1e-10, rtol=1e-8, msg=name)
