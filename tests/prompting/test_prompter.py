"""The prompter as a whole, in its plain and in its fast form."""

import copy
from typing import Any

import pytest
import torch
from tests.prompting.prompters import DEPTH, HEADS, WIDTH, Starts, build, images, run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sodap.prompting import Prompter, PromptingOptions, diversity_loss, entmax
from sodap.prompting.fast import FastPrompter, segments


def plain(prompter: Prompter) -> Starts:
    return prompter


forms = pytest.mark.parametrize("form", [plain, FastPrompter])


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_starts_as_the_untouched_backbone(dtype: torch.dtype, form: Any) -> None:
    prompter = build()
    nn.init.zeros_(prompter.adapter(0).W_up)
    prompts, tokens = form(prompter).start(), images().to(dtype)
    for layer in range(DEPTH):
        assert torch.equal(prompts(layer, tokens), tokens)


def test_w_up_starts_at_zero() -> None:
    options = PromptingOptions(pool_size=4, bottleneck=8)
    prompter = Prompter(options, width=WIDTH, depth=DEPTH, heads=HEADS)
    assert not prompter.adapter(0).W_up.any()


@forms
def test_only_the_cls_token_changes(form: Any) -> None:
    tokens = images()
    before = tokens.clone()
    prompted = form(build()).start()(0, tokens)
    assert torch.equal(tokens, before)
    assert torch.equal(prompted[:, 1:], tokens[:, 1:])
    assert not torch.equal(prompted[:, 0], tokens[:, 0])


@forms
@pytest.mark.parametrize("bottleneck", [8, 60])
def test_equations_1_to_7(bottleneck: int, form: Any) -> None:
    """The second layer of a second stage, with torch's own attention and the public functions."""
    prompter = build(bottleneck=bottleneck)
    prompter.pool.expand(4, torch.Generator().manual_seed(5))
    tokens = images()
    prompts = form(prompter).start()
    q = 2 * prompts(0, tokens)[:, 0] + 1
    found = prompts.cls(1, q.unsqueeze(1))

    adapter, memory, g = prompter.adapter(1), prompter.memory, tokens[:, 0]
    assert adapter.enhancer is not None
    assert memory is not None
    attention = nn.MultiheadAttention(WIDTH, HEADS)
    with torch.no_grad():
        projections = (memory.to_query, memory.to_key, memory.to_value)
        attention.in_proj_weight.copy_(torch.cat([each.weight for each in projections]))
        attention.in_proj_bias.copy_(torch.cat([each.bias for each in projections]))
        attention.out_proj.load_state_dict(memory.to_output.state_dict())
    r, _ = attention(F.layer_norm(q, (WIDTH,)), memory.keys, memory.values)
    hidden = F.layer_norm(torch.cat([q, g, r], dim=1) @ adapter.enhancer.W1, (bottleneck,))
    z = (q + F.gelu(hidden) @ adapter.enhancer.W2) @ adapter.W_down
    p_out = torch.zeros(len(q), bottleneck)
    for rows, scale in ((slice(0, 6), 1.0), (slice(6, 10), 0.1)):
        keys, values = prompter.pool.keys[0, rows], prompter.pool.values[0, rows]
        logits = F.cosine_similarity(z[:, None], keys[None], dim=-1)
        p_out = p_out + scale * entmax(logits, temperature=1.5) @ values
    torch.testing.assert_close(found, q + p_out @ adapter.W_up)


def test_the_first_layer_routes_all_images_the_same() -> None:
    """With the paper's context; with a mean over patches it does not."""
    _, literal = run(build(), images())
    _, by_patches = run(build(context="patch_mean"), images())
    first = literal.routings[0].active
    torch.testing.assert_close(first, first[:1].expand_as(first), atol=1e-6, rtol=0)
    assert literal.routings[1].active.std(0).max() > 1e-4
    assert by_patches.routings[0].active.std(0).max() > 1e-4


def test_patch_mean_leaves_registers_out() -> None:
    prompter, tokens = build(context="patch_mean", prefix_tokens=3), images()
    torch.testing.assert_close(prompter.global_context(tokens), tokens[:, 3:].mean(1))


@forms
def test_an_image_does_not_depend_on_its_batch(form: Any) -> None:
    prompter, tokens = build(), images()
    together, _ = run(form(prompter), tokens)
    alone, _ = run(form(prompter), tokens[2:3])
    torch.testing.assert_close(together[2:3], alone)


@forms
def test_usage_and_losses(form: Any) -> None:
    prompter = build()
    prompter.pool.expand(4)
    _, prompts = run(form(prompter), images())
    usage = prompter.usage(prompts)[:, : prompter.pool.size]
    assert usage.shape == (DEPTH, 10)
    torch.testing.assert_close(usage.sum(-1), torch.ones(DEPTH))
    torch.testing.assert_close(usage[:, :6].sum(-1), torch.full((DEPTH,), 0.5))
    values, active = prompter.pool.values[0, :10], prompter.pool.active[:10]
    expected = diversity_loss(values, usage, active)
    torch.testing.assert_close(prompter.diversity(prompts), expected)
    lengths = prompter.pool.values[0, 6:10].norm(dim=-1)
    torch.testing.assert_close(prompter.norm(), lengths.mean())


