import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sodap.prompting import Prompter, PromptPass, diversity_loss, entmax, segments

WIDTH, DEPTH, HEADS = 24, 3, 4


def build(seed: int = 0, *, awake: bool = True, **options: Any) -> Prompter:
    """A small prompter; ``awake`` ones have a W_up, so that their prompts can be seen."""
    generator = torch.Generator().manual_seed(seed)
    small: dict[str, Any] = {"pool_size": 6, "capacity": 16, "bottleneck": 8, "memory_slots": 3}
    prompter = Prompter(WIDTH, DEPTH, HEADS, **(small | options), generator=generator)
    if awake:
        for layer in range(len(prompter.adapters)):
            nn.init.normal_(prompter.adapter(layer).W_up, std=0.5, generator=generator)
    return prompter


def images(batch: int = 4, seed: int = 1) -> Tensor:
    """Embedded tokens ``[B, 1+S, D]``: patches differ from image to image, CLS does not."""
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(batch, 6, WIDTH, generator=generator)
    cls = torch.randn(1, 1, WIDTH, generator=generator).expand(batch, 1, WIDTH)
    return torch.cat([cls, patches], dim=1)


def backbone(prompter: Prompter, tokens: Tensor) -> tuple[Tensor, PromptPass]:
    """A stand-in for a ViT, whose blocks let CLS see the patches."""
    prompts = prompter.start()
    for layer in range(DEPTH):
        tokens = prompts(layer, tokens)
        tokens = tokens + (tokens * (layer + 1)).tanh().mean(1, keepdim=True)
    return tokens, prompts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_starts_as_the_untouched_backbone(dtype: torch.dtype) -> None:
    prompts = build(awake=False).start()
    tokens = images().to(dtype)
    for layer in range(DEPTH):
        assert torch.equal(prompts(layer, tokens), tokens)


def test_only_the_cls_token_changes() -> None:
    tokens = images()
    before = tokens.clone()
    prompted = build().start()(0, tokens)
    assert torch.equal(tokens, before)
    assert torch.equal(prompted[:, 1:], tokens[:, 1:])
    assert not torch.equal(prompted[:, 0], tokens[:, 0])


@pytest.mark.parametrize("bottleneck", [8, 60])  # W2 W_down multiplied out, and not
def test_is_the_paper_step_by_step(bottleneck: int) -> None:
    prompter = build(bottleneck=bottleneck)
    prompter.expand(4, torch.Generator().manual_seed(5))
    tokens = images()
    prompts = prompter.start()
    second = prompts(1, 2 * prompts(0, tokens) + 1)

    adapter, memory = prompter.adapter(1), prompter.memory
    assert adapter.enhancer is not None
    assert memory is not None
    q = 2 * prompter.start()(0, tokens)[:, 0] + 1
    g = tokens[:, 0]
    recall = memory.recall()
    r = recall.retrieved(recall.attend(q))
    c = torch.cat([q, g, r], dim=1)
    hidden = F.layer_norm(c @ adapter.enhancer.W1, (bottleneck,))
    enhanced = q + F.gelu(hidden) @ adapter.enhancer.W2
    torch.testing.assert_close(enhanced, adapter.enhancer(q, g, r))
    z = enhanced @ adapter.W_down
    p_out = torch.zeros(len(q), bottleneck)
    for rows, scale in ((slice(0, 6), 1.0), (slice(6, 10), 0.1)):
        keys, values = prompter.pool.keys[0, rows], prompter.pool.values[0, rows]
        logits = F.cosine_similarity(z[:, None], keys[None], dim=-1)
        p_out = p_out + scale * entmax(logits / 1.5) @ values
    torch.testing.assert_close(second[:, 0], q + p_out @ adapter.W_up)


def test_first_layer_routes_all_images_alike() -> None:
    """With the paper's context; a mean over patches mends it."""
    _, literal = backbone(build(), images())
    _, mended = backbone(build(context="patch_mean"), images())
    first = literal.routings[0].active
    torch.testing.assert_close(first, first[:1].expand_as(first), atol=1e-6, rtol=0)
    assert literal.routings[1].active.std(0).max() > 1e-4
    assert mended.routings[0].active.std(0).max() > 1e-4


