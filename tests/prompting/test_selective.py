"""The selective reading: standardised queries, clusters as starting points, competing sets."""

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from tests.prompting.prompters import DEPTH, WIDTH, build, images, run
from torch import Tensor
from torch.nn import functional as F

from sodap.prompting import Groups, MemoryBank, PromptingOptions, Router, entmax
from sodap.prompting.clustering import cluster_centres
from sodap.prompting.routing import unit
from sodap.prompting.standardising import Standardiser

SELECTIVE: dict[str, Any] = {
    "queries": "standardised",
    "memory_assignment": "nearest",
    "memory_norm": False,
    "key_start": "clusters",
    "combination": "competing",
    "residual": 1.0,
    "temperature": 0.35,
    "context": "patch_mean",
    "merge": "rescale",
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bundles(count: int, each: int, seed: int = 0) -> Tensor:
    """Rows around a few random directions, ``[count * each, 12]``, in float64."""
    drawn = generator(seed)
    centres = torch.randn(count, 12, generator=drawn, dtype=torch.float64)
    noise = torch.randn(count, each, 12, generator=drawn, dtype=torch.float64)
    return (centres.unsqueeze(1) + 0.1 * noise).flatten(0, 1)


# ------------------------------------------------------------------ clusters


def test_clusters_are_as_tight_as_those_of_scikit_learn() -> None:
    rows = F.normalize(bundles(5, 40), dim=-1)
    centres, label = cluster_centres(rows, 5, generator())
    ours = float((1 - (rows * centres[label]).sum(-1)).sum())
    theirs = KMeans(5, n_init=10, random_state=0).fit(rows.numpy())
    directions = F.normalize(torch.as_tensor(theirs.cluster_centers_), dim=-1)
    assert ours <= 1.001 * float((1 - (rows @ directions.mT).amax(-1)).sum())
    assert torch.allclose(centres.norm(dim=-1), torch.ones(5, dtype=torch.float64))


def test_new_centres_cover_what_known_ones_leave() -> None:
    rows = bundles(4, 30)
    known = rows[:60].view(2, 30, -1).mean(1)  # the first two bundles
    centres, label = cluster_centres(rows, 2, generator(), known)
    found = (F.normalize(rows[60:].view(2, 30, -1).mean(1), dim=-1) @ centres.mT).amax(-1)
    assert (found > 0.99).all()
    assert label[:60].max() < 2 <= label[60:].min()


def test_more_centres_than_rows() -> None:
    centres, _ = cluster_centres(bundles(1, 2), 5, generator())
    assert centres.isfinite().all()
    assert len(centres) == 5


# ------------------------------------------------------------------ standardised queries


def test_standardised_rows_have_mean_0_and_deviation_1() -> None:
    rows = 3 + 5 * torch.randn(50, 2, 7, generator=generator(), dtype=torch.float64)
    rows[:, 1, 0] = 4.0  # the same for all images
    standardiser = Standardiser(2, 7).double()
    assert torch.equal(standardiser(0, rows[:, 0]), rows[:, 0])
    standardiser.fit(rows)
    got = torch.stack([standardiser(kind, rows[:, kind]) for kind in range(2)], 1).numpy()
    assert np.abs(got.mean(0)).max() < 1e-9
    deviation = got.std(0)
    assert deviation[1, 0] == pytest.approx(0)
    deviation[1, 0] = 1
    assert np.abs(deviation - 1).max() < 1e-9


# ------------------------------------------------------------------ competing sets


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 1000))
def test_a_set_gets_what_it_wins_against_older_sets(sizes: list[int], seed: int) -> None:
    router = Router(PromptingOptions(combination="competing", temperature=0.3))
    drawn = generator(seed)
    z = torch.randn(5, 8, generator=drawn, dtype=torch.float64)
    keys = torch.randn(sum(sizes), 8, generator=drawn, dtype=torch.float64)
    groups = Groups(tuple(sizes), (1.0,) * len(sizes), sizes[-1], competing=True)
    got = router.route(z, keys, groups).weights
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        all_so_far = entmax(unit(z) @ unit(keys[:end]).mT, 1.5, temperature=0.3)
        assert torch.allclose(got[:, end - size : end], all_so_far[:, end - size :])
    joined = router.route(z, keys, groups).joined
    assert torch.allclose(joined.sum(-1), torch.ones(5, dtype=torch.float64))


