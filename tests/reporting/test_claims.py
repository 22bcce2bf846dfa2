from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from sodap.evaluation import paired_bootstrap
from sodap.reporting import StreamTable, make_tables, verdict
from sodap.reporting.tables.significance import claims, holm, p_value
from tests.reporting.made_runs import a_record

ACCURACY = "average_accuracy"


def test_p_is_that_of_scipys_paired_test() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(0.5, 0.1, 5), generator.normal(0.4, 0.1, 5)
    gap = paired_bootstrap(first.tolist(), second.tolist())
    assert p_value(gap) == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert p_value(paired_bootstrap([0.5], [0.4])) is None
    assert p_value(paired_bootstrap([0.5, 0.5], [0.5, 0.5])) == 1
    assert p_value(paired_bootstrap([0.5, 0.5], [0.25, 0.25])) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([None]) == [None]
    assert holm([0.04]) == [0.04]


def with_levels(**levels: list[float]) -> StreamTable:
    """A method for each argument, with one level a seed and no other noise."""
    records: list[dict[str, Any]] = []
    for method, numbers in levels.items():
        for seed, level in enumerate(numbers):
            record = a_record(method, seed, level)
            record["R"]["accuracy"] = [[level, 0.3], [level, level]]
            records.append(record)
    (table,) = make_tables(records)
    return table


NOISY = [0.700, 0.704, 0.698, 0.703, 0.699]


def test_what_is_certain_alone_may_not_be_among_many() -> None:
    """The same difference, once asked alone and once among nineteen that are noise."""
    near = [0.6985, 0.7000, 0.6970, 0.7005, 0.6985]
    noise = {
        f"m{n}": [x + 0.001 * ((n + k) % 3 - 1) for k, x in enumerate(NOISY)] for n in range(19)
    }
    table = with_levels(first=NOISY, near=near, **noise)
    (alone,) = claims([(table, "first", "near", ACCURACY)])
    among, *_ = claims([(table, "first", other, ACCURACY) for other in ("near", *noise)])
    assert alone is not None
    assert among is not None
    assert alone.gap == among.gap
    assert alone.p is not None
    assert among.p is not None
    assert alone.certain
    assert not among.certain
    assert among.p == pytest.approx(20 * alone.p)


def test_between_two_methods_without_chance_seeds_tell_nothing() -> None:
    table = with_levels(ridge=[0.9] * 5, ncm=[0.8] * 5, sequential=NOISY)
    still, mixed = claims([(table, "ridge", other, ACCURACY) for other in ("ncm", "sequential")])
    assert still is not None
    assert mixed is not None
    assert (still.p, still.certain) == (None, False)
    assert mixed.certain
    assert mixed.p is not None  # and it was corrected for one comparison, not for two
    assert mixed.p == p_value(mixed.gap)
    told = verdict(table)
    assert "The next, `ncm`, is 0.100 (0.100 to 0.100) behind, the same for every seed" in told


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_difference_that_happens_to_be_the_same_for_all_seeds_is_not_certain(seeds: int) -> None:
    first = [0.9 + seed / 100 for seed in range(seeds)]
    table = with_levels(first=first, second=[level - 0.02 for level in first])
    (found,) = claims([(table, "first", "second", ACCURACY)])
    assert found is not None
    assert found.p is None
    assert not found.certain


def test_the_verdict_says_that_it_compares_many() -> None:
    told = verdict(with_levels(ridge=[0.9] * 5, sequential=NOISY, l2p=[x - 0.2 for x in NOISY]))
    assert "more than the noise between seeds (p < 0.001)" in told
    assert told.endswith("corrected for the comparisons of one method with all others (Holm).")
    single = verdict(with_levels(ridge=[0.9] * 5, sequential=NOISY))
    assert single.endswith("Each p is Student's, of differences paired by seed.")
    assert "p is Student" not in verdict(with_levels(ridge=[0.9], sequential=[0.8]))
