"""The two-sample test from moments: its false-alarm rate, its power, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor

from sodap.drift import DriftTest, MomentReference, drift_test
from sodap.errors import SodapError
from sodap.storage import load_state, save_state

WIDTH = 12


def gaussian(n: int, generator: torch.Generator) -> Tensor:
    return torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)


def heavy_tailed(n: int, generator: torch.Generator) -> Tensor:
    """Cauchy: not even the mean exists."""
    return gaussian(n, generator) / gaussian(n, generator).abs()


def correlated(n: int, generator: torch.Generator) -> Tensor:
    """Twelve numbers that follow two."""
    loadings = torch.linspace(-1, 2, 2 * WIDTH, dtype=torch.float64).reshape(2, WIDTH)
    return gaussian(n, generator)[:, :2] @ loadings + 0.1 * gaussian(n, generator)


def compare(old: Tensor, new: Tensor, features: int = 64) -> DriftTest:
    return drift_test(MomentReference(WIDTH, features).update(old), new)


def allowed(alpha: float, repetitions: int) -> tuple[int, int]:
    """Numbers of alarms that a test of exactly this level gives in all but 1 of 2,000 cases."""
    low, high = stats.binom(repetitions, alpha).interval(1 - 1 / 2000)
    return int(low), int(high)


@pytest.mark.parametrize(("n", "repetitions"), [(25, 300), (50, 300), (200, 200)])
@pytest.mark.parametrize("draw", [gaussian, heavy_tailed, correlated])
def test_split_halves_raise_alarms_at_the_stated_rate(
    draw: Callable[[int, torch.Generator], Tensor], n: int, repetitions: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    p_values = []
    for _ in range(repetitions):
        both = draw(2 * n, generator)
        p_values.append(compare(both[:n], both[n:]).p_value)
    for alpha in (0.01, 0.05):
        alarms = sum(p <= alpha for p in p_values)
        low, high = allowed(alpha, repetitions)
        assert low <= alarms <= high
    assert abs(sum(p <= 0.5 for p in p_values) / repetitions - 0.5) < 0.12


def test_few_new_rows_against_a_large_reference_with_256_features() -> None:
    generator = torch.Generator().manual_seed(4)
    reference = MomentReference(WIDTH).update(gaussian(2000, generator))
    alarms = sum(
        drift_test(reference, gaussian(27, generator), alpha=0.05).alarm for _ in range(200)
    )
    low, high = allowed(0.05, 200)
    assert low <= alarms <= high


def test_many_numbers_and_few_rows_leave_the_test_awake() -> None:
    """The eigenvalues of a raw sample covariance would raise almost no alarm here."""
    generator = torch.Generator().manual_seed(5)
    p_values = [
        drift_test(MomentReference(100).update(both[:25]), both[25:]).p_value
        for both in torch.randn(150, 50, 100, generator=generator)
    ]
    assert 2 <= sum(p <= 0.05 for p in p_values) <= allowed(0.05, 150)[1]


def test_a_shift_and_a_change_of_shape_are_found() -> None:
    generator = torch.Generator().manual_seed(6)
    shifted = wider = 0
    for _ in range(40):
        reference = MomentReference(WIDTH, 64).update(gaussian(200, generator))
        shifted += drift_test(reference, gaussian(25, generator) + 0.5, alpha=0.05).alarm
        wider += drift_test(reference, 2 * gaussian(50, generator), alpha=0.05).alarm
    assert shifted >= 36
    assert wider >= 36


def test_the_smallest_visible_shift_is_found_in_four_of_five_tests() -> None:
    """A shift whose effect, measured on many rows, is the promised one."""
    generator = torch.Generator().manual_seed(7)
    reference = MomentReference(WIDTH, 64).update(gaussian(300, generator))
    visible = drift_test(reference, gaussian(30, generator), alpha=0.05).smallest_visible
    low, high = 0.0, 2.0
    for _ in range(12):
        shift = (low + high) / 2
        generator.manual_seed(8)
        effect = drift_test(reference, gaussian(5000, generator) + shift).effect_size
        low, high = (shift, high) if effect < visible else (low, shift)
    found = sum(
        drift_test(reference, gaussian(30, generator) + high, alpha=0.05).alarm for _ in range(100)
    )
    assert 65 <= found <= 99


def test_more_rows_see_smaller_shifts() -> None:
    generator = torch.Generator().manual_seed(9)
    reference = MomentReference(WIDTH, 64).update(gaussian(500, generator))
    seen = [drift_test(reference, gaussian(n, generator)).smallest_visible for n in (25, 100, 400)]
    assert seen[0] > seen[1] > seen[2] > 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 59), max_size=4))
def test_order_and_batches_of_rows_do_not_matter(seed: int, cuts: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, rest, new = gaussian(20, generator), gaussian(60, generator), gaussian(15, generator)
    whole = MomentReference(WIDTH, 32).update(first).update(rest)
    shuffled = rest[torch.randperm(60, generator=generator)]
    parts = MomentReference(WIDTH, 32).update(first[torch.randperm(20, generator=generator)])
    for part in torch.tensor_split(shuffled, sorted(set(cuts))):
        parts.merge(parts.empty_copy().update(part))
    expected, found = drift_test(whole, new), drift_test(parts, new.flip(0))
    assert int(parts.count) == 80
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(1e-3, 1e3), move=st.floats(-10, 10), seed=st.integers(0, 100))
def test_unit_and_origin_do_not_matter(scale: float, move: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    old, new = gaussian(40, generator), gaussian(20, generator)
    found = compare(scale * (old + move), scale * (new + move)).p_value
    assert found == pytest.approx(compare(old, new).p_value, rel=1e-4)


def test_a_scale_stands_for_scaled_rows() -> None:
    generator = torch.Generator().manual_seed(16)
    old, new, scale = gaussian(40, generator), gaussian(20, generator), torch.arange(1.0, 13.0)
    scaled = MomentReference(WIDTH, 16, scale=scale).update(scale * old)
    merged = scaled.empty_copy().update(scale * old).merge(scaled)
    plain = MomentReference(WIDTH, 16).update(old)
    assert drift_test(scaled, scale * new) == pytest.approx(drift_test(plain, new))
    assert int(merged.count) == 80
    for bad in (scale[1:], 0 * scale, scale.log() / 0):
        with pytest.raises(SodapError, match="scale"):
            MomentReference(WIDTH, scale=bad)


def test_images_of_one_patient_raise_false_alarms_unless_they_are_grouped() -> None:
    generator = torch.Generator().manual_seed(10)
    groups = torch.arange(30).repeat_interleave(4)
    alone = grouped = 0
    for _ in range(60):
        old, new = (
            gaussian(30, generator)[groups] + 0.1 * gaussian(120, generator) for _ in range(2)
        )
        alone += compare(old, new).p_value <= 0.05
        reference = MomentReference(WIDTH, 64).update(old, groups)
        assert int(reference.count) == 30
        grouped += drift_test(reference, new, alpha=0.05, groups=groups).alarm
    assert alone > 30
    assert grouped <= allowed(0.05, 60)[1]


def test_a_group_counts_as_its_mean_row() -> None:
    rows = gaussian(9, torch.Generator().manual_seed(11))
    groups = torch.tensor([7, 3, 7, 3, 3, 1, 1, 9, 7])
    means = torch.stack([rows[groups == name].mean(0) for name in (1, 3, 7, 9)])
    grouped = MomentReference(WIDTH, 8).update(rows, groups)
    plain = MomentReference(WIDTH, 8).update(means)
    torch.testing.assert_close(grouped.state_dict(), plain.state_dict())


def test_a_saved_reference_gives_the_same_answer(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(12)
    reference = MomentReference(WIDTH, 32, seed=5).update(gaussian(50, generator))
    save_state(tmp_path, "reference", reference.state_dict(), {})
    loaded = MomentReference(WIDTH, 32)
    loaded.load_state_dict(load_state(tmp_path, "reference")[0])
    new = gaussian(20, generator)
    assert drift_test(loaded, new) == drift_test(reference, new)


def test_the_test_changes_nothing_and_size_does_not_grow() -> None:
    generator = torch.Generator().manual_seed(13)
    reference = MomentReference(WIDTH).update(gaussian(10, generator))
    size, before = reference.bytes, {k: v.clone() for k, v in reference.state_dict().items()}
    drift_test(reference, gaussian(20, generator))
    torch.testing.assert_close(reference.state_dict(), before, rtol=0, atol=0)
    reference.update(gaussian(500, generator))
    assert reference.bytes == size


def test_eigenvalues_of_few_rows_are_as_unequal_as_those_of_many() -> None:
    generator = torch.Generator().manual_seed(14)
    reference = MomentReference(3, 4).update(torch.randn(2000, 3, generator=generator))
    truth = float((reference.spectrum() ** 2).sum())
    found = []
    for _ in range(300):
        small = reference.empty_copy().update(torch.randn(12, 3, generator=generator))
        found.append(float((small.spectrum() ** 2).sum()))
    raw_bias = truth + float(reference.spectrum().sum()) ** 2 / 11
    mean = sum(found) / len(found)
    assert abs(mean - truth) < 0.35 * (raw_bias - truth)


def test_equal_rows_are_no_drift() -> None:
    reference = MomentReference(WIDTH, 8).update(torch.ones(10, WIDTH))
    result = drift_test(reference, torch.ones(5, WIDTH))
    assert not result.alarm
    assert result.p_value == 1.0


def test_bad_input_is_refused() -> None:
    rows = gaussian(10, torch.Generator().manual_seed(15))
    reference = MomentReference(WIDTH, 8)
    with pytest.raises(SodapError, match="no row"):
        drift_test(reference, rows)
    with pytest.raises(SodapError, match="at least 2"):
        reference.update(rows[:1])
    with pytest.raises(SodapError, match="shape"):
        reference.update(rows[:, 1:])
    with pytest.raises(SodapError, match="finite"):
        reference.update(rows.log())
    with pytest.raises(SodapError, match="group"):
        reference.update(rows, torch.zeros(3))
    reference.update(rows)
    with pytest.raises(SodapError, match="alpha"):
        drift_test(reference, rows, alpha=0)
    with pytest.raises(SodapError, match="merged"):
        reference.merge(MomentReference(WIDTH, 8).update(2 * rows))
    with pytest.raises(SodapError, match="even"):
        MomentReference(WIDTH, 7)
