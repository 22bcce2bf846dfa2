"""The fast prompter computes what the plain one does: values and gradients, for every option."""

import gc
import weakref
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prompting.prompters import Starts, build, images, run
from torch import Tensor

from sodap.prompting import Prompter, PromptingOptions
from sodap.prompting.fast import FastPrompter
from sodap.prompting.fast.layers import logits_backward, logits_forward
from sodap.prompting.fast.segments import Segments

STAGES = [1, 2, 5]


def aged(stages: int, **options: Any) -> Prompter:
    """A float64 prompter after some stages, with parameters that are neither 0 nor 1."""
    prompter = build(**options).double()
    draw = torch.Generator().manual_seed(0)
    for _ in range(1, stages):
        prompter.pool.expand(3, draw)
    if prompter.standardiser is not None:
        kinds, width = prompter.standardiser.mean.shape
        drawn = torch.randn(9, kinds, width, generator=draw, dtype=torch.float64)
        prompter.standardiser.fit(1 + 2 * drawn)
    for parameter in prompter.parameters():
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return prompter


def results(prompter: Prompter, form: Starts) -> dict[str, Tensor]:
    """Everything that comes out of a training step, by name: values and gradients."""
    tokens = images(5, dtype=torch.float64).requires_grad_()
    found, prompts = run(form, tokens)
    loss = found.square().mean() + prompter.diversity(prompts) + prompter.norm()
    named = {name: p for name, p in prompter.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, [tokens, *named.values()], allow_unused=True)
    return {
        "output": found.detach(),
        "loss": loss.detach(),
        "weights": torch.stack([each.weights.detach() for each in prompts.routings]),
        "usage": prompter.usage(prompts).detach()[:, : prompter.pool.size],
        "queries": torch.stack(prompts.queries),
        **({"attentions": torch.stack(prompts.attentions)} if prompts.attentions else {}),
        **{
            name: torch.zeros(0) if grad is None else grad
            for name, grad in zip(["tokens", *named], grads, strict=True)
        },
    }


def assert_same(prompter: Prompter) -> None:
    plain, fast = results(prompter, prompter), results(prompter, FastPrompter(prompter))
    assert plain.keys() == fast.keys()
    assert plain["attentions"].numel() if prompter.memory else "attentions" not in plain
    for name, expected in plain.items():
        torch.testing.assert_close(fast[name], expected, atol=1e-10, rtol=1e-7, msg=name)


def choices() -> list[dict[str, Any]]:
    """One dictionary for every value of every option that is a choice, and some numbers."""
    found: list[dict[str, Any]] = []
    for name, field in PromptingOptions.model_fields.items():
        if get_origin(field.annotation) is Literal:
            found += [{name: value} for value in get_args(field.annotation)]
        elif field.annotation is bool:
            found += [{name: value} for value in (True, False)]
    numbers: list[dict[str, Any]] = [
        {"alpha": 1.3},
        {"alpha": 2.0},
        {"alpha": 3.0},
        {"temperature": 0.2},
        {"residual": 0.7},
        {"bottleneck": 60},  # wide: W2 and W_down are not multiplied out
        {"memory_slots": 1},
        {"capacity": None},
    ]
    return found + numbers


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("options", choices(), ids=str)
def test_every_option_at_every_stage(options: dict[str, Any], stages: int) -> None:
    assert_same(aged(stages, **options))


def combinations() -> st.SearchStrategy[dict[str, Any]]:
    values: dict[str, set[Any]] = {}
    for choice in choices():
        for name, value in choice.items():
            values.setdefault(name, {PromptingOptions.model_fields[name].default}).add(value)
    values["bottleneck"] = {8, 60}
    return st.fixed_dictionaries(
        {name: st.sampled_from(sorted(v, key=str)) for name, v in values.items()}
    )


@settings(max_examples=40)
@given(combinations(), st.sampled_from(STAGES))
def test_combinations_of_options(options: dict[str, Any], stages: int) -> None:
    assert_same(aged(stages, **options))


def test_more_sets_than_are_solved_one_by_one() -> None:
    prompter = aged(7, merge="rescale")
    sets = FastPrompter(prompter).partition().sets
    assert isinstance(sets, Segments)
    assert sets.spans is None
    assert_same(prompter)


def test_parts_that_are_frozen_get_no_gradient() -> None:
    prompter = aged(2)
    for parameter in prompter.shared_parameters():
        parameter.requires_grad_(False)
    prompter.adapter(0).W_up.requires_grad_(True)
    assert_same(prompter)