def test_patch_mean_leaves_registers_out() -> None:
    prompter, tokens = build(context="patch_mean", prefix_tokens=3), images()
    torch.testing.assert_close(prompter.global_context(tokens), tokens[:, 3:].mean(1))


def test_an_image_does_not_see_its_batch() -> None:
    prompter, tokens = build(), images()
    together, _ = backbone(prompter, tokens)
    alone, _ = backbone(prompter, tokens[2:3])
    torch.testing.assert_close(together[2:3], alone)


def test_usage_and_losses() -> None:
    prompter = build()
    prompter.expand(4)
    _, prompts = backbone(prompter, images())
    usage = prompter.usage(prompts)
    assert usage.shape == (DEPTH, 16)
    torch.testing.assert_close(usage.sum(-1), torch.ones(DEPTH))
    torch.testing.assert_close(usage[:, :6].sum(-1), torch.full((DEPTH,), 0.5))
    active = prompter.pool.active
    expected = diversity_loss(prompter.pool.values[0], usage, active)
    torch.testing.assert_close(prompter.diversity(prompts), expected)
    lengths = prompter.pool.values[0, 6:10].norm(dim=-1)
    torch.testing.assert_close(prompter.norm(), lengths.mean())


@pytest.mark.parametrize("per_layer", ["none", "adapters", "all"])
def test_learning_leaves_frozen_prompts_alone(per_layer: str) -> None:
    prompter = build(per_layer=per_layer)
    prompter.expand(4)
    frozen = prompter.pool.keys[:, :6].clone(), prompter.pool.values[:, :6].clone()
    optimiser = torch.optim.AdamW(prompter.parameters(), lr=0.01, weight_decay=1.0)
    for _ in range(3):
        optimiser.zero_grad()
        tokens, prompts = backbone(prompter, images())
        torch.autograd.backward(
            tokens[:, 0].square().mean() + prompter.diversity(prompts) + prompter.norm()
        )
        assert all(p.grad is not None and p.grad.isfinite().all() for p in prompter.parameters())
        optimiser.step()
        prompter.remember(prompts)
    assert torch.equal(prompter.pool.keys[:, :6], frozen[0])
    assert torch.equal(prompter.pool.values[:, :6], frozen[1])


def test_memory_is_written_from_all_layers_but_the_first() -> None:
    prompter = build()
    memory = prompter.memory
    assert memory is not None
    _, prompts = backbone(prompter, images())
    twin = copy.deepcopy(memory)
    twin.write(prompts.queries[1:], prompts.attentions[1:])
    prompter.remember(prompts)
    assert torch.equal(memory.keys, twin.keys)
    assert torch.equal(memory.values, twin.values)
    assert not any(query.requires_grad for query in prompts.queries + prompts.attentions)


def test_without_query_enhancer() -> None:
    prompter = build(query_enhancer=False)
    assert prompter.memory is None
    assert {p.shape for p in prompter.shared_parameters()} == {(WIDTH, 8), (8, WIDTH)}
    tokens, prompts = backbone(prompter, images())
    prompter.remember(prompts)
    assert tokens.isfinite().all()


def test_parameters_split_into_shared_and_pool() -> None:
    prompter = build(memory_learnable=True)
    shared, pool = prompter.shared_parameters(), list(prompter.pool.parameters())
    assert {id(p) for p in shared + pool} == {id(p) for p in prompter.parameters()}
    assert len(shared) + len(pool) == len(list(prompter.parameters()))
    for parameter in shared:
        parameter.requires_grad_(False)
    assert prompter.trainable_count() == 2 * 6 * 8
    tokens, _ = backbone(prompter, images())
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
    assert Prompter(768, 12, 12, **options).trainable_count() == count


def test_state_restores_the_function() -> None:
    prompter, restored = build(0, merge="rescale"), build(7, merge="rescale")
    prompter.expand(3)
    prompter.expand(2)
    _, prompts = backbone(prompter, images())
    prompter.remember(prompts)
    restored.load_state_dict(prompter.state_dict())
    assert torch.equal(backbone(restored, images())[0], backbone(prompter, images())[0])