def test_an_image_at_a_frozen_key_gives_new_prompts_no_weight() -> None:
    router = Router(PromptingOptions(combination="competing", temperature=0.3))
    keys = torch.eye(6)
    groups = router.groups((4, 2))
    weights = router.route(keys[:1], keys, groups)
    assert weights.active.sum() == 0
    assert router.route(keys[5:], keys, groups).active[0, 1] > 0.9


def test_growth_leaves_the_prompts_of_older_sets_as_they_are() -> None:
    prompter = build(**SELECTIVE)
    tokens = images(8)
    prompter.pool.expand(3, generator(1))
    before, prompts = run(prompter, tokens)
    prompter.pool.expand(4, generator(2))
    with torch.no_grad():
        prompter.pool.trained_values.zero_()
    after, grown = run(prompter, tokens)
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(grown.weights[-1][:, :9], prompts.weights[-1])


# ------------------------------------------------------------------ memory


def test_a_query_is_written_to_the_nearest_slot_only() -> None:
    bank = MemoryBank(
        12, slots=3, heads=3, momentum=0.9, norm=False, generator=generator()
    ).double()
    rows, features = bundles(3, 20), bundles(3, 20, seed=7)
    keys, values = bank.keys.clone(), bank.values.clone()
    bank.write_nearest(rows, features)
    cosine = F.normalize(rows, dim=-1) @ F.normalize(keys, dim=-1).mT
    for slot in range(3):
        mine = cosine.argmax(-1) == slot
        for old, new, target in ((keys, bank.keys, rows), (values, bank.values, features)):
            wanted = 0.9 * old[slot] + 0.1 * target[mine].mean(0) if mine.any() else old[slot]
            assert torch.allclose(new[slot], wanted)


def test_slots_start_as_different_clusters() -> None:
    bank = MemoryBank(12, slots=4, heads=3, norm=False, generator=generator()).double()
    rows = bundles(4, 25)
    bank.start_from(rows, rows + 1, generator())
    means = rows.view(4, 25, -1).mean(1)
    nearest = torch.cdist(bank.keys, means).argmin(-1)
    assert len(set(nearest.tolist())) == 4
    assert torch.allclose(bank.keys, means[nearest])
    assert torch.allclose(bank.values, bank.keys + 1)
    _, attention = bank(rows)
    assert torch.equal(attention.mean(1).argmax(-1), torch.cdist(rows, bank.keys).argmin(-1))


# ------------------------------------------------------------------ assembly


def test_started_keys_route_images_differently() -> None:
    prompter = build(**SELECTIVE)
    tokens = images(40)
    assert prompter.standardiser is not None

    def seen() -> tuple[Tensor, Tensor, Tensor]:
        out, prompts = run(prompter, tokens)
        return torch.stack(prompts.queries, 1), prompts.context, out[:, 0]

    with torch.no_grad():
        queries, context, features = seen()
        every = torch.cat([queries, context.unsqueeze(1), features.unsqueeze(1)], 1)
        assert every.shape == (40, DEPTH + 2, WIDTH)
        prompter.standardiser.fit(every)
        prompter.start_memory(queries, features, generator())
        queries, context, _ = seen()
        prompter.start_keys(queries, context, generator())
        _, prompts = run(prompter, tokens)
    for weights in prompts.weights:
        distance = torch.cdist(weights, weights, p=1).sum() / 2 / (40 * 39)
        assert distance > 0.2
