"""Pseudo features must have the distribution that the kept statistics describe."""

from __future__ import annotations

import io
from typing import Literal

import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor

from sodap.errors import SodapError
from sodap.preserving import ClassStatistics, PseudoReplay

CLASSES, WIDTH = 4, 3
UNSEEN = 2
KEEP: list[Literal["merged", "per_stage"]] = ["merged", "per_stage"]


def stage(
    seed: int, counts: list[int], shift: float = 0.0
) -> tuple[ClassStatistics, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(counts))
    noise = torch.randn(len(labels), WIDTH, generator=generator, dtype=torch.float64)
    features = noise * torch.tensor([0.1, 1.0, 3.0]) + 5.0 * labels[:, None] + shift
    statistics = ClassStatistics(CLASSES, WIDTH)
    statistics.update(features, labels)
    return statistics, features, labels


def two_stages(keep: Literal["merged", "per_stage"]) -> tuple[PseudoReplay, Tensor, Tensor]:
    replay = PseudoReplay(CLASSES, WIDTH, keep)
    first, features_1, labels_1 = stage(1, [200, 30, 0, 10])
    second, features_2, labels_2 = stage(2, [50, 300, 0, 90], shift=40.0)
    replay.absorb(first)
    replay.absorb(second)
    return replay, torch.cat([features_1, features_2]), torch.cat([labels_1, labels_2])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("keep", KEEP)
def test_classes_are_drawn_uniformly_and_an_unseen_one_never(
    keep: Literal["merged", "per_stage"],
) -> None:
    replay, _, _ = two_stages(keep)
    features, classes = replay.sample(30_000, seeded())
    assert features.shape == (30_000, WIDTH)
    assert features.dtype == torch.float32
    assert classes.dtype == torch.int64
    frequency = torch.bincount(classes, minlength=CLASSES)
    assert frequency[UNSEEN] == 0
    seen = [int(frequency[c]) for c in range(CLASSES) if c != UNSEEN]
    assert stats.chisquare(seen).pvalue > 1e-3


@pytest.mark.parametrize("keep", KEEP)
def test_samples_have_the_moments_of_the_features(keep: Literal["merged", "per_stage"]) -> None:
    """Pooled or as a mixture, mean and variance of a class are those of all its features."""
    replay, features, labels = two_stages(keep)
    drawn, classes = replay.sample(60_000, seeded(1))
    for c in (0, 1, 3):
        real, pseudo = features[labels == c], drawn[classes == c].double()
        std, size = real.std(dim=0), len(pseudo)
        assert ((pseudo.mean(dim=0) - real.mean(dim=0)).abs() < 5 * std / size**0.5).all()
        torch.testing.assert_close(pseudo.std(dim=0), std, rtol=0.05, atol=0.0)


def test_per_stage_keeps_the_domains_apart_in_proportion() -> None:
    replay, _, _ = two_stages("per_stage")
    drawn, classes = replay.sample(60_000, seeded(2))
    second = drawn[:, 0] > 25.0  # the first dimension has a std of 0.1, the domains lie 40 apart
    expected = {0: 50 / 250, 1: 300 / 330, 3: 90 / 100}
    for c, share in expected.items():
        hits, trials = int(second[classes == c].sum()), int((classes == c).sum())
        assert stats.binomtest(hits, trials, share).pvalue > 1e-4
    assert drawn[second & (classes == 0), 0].std() < 0.2

    merged, _, _ = two_stages("merged")
    drawn, classes = merged.sample(10_000, seeded(2))
    assert drawn[classes == 0, 0].std() > 10  # the distance between domains became variance


def test_each_dimension_is_normal() -> None:
    statistics, _, _ = stage(3, [50, 0, 0, 0])
    replay = PseudoReplay(CLASSES, WIDTH)
    replay.absorb(statistics)
    drawn, _ = replay.sample(5_000, seeded(3))
    standard = (drawn - statistics.mean[0]) / statistics.variance[0].sqrt()
    for column in standard.T:
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-3


def test_a_single_feature_is_replayed_as_it_was() -> None:
    statistics, features, _ = stage(4, [0, 1, 0, 0])
    replay = PseudoReplay(CLASSES, WIDTH)
    replay.absorb(statistics)
    drawn, classes = replay.sample(5, seeded())
    torch.testing.assert_close(drawn, features.float().expand(5, -1))
    assert classes.eq(1).all()


def test_a_seed_fixes_the_draw_and_no_gradient_flows() -> None:
    replay, _, _ = two_stages("merged")
    features, classes = replay.sample(16, seeded(7))
    again, classes_again = replay.sample(16, seeded(7))
    assert features.equal(again)
    assert classes.equal(classes_again)
    assert not features.requires_grad


def test_sampling_needs_statistics() -> None:
    replay = PseudoReplay(CLASSES, WIDTH)
    with pytest.raises(SodapError, match="no statistics yet"):
        replay.sample(4, seeded())
    replay.absorb(ClassStatistics(CLASSES, WIDTH))
    with pytest.raises(SodapError, match="no statistics yet"):
        replay.sample(4, seeded())


@pytest.mark.parametrize("keep", KEEP)
def test_absorbing_copies(keep: Literal["merged", "per_stage"]) -> None:
    statistics, features, labels = stage(5, [10, 10, 10, 10])
    replay = PseudoReplay(CLASSES, WIDTH, keep)
    replay.absorb(statistics)
    before, _ = replay.sample(8, seeded())
    statistics.update(features + 100.0, labels)
    replay.half()  # makes it derive its Gaussians anew, and must not lower them
    after, _ = replay.sample(8, seeded())
    assert before.equal(after)


@pytest.mark.parametrize("keep", KEEP)
def test_the_state_survives_a_round_trip(keep: Literal["merged", "per_stage"]) -> None:
    replay, _, _ = two_stages(keep)
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    file.seek(0)
    restored = PseudoReplay(CLASSES, WIDTH, keep)
    restored.absorb(stage(9, [3, 3, 3, 3])[0])
    restored.sample(2, seeded())  # what it derived before must not outlive the load
    restored.load_state_dict(torch.load(file))
    for drawn, expected in zip(
        restored.sample(9, seeded()), replay.sample(9, seeded()), strict=True
    ):
        assert drawn.equal(expected)
    assert restored.stored_bytes == replay.stored_bytes
    restored.absorb(stage(9, [3, 3, 3, 3])[0])  # and goes on from there
    assert restored.sample(2, seeded())[0].shape == (2, WIDTH)


def test_loading_over_what_was_sampled_from_takes_effect() -> None:
    replay, _, _ = two_stages("merged")
    replay.sample(1, seeded())
    other = PseudoReplay(CLASSES, WIDTH)
    other.absorb(stage(11, [0, 0, 5, 0])[0])
    replay.load_state_dict(other.state_dict())
    assert replay.sample(20, seeded())[1].eq(2).all()


def test_stored_bytes_count_what_is_kept() -> None:
    one_stage = 8 * (CLASSES + 2 * CLASSES * WIDTH)
    assert PseudoReplay(CLASSES, WIDTH).stored_bytes == 0
    assert two_stages("merged")[0].stored_bytes == one_stage
    assert two_stages("per_stage")[0].stored_bytes == 2 * one_stage


def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(SodapError, match="4 classes and width 3"):
        PseudoReplay(CLASSES, WIDTH).absorb(ClassStatistics(CLASSES + 1, WIDTH))