def test_full_precision_under_autocast() -> None:
    prompter, tokens = build(), images()
    expected = prompter.start()(0, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        prompts = prompter.start()
        torch.testing.assert_close(prompts(0, tokens), expected)
        half = prompter.start()(0, tokens.bfloat16())
        loss = prompter.diversity(prompts) + prompter.norm()
    assert prompts.routings[0].active.dtype == torch.float32
    assert loss.dtype == torch.float32
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("merge", ["paper", "rescale"])
def test_one_compiled_graph_serves_all_stages(merge: str) -> None:
    prompter, tokens = build(merge=merge), images()

    def step(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        prompts = prompter.start()
        for layer in range(2):
            tokens = prompts(layer, tokens)
        return tokens, prompter.usage(prompts), prompter.diversity(prompts)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.autograd.backward(compiled(tokens)[0].sum())
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            prompter.expand(3)
            torch.testing.assert_close(compiled(tokens), step(tokens))
            prompter.zero_grad()
            torch.autograd.backward(compiled(tokens)[0].square().sum())
            grads = [p.grad for p in prompter.parameters()]
            prompter.zero_grad()
            torch.autograd.backward(step(tokens)[0].square().sum())
            expected_grads = [p.grad for p in prompter.parameters()]
            torch.testing.assert_close(grads, expected_grads, atol=1e-5, rtol=1e-4)


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("combination", ["residual", "joint"])
def test_the_partition_follows_the_pool(combination: str, device: str) -> None:
    prompter = build(combination=combination).to(device)

    def is_true() -> bool:
        fresh = prompter.router.partition(prompter.pool.sets).tensors()
        found = prompter.partition().tensors()
        return all(torch.equal(old, new) for old, new in zip(found, fresh, strict=True))

    at_first = copy.deepcopy(prompter.state_dict())
    with torch.inference_mode():
        first = prompter.partition()
    assert is_true()
    assert not first.active.is_inference(), "a training step keeps it for its way back"
    assert all(new is old for new, old in zip(prompter.partition(), first, strict=True))
    before, kept = first.active.clone(), first.copy()
    prompter.expand(3)
    # A recorded pass reads it where it was; without a GPU there is none.
    assert torch.equal(first.active, before) == (device == "cpu")
    assert torch.equal(kept.active, before)
    assert is_true()
    with torch.no_grad():
        prompter.pool.generation[-1] = prompter.pool.generation.max()
    assert is_true()
    prompter.load_state_dict(at_first)
    assert is_true()
    assert torch.equal(prompter.partition().active, before)
    twin = copy.deepcopy(prompter)
    twin.expand(2)
    assert is_true()
    assert torch.equal(prompter.partition().active, before)


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operations of a step, each with the shapes that it makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[str, list[torch.Size]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.done.append((str(func), [t.shape for t in tree_leaves(made) if isinstance(t, Tensor)]))
        return made


@pytest.mark.parametrize("selection", ["entmax", "softmax"])
@pytest.mark.parametrize("merge", ["paper", "rescale"])
def test_a_step_is_the_same_work_at_every_stage(
    merge: str, selection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "FEW", -1)  # as on a GPU, which nobody asks how many there are
    prompter = build(merge=merge, selection=selection)
    prompter.partition()  # made here, and by `expand`
    steps = []
    for _ in range(4):
        with Work() as work:
            tokens, prompts = backbone(prompter, images())
            loss = tokens[:, 0].square().mean() + prompter.diversity(prompts) + prompter.norm()
            torch.autograd.backward(loss)
        prompter.zero_grad()
        prompter.expand(2)
        steps.append(work.done)
    assert steps[0] == steps[1] == steps[2] == steps[3]
    assert not any("_local_scalar_dense" in name for name, _ in steps[0])  # no wait for a number


def test_layers_come_in_order() -> None:
    prompts = build().start()
    prompts(0, images())
    with pytest.raises(ValueError, match="next"):
        prompts(0, images())


@pytest.mark.parametrize("name", ["context", "selection", "combination", "merge", "per_layer"])
def test_refuses_unknown_choices(name: str) -> None:
    options: dict[str, Any] = {name: "other"}
    with pytest.raises(ValueError, match=name):
        Prompter(WIDTH, DEPTH, HEADS, **options)


def test_refuses_to_rescale_a_joint_routing() -> None:
    with pytest.raises(ValueError, match="joint"):
        build(merge="rescale", combination="joint")