def test_float32_is_within_its_precision() -> None:
    exact, single = aged(2), aged(2).float()
    expected = results(exact, exact)
    tokens = images(5)
    found, prompts = run(FastPrompter(single), tokens)
    loss = found.square().mean() + single.diversity(prompts) + single.norm()
    named = dict(single.named_parameters())
    largest = max(float(expected[name].abs().max()) for name in named)
    for name, grad in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(
            grad.double(), expected[name], atol=1e-5 * largest, rtol=1e-5, msg=name
        )


def test_the_pool_may_grow_between_passes() -> None:
    prompter = aged(1, merge="rescale")
    fast = FastPrompter(prompter)
    saved = {name: value.clone() for name, value in prompter.state_dict().items()}
    with torch.inference_mode():
        run(fast, images(dtype=torch.float64))  # what it prepares must be usable in training
    for _ in range(3):
        prompter.pool.expand(2)
        plain, quick = results(prompter, prompter), results(prompter, fast)
        torch.testing.assert_close(quick, plain, atol=1e-10, rtol=1e-7)
    prompter.load_state_dict(saved)
    torch.testing.assert_close(results(prompter, fast), results(prompter, prompter))


def test_a_loss_that_reaches_some_layers_only() -> None:
    prompter = aged(2)

    def first_layer_only(form: Starts) -> Tensor:
        _, prompts = run(form, images(dtype=torch.float64))
        loss = prompts.routings[0].weights.square().sum()
        return torch.autograd.grad(loss, [prompter.pool.trained_keys], retain_graph=True)[0]

    torch.testing.assert_close(first_layer_only(FastPrompter(prompter)), first_layer_only(prompter))


def test_backward_in_two_parts() -> None:
    """Layers that the first backward pass went through are not counted again in the second."""
    prompter = aged(2)

    def in_parts(form: Starts) -> Tensor:
        tokens = images(dtype=torch.float64).requires_grad_()
        found, prompts = run(form, tokens)
        torch.autograd.grad(found.square().mean(), [tokens], retain_graph=True)
        loss = prompts.routings[0].weights.square().sum()
        return torch.autograd.grad(loss, [prompter.adapter(0).W_down])[0]

    torch.testing.assert_close(in_parts(FastPrompter(prompter)), in_parts(prompter))


def test_a_second_backward_gives_the_same() -> None:
    prompter = aged(2)
    found, prompts = run(FastPrompter(prompter), images(dtype=torch.float64))
    loss = found.square().mean() + prompter.diversity(prompts)
    parameters = list(prompter.parameters())
    once = torch.autograd.grad(loss, parameters, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(loss, parameters)))


def test_second_derivatives_are_refused() -> None:
    prompter = aged(2)
    found, _ = run(FastPrompter(prompter), images(dtype=torch.float64))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(found.square().mean(), [prompter.pool.trained_keys], create_graph=True)


def test_a_pass_is_freed_without_the_garbage_collector() -> None:
    """Activations in a reference cycle would accumulate on a GPU."""
    prompter = aged(2)
    gc.disable()
    try:
        found, prompts = run(FastPrompter(prompter), images(dtype=torch.float64))
        loss = found.square().mean() + prompter.diversity(prompts)
        loss.backward()  # type: ignore[no-untyped-call]
        left, weights = weakref.ref(prompts), weakref.ref(prompts.weights[1])
        del found, prompts, loss
        assert left() is None
        assert weights() is None
    finally:
        gc.enable()


def test_compiled_layers_agree() -> None:
    prompter = aged(2)
    fast = FastPrompter(prompter)
    fast.logits = (
        torch.compile(logits_forward, fullgraph=True, backend="aot_eager"),
        torch.compile(logits_backward, fullgraph=True, backend="aot_eager"),
    )
    expected = results(prompter, prompter)
    for name, found in results(prompter, fast).items():
        torch.testing.assert_close(found, expected[name], atol=1e-10, rtol=1e-7, msg=name)


@pytest.mark.parametrize("merge", ["paper", "rescale"])
def test_torch_compile_sees_the_plain_form(merge: str) -> None:
    prompter = aged(3, merge=merge)
    fast = FastPrompter(prompter)

    def step(tokens: Tensor) -> tuple[Tensor, Tensor]:
        found, prompts = run(fast, tokens)
        return found, prompter.diversity(prompts)

    tokens = images(dtype=torch.float64)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    grads = []
    for form in (compiled, step):
        found, diversity = form(tokens)
        loss = found.square().mean() + diversity
        grads.append((loss, *torch.autograd.grad(loss, list(prompter.parameters()))))
    torch.testing.assert_close(*grads, atol=1e-10, rtol=1e-7)