@forms
@pytest.mark.parametrize("per_layer", ["none", "adapters", "all"])
def test_training_leaves_frozen_prompts_as_they_are(per_layer: str, form: Any) -> None:
    prompter = build(per_layer=per_layer)
    prompter.pool.expand(4)
    frozen = prompter.pool.keys[:, :6].clone(), prompter.pool.values[:, :6].clone()
    optimizer = torch.optim.AdamW(prompter.parameters(), lr=0.01, weight_decay=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        tokens, prompts = run(form(prompter), images())
        torch.autograd.backward(
            tokens[:, 0].square().mean() + prompter.diversity(prompts) + prompter.norm()
        )
        assert all(p.grad is not None and p.grad.isfinite().all() for p in prompter.parameters())
        optimizer.step()
        prompter.remember(prompts, prompts.queries[-1])
    assert torch.equal(prompter.pool.keys[:, :6], frozen[0])
    assert torch.equal(prompter.pool.values[:, :6], frozen[1])


@forms
def test_memory_is_written_from_all_layers_but_the_first(form: Any) -> None:
    prompter = build()
    memory = prompter.memory
    assert memory is not None
    _, prompts = run(form(prompter), images())
    assert not any(query.requires_grad for query in prompts.queries + prompts.attentions)
    twin = copy.deepcopy(memory)
    twin.write(prompts.queries[1:], prompts.attentions[1:])
    prompter.remember(prompts, prompts.queries[-1])
    assert torch.equal(memory.keys, twin.keys)
    assert torch.equal(memory.values, twin.values)


@forms
def test_without_query_enhancer(form: Any) -> None:
    prompter = build(query_enhancer=False)
    assert prompter.memory is None
    assert {p.shape for p in prompter.shared_parameters()} == {(WIDTH, 8), (8, WIDTH)}
    tokens, prompts = run(form(prompter), images())
    prompter.remember(prompts, prompts.queries[-1])
    assert tokens.isfinite().all()


def test_parameters_split_into_shared_and_pool() -> None:
    prompter = build(memory_write="learned")
    shared, pool = prompter.shared_parameters(), list(prompter.pool.parameters())
    assert {id(p) for p in shared + pool} == {id(p) for p in prompter.parameters()}
    assert len(shared) + len(pool) == len(list(prompter.parameters()))
    for parameter in shared:
        parameter.requires_grad_(False)
    assert prompter.trainable_count() == 2 * 6 * 8
    tokens, _ = run(prompter, images())
    torch.autograd.backward(tokens.sum())
    assert all(p.grad is None for p in shared)
    assert all(p.grad is not None for p in pool)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 4_784_128),
        ({"query_enhancer": False}, 847_872),
        ({"per_layer": "adapters"}, 30_747_648),
        ({"per_layer": "all"}, 31_423_488),
    ],
)
def test_parameter_counts_of_a_base_vit(options: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        prompter = Prompter(PromptingOptions(**options), width=768, depth=12, heads=12)
    assert prompter.trainable_count() == count


@forms
def test_state_restores_the_function(form: Any) -> None:
    prompter, restored = build(0, merge="rescale"), build(7, merge="rescale")
    prompter.pool.expand(3)
    prompter.pool.expand(2)
    _, prompts = run(form(prompter), images())
    prompter.remember(prompts, prompts.queries[-1])
    restored.load_state_dict(prompter.state_dict())
    assert torch.equal(run(form(restored), images())[0], run(form(prompter), images())[0])


@forms
def test_full_precision_under_autocast(form: Any) -> None:
    prompter, tokens = build(), images()
    expected = form(prompter).start()(0, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        prompts = form(prompter).start()
        torch.testing.assert_close(prompts(0, tokens), expected)
        half = form(prompter).start()(0, tokens.bfloat16())
        loss = prompter.diversity(prompts) + prompter.norm()
    assert prompts.weights[0].dtype == torch.float32
    assert loss.dtype == torch.float32
    assert half.dtype == torch.bfloat16


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of a step, each with the shapes of its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, list[torch.Size]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen.append((str(func), [t.shape for t in tree_leaves(made) if isinstance(t, Tensor)]))
        return made


@pytest.mark.parametrize("selection", ["entmax", "softmax"])
@pytest.mark.parametrize("merge", ["paper", "rescale"])
def test_a_fast_step_costs_the_same_at_every_stage(
    merge: str, selection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "FEW", -1)  # as on a GPU
    prompter = build(merge=merge, selection=selection)
    fast = FastPrompter(prompter)
    steps = []
    for _ in range(4):
        fast.partition()  # built once a stage
        with Operations() as operations:
            tokens, prompts = run(fast, images())
            loss = tokens[:, 0].square().mean() + prompter.diversity(prompts) + prompter.norm()
            torch.autograd.backward(loss)
        prompter.zero_grad()
        prompter.pool.expand(2)
        steps.append(operations.seen)
    assert steps[0] == steps[1] == steps[2] == steps[3]
    assert not any("_local_scalar_dense" in name for name, _ in steps[0])  # no host sync


@forms
def test_layers_come_in_order(form: Any) -> None:
    prompts = form(build()).start()
    prompts(0, images())
    with pytest.raises(ValueError, match="next"):
        prompts(0, images())
