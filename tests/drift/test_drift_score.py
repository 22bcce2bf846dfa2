"""The drift score against the paper's formulas in plain loops, and at the edges of its domain."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from sodap.drift import (
    DriftDetector,
    DriftSettings,
    iou,
    null_band,
    selection_entropy,
    usage_set,
)
from sodap.errors import SodapError

Usage = NDArray[np.float64]
LITERAL = DriftSettings(min_entries=2, std_floor=0.0)


def usages(seed: int, batches: int, layers: int = 3, prompts: int = 12) -> Usage:
    """Sparse usage `[T, L, N]`, rows summing to 1."""
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.full(prompts, 0.3), size=(batches, layers))


def literal_scores(sequence: Usage, window: int) -> list[list[float]]:
    """Equations iou and drift_score, one batch, layer and prompt at a time."""
    entropies: list[list[float]] = []
    sets: list[list[set[int]]] = []
    scores = []
    for usage in sequence:
        H = [-sum(w * math.log(w + 1e-10) for w in row) for row in usage.tolist()]
        S = [{i for i, w in enumerate(row) if w > 0.01} for row in usage.tolist()]
        row = []
        for layer in range(len(usage)):
            past_H = [entry[layer] for entry in entropies[-(window - 1) :]]
            reference = set().union(*(entry[layer] for entry in sets[-(window - 1) :]))
            score = 0.0
            if len(past_H) >= 2:
                spread = statistics.pstdev(past_H) + 1e-10
                score += abs(H[layer] - statistics.fmean(past_H)) / spread
            if past_H:
                overlap = len(S[layer] & reference) / len(S[layer] | reference)
                score += 0.5 * (1 / max(overlap, 0.1) - 1)
            row.append(score)
        entropies.append(H)
        sets.append(S)
        scores.append(row)
    return scores


@pytest.mark.parametrize("window", [2, 5, 100])
def test_scores_follow_the_paper(window: int) -> None:
    sequence = usages(0, batches=130)
    detector = DriftDetector(3, 12, LITERAL.model_copy(update={"window": window}))
    report = detector.scan(sequence)
    np.testing.assert_allclose(report.scores, literal_scores(sequence, window), rtol=1e-9)
    assert report.mean == pytest.approx(np.mean(report.scores), rel=1e-12)
    np.testing.assert_allclose(report.entropy, selection_entropy(sequence))
    assert report.overlap.shape == (130, 3)


def test_signals() -> None:
    assert selection_entropy(np.full(8, 1 / 8)).item() == pytest.approx(math.log(8), rel=1e-8)
    assert selection_entropy(np.eye(4)).tolist() == pytest.approx([0.0] * 4, abs=1e-9)
    assert usage_set(np.array([0.01, 0.02, 0.0]), 0.01).tolist() == [False, True, False]
    a, b = np.array([[1, 1, 0], [0, 0, 0]], bool), np.array([[0, 1, 1], [0, 0, 0]], bool)
    assert iou(a, b).tolist() == [1 / 3, 1.0]


def test_the_first_entries_are_defined() -> None:
    old, new = np.array([[0.5, 0.5, 0.0, 0.0]]), np.array([[0.0, 0.0, 0.1, 0.9]])
    detector = DriftDetector(1, 4, DriftSettings(min_entries=2))
    assert detector.observe(old).tolist() == [0.0]  # nothing to compare with
    assert detector.observe(new).tolist() == [
        4.5
    ]  # no spread yet, but a disjoint set: 0.5 (10 - 1)
    z = abs(selection_entropy(old) - selection_entropy(np.stack([old, new])).mean())
    std = selection_entropy(np.stack([old, new])).std()
    assert detector.observe(old).item() == pytest.approx(z.item() / std + 0.5, rel=1e-9)


def test_the_std_floor_tames_identical_batches() -> None:
    usage = np.full((1, 60), 1 / 60)
    nudged = usage.copy()
    nudged[0, :2] += [1e-4, -1e-4]
    floored, literal = DriftDetector(1, 60), DriftDetector(1, 60, LITERAL)
    for detector in (floored, literal):
        assert detector.scan([usage] * 20).scores.max() == pytest.approx(0.0, abs=1e-4)
    assert literal.observe(nudged).item() > 1e3
    assert floored.observe(nudged).item() < 0.05


def test_min_entries_silences_the_entropy() -> None:
    sequence = usages(1, batches=12)
    detector = DriftDetector(3, 12, DriftSettings(min_entries=10, overlap_weight=0.0))
    scores = detector.scan(sequence).scores
    assert not scores[:10].any()
    assert scores[10:].all()


def test_the_fewest_batches_for_a_score() -> None:
    assert DriftSettings().needed == 10
    assert DriftSettings(window=5).needed == 4, "a short window is full before"
    assert DriftSettings(window=2).needed == 2, "one entry has no spread"


def test_a_relative_threshold_keeps_the_sets_of_a_large_pool() -> None:
    usage = np.random.default_rng(0).dirichlet(np.full(300, 50.0), size=(2, 1))
    detector = DriftDetector(1, 300)
    detector.scan(usage)
    assert not detector.window.past_sets.any()  # every weight is below 0.01
    assert np.isfinite(detector.observe(usage[0])).all()
    relative = DriftDetector(1, 300, DriftSettings(usage_threshold=0.6, relative_threshold=True))
    relative.scan(usage)
    assert relative.window.past_sets.mean() > 0.9


def test_sets_may_be_given() -> None:
    usage = np.array([[0.5, 0.5, 0.0, 0.0]])
    detector = DriftDetector(1, 4)
    detector.observe(usage, used=[[True, False, False, False]])
    assert detector.observe(usage, used=[[True, True, True, True]]).item() == pytest.approx(1.5)
    report = DriftDetector(1, 4).scan([usage] * 2, used=np.ones((2, 1, 4), bool))
    assert report.overlap.tolist() == [[1.0], [1.0]]
    with pytest.raises(SodapError, match=r"shape \[1, 1\]"):
        detector.observe(usage, used=[[True]])


def test_a_grown_pool_widens_the_window() -> None:
    detector = DriftDetector(1, 2)
    detector.observe([[0.5, 0.5]])
    assert detector.observe([[0.25, 0.25, 0.25, 0.25]]).item() == pytest.approx(0.5)  # IoU 2 / 4
    assert detector.window.prompts == 4
    with pytest.raises(SodapError, match="shrink"):
        detector.observe([[0.5, 0.5]])


def test_without_a_batch_there_is_no_drift() -> None:
    report = DriftDetector(3, 12).scan([])
    assert report.mean == 0.0
    assert report.scores.shape == report.entropy.shape == report.overlap.shape == (0, 3)


@pytest.mark.parametrize(
    "usage", [[[math.nan, 0.5]], [[-0.1, 1.1]], [[math.inf, 0.0]], [[3.0, 1.0]]]
)
def test_what_is_no_weight_is_refused(usage: list[list[float]]) -> None:
    detector = DriftDetector(1, 2)
    with pytest.raises(SodapError, match="from 0 to 1"):
        detector.observe(usage)
    assert detector.window.filled == 0


@pytest.mark.parametrize("shape", [(2,), (2, 4), (1, 0), (1, 1, 4)])
def test_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SodapError, match=r"\[1 layers, prompts\]"):
        DriftDetector(1, 4).observe(np.zeros(shape))


SEQUENCES = st.tuples(st.integers(0, 6), st.integers(1, 3), st.integers(1, 130)).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.floats(0, 1), fill=st.just(0.0))
)
SETTINGS = st.builds(
    DriftSettings,
    window=st.integers(2, 5),
    min_entries=st.integers(1, 3),
    std_floor=st.sampled_from([0.0, 1e-4]),
    relative_threshold=st.booleans(),
)


@given(sequence=SEQUENCES, chosen=SETTINGS)
@settings(max_examples=150)
def test_a_score_is_always_a_number(sequence: Usage, chosen: DriftSettings) -> None:
    _, layers, prompts = sequence.shape
    detector = DriftDetector(layers, prompts, chosen)
    report = detector.scan(sequence)
    assert np.isfinite(report.scores).all()
    assert (report.scores >= 0).all()
    assert math.isfinite(report.mean)
    band = null_band(detector.window, chosen)
    assert band is None or all(math.isfinite(value) for value in band)


@given(seed=st.integers(0, 10_000), cut=st.integers(0, 12))
@settings(max_examples=40)
def test_a_sequence_may_be_scanned_in_pieces(seed: int, cut: int) -> None:
    sequence = usages(seed, batches=12)
    whole, pieces = DriftDetector(3, 12), DriftDetector(3, 12)
    parts = [pieces.scan(sequence[:cut]).scores, pieces.scan(sequence[cut:]).scores]
    np.testing.assert_array_equal(np.concatenate(parts), whole.scan(sequence).scores)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_the_order_of_prompts_and_of_layers_does_not_matter(seed: int) -> None:
    sequence = usages(seed, batches=10)
    generator = np.random.default_rng(seed)
    layers, prompts = generator.permutation(3), generator.permutation(12)
    scores = DriftDetector(3, 12).scan(sequence).scores
    permuted = DriftDetector(3, 12).scan(sequence[:, layers][:, :, prompts]).scores
    np.testing.assert_allclose(permuted, scores[:, layers], rtol=1e-6)


def test_a_shift_is_seen_and_its_absence_is_not_zero() -> None:
    generator = np.random.default_rng(4)
    old = generator.dirichlet(np.full(60, 40.0), size=(300, 12))
    new = generator.dirichlet(
        np.concatenate([np.full(30, 70.0), np.full(30, 10.0)]), size=(100, 12)
    )
    detector = DriftDetector(12, 60)
    detector.scan(old[:99])
    band = null_band(detector.window, detector.settings)
    assert band is not None
    assert band.low < band.mean < band.high
    null = detector.scan(old[99:]).mean
    assert null == pytest.approx(math.sqrt(2 / math.pi), abs=0.05)
    assert null == pytest.approx(band.mean, abs=0.08)
    assert null > 0.7  # the paper's θ tells nothing apart
    first = detector.observe(new[0]).mean()
    assert first > 2 * band.high


def test_null_band_needs_entries() -> None:
    detector = DriftDetector(3, 12, DriftSettings(min_entries=2))
    detector.scan(usages(0, batches=2))
    assert null_band(detector.window, detector.settings) is None
    detector.scan(usages(1, batches=1))
    assert null_band(detector.window, detector.settings) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 1},
        {"overlap_floor": 0.0},
        {"std_floor": math.nan},
        {"min_growth": 90},
        {"max_score": 0.0},
        {"unknown": 1},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DriftSettings(**wrong)


def test_every_setting_says_what_it_means() -> None:
    assert all(field.description for field in DriftSettings.model_fields.values())
