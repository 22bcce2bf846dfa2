import copy
import pickle

import pytest
import torch
from torch import Tensor

from sodap.prompting import PromptingOptions, PromptPool, Router
from sodap.prompting.options import Merge


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def train(pool: PromptPool, steps: int = 5) -> None:
    optimiser = torch.optim.AdamW(pool.parameters(), lr=0.1, weight_decay=5.0)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.autograd.backward(pool.keys.square().sum() + (pool.values - 1).square().sum())
        optimiser.step()


def test_starts_active() -> None:
    pool = PromptPool(16, size=6, capacity=10, generator=seeded(0))
    assert (pool.frozen_count, pool.active_count, pool.unused_count) == (0, 6, 4)
    assert pool.keys.shape == pool.values.shape == (1, 10, 16)
    large = PromptPool(512, size=200, generator=seeded(0))
    assert large.values[:, :200].std().item() == pytest.approx(0.02, rel=0.02)


def test_draws_repeat() -> None:
    first, second = (PromptPool(4, size=3, capacity=8, generator=seeded(3)) for _ in range(2))
    first.expand(2, seeded(4))
    second.expand(2, seeded(4))
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], tensor, atol=0, rtol=0)


@pytest.mark.parametrize("copies", [1, 3])
def test_frozen_rows_never_change(copies: int) -> None:
    pool = PromptPool(8, size=4, capacity=12, copies=copies, generator=seeded(0))
    train(pool)
    for stage in range(2):
        keys, values = pool.keys.detach().clone(), pool.values.detach().clone()
        used = pool.frozen_count + pool.active_count
        pool.expand(3, seeded(stage))
        train(pool)
        assert torch.equal(pool.keys[:, :used], keys[:, :used])
        assert torch.equal(pool.values[:, :used], values[:, :used])
        assert not torch.equal(pool.values[:, used : used + 3], values[:, used : used + 3])
        for parameter in pool.parameters():
            assert parameter.grad is not None
            assert (parameter.grad[:, pool.frozen] == 0).all()


def test_expand_clips_to_capacity() -> None:
    pool = PromptPool(4, size=3, capacity=8, generator=seeded(0))
    assert pool.expand(3) == 3
    assert (pool.frozen_count, pool.active_count, pool.unused_count) == (3, 3, 2)
    assert pool.expand(80) == 2
    assert (pool.frozen_count, pool.active_count, pool.unused_count) == (6, 2, 0)
    before = copy.deepcopy(pool.state_dict())
    assert pool.expand(5) == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in pool.state_dict().items())


def test_without_a_capacity_the_pool_grows_as_told() -> None:
    """Rows, partition and draws are those of a pool with room, without its unused rows."""
    limited = PromptPool(4, size=3, capacity=400, copies=2, generator=seeded(0))
    pool = PromptPool(4, size=3, capacity=None, copies=2, generator=seeded(0))
    small = copy.deepcopy(pool.state_dict())
    for stage, count in enumerate((80, 10, 300), start=1):
        for each in (limited, pool):
            train(each)
            assert each.expand(count, seeded(stage)) == count
        assert pool.unused_count is None
        assert pool.capacity == pool.size == limited.size
        for name in ("keys", "values"):
            torch.testing.assert_close(
                getattr(pool, name), getattr(limited, name)[:, : pool.size], rtol=0, atol=0
            )
        assert torch.equal(pool.active, limited.active[: pool.size])
    large = copy.deepcopy(pool.state_dict())
    pool.load_state_dict(small)  # an earlier stage, and back
    assert (pool.size, pool.generations) == (3, (3,))
    pool.load_state_dict(large)
    assert pool.generations == limited.generations
    assert torch.equal(pool.frozen_values, large["frozen_values"])


def test_expanding_by_nothing_changes_nothing() -> None:
    pool = PromptPool(4, size=3, capacity=8)
    assert pool.expand(0) == 0
    assert (pool.frozen_count, pool.active_count, pool.unused_count) == (0, 3, 5)
    with pytest.raises(ValueError, match="-1"):
        pool.expand(-1)


@pytest.mark.parametrize("size", [0, 9])
def test_refuses_a_size_beyond_capacity(size: int) -> None:
    with pytest.raises(ValueError, match="capacity"):
        PromptPool(4, size=size, capacity=8)


def test_generations_are_consecutive_rows() -> None:
    pool = PromptPool(4, size=2, capacity=7)
    pool.expand(1)
    pool.expand(3)
    assert pool.generation.tolist() == [0, 0, 1, 2, 2, 2, -1]
    assert pool.generations == (2, 1, 3)
    assert pool.frozen.tolist() == [True] * 3 + [False] * 4
    assert pool.active.tolist() == [False] * 3 + [True] * 3 + [False]


@pytest.mark.parametrize("merge", ["paper", "rescale"])
def test_state_restores_the_partition(merge: Merge) -> None:
    pool, restored = (
        PromptPool(4, size=3, capacity=9, merge=merge, generator=seeded(seed)) for seed in (0, 1)
    )
    shapes = {name: tensor.shape for name, tensor in pool.state_dict().items()}
    pool.expand(2, seeded(2))
    train(pool)
    pool.expand(2, seeded(3))
    assert {name: tensor.shape for name, tensor in pool.state_dict().items()} == shapes
    restored.load_state_dict(pool.state_dict())
    for name in ("keys", "values", "frozen", "active"):
        assert torch.equal(getattr(restored, name), getattr(pool, name))
    assert restored.generations == pool.generations == (3, 2, 2)
    assert restored.expand(1, seeded(5)) == pool.expand(1, seeded(5)) == 1
    assert torch.equal(restored.generation, pool.generation)
    assert torch.equal(pickle.loads(pickle.dumps(pool)).values, pool.values)


def prompts(pool: PromptPool, query: Tensor) -> Tensor:
    router = Router(PromptingOptions(merge=pool.merge))
    with torch.no_grad():
        routing = router.route(query, pool.keys[0, : pool.size], router.groups(pool.generations))
        return routing.prompt(pool.values[0, : pool.size])


def test_rescale_keeps_the_function_over_stage_switches() -> None:
    pool = PromptPool(16, size=6, capacity=20, merge="rescale", generator=seeded(0))
    query = torch.randn(5, 16, generator=seeded(1))
    for stage in range(3):
        train(pool)
        before = prompts(pool, query)
        pool.expand(4, seeded(stage))
        with torch.no_grad():
            pool.trained_values[:, pool.active] = 0
        torch.testing.assert_close(prompts(pool, query), before, atol=1e-6, rtol=0)
        with torch.no_grad():
            pool.trained_values[:, pool.active] = 1


def test_paper_merge_keeps_it_only_at_the_first() -> None:
    pool = PromptPool(16, size=6, capacity=20, merge="paper", generator=seeded(0))
    query = torch.randn(5, 16, generator=seeded(1))
    changes = []
    for stage in range(2):
        before = prompts(pool, query)
        pool.expand(4, seeded(stage))
        new = pool.active
        pool.trained_values.data[:, new] = 0
        changes.append((prompts(pool, query) - before).abs().max().item())
        pool.trained_values.data[:, new] = 1
    assert changes[0] < 1e-6 < 1e-2 < changes[1]
