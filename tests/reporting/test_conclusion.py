"""The conclusion of a table names the best method, and whether that is more than noise."""

from __future__ import annotations

import pytest

from sodap.reporting import Result, StreamTable, conclusion, make_tables

from .records import a_record

NOISY = [0.700, 0.704, 0.698, 0.703, 0.699]


def with_levels(**levels: list[float]) -> StreamTable:
    """A method for each argument, with the AvgACC of each seed."""
    records = [
        a_record(
            method.replace("_", "-"),
            seed,
            R={"accuracy": [[level, 0.3], [level, level]], "macro_f1": [[0.5, 0.5]] * 2},
        )
        for method, values in levels.items()
        for seed, level in enumerate(values)
    ]
    (table,) = make_tables(map(Result.of, records))
    return table


def lower(values: list[float], by: float) -> list[float]:
    return [value - by for value in values]


def test_the_best_the_next_and_the_papers_method() -> None:
    ahead = [x + 0.001 * (k % 3) for k, x in enumerate(NOISY)]
    text = conclusion(
        with_levels(ridge=lower(ahead, -0.2), l2p=NOISY, residual_sodap=lower(ahead, 0.1))
    )
    assert text.startswith("`ridge` has the highest AvgACC, 0.90")
    assert "The next is `l2p`, 0.701." in text, "only differences to the reference are tested"
    assert "`residual-sodap` is number 3 of 3, 0.300 (" in text
    assert "the same for every seed" in text, "ridge and residual-sodap differ by a constant"
    assert (
        "Always answering 'rain' gives a final average of 0.650; no better: `residual-sodap`."
        in text
    )
    assert "corrected for the comparisons of one method with all others (Holm)" not in text


def test_noise_is_called_noise() -> None:
    text = conclusion(with_levels(ridge=[0.8] * 5, sequential=[0.7, 0.9, 0.82, 0.75, 0.88]))
    assert "within the noise between seeds (p = " in text
    assert text.endswith("P values: Student's t test, paired by seed.")


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_give_no_noise(seeds: int) -> None:
    text = conclusion(with_levels(ridge=[0.9] * seeds, sequential=[0.3] * seeds))
    assert f"noise unknown with {seeds} common seed" in text
    assert "p <" not in text
    assert "p =" not in text
    assert "; no better: `sequential`." in text, "than the constant answer"


def test_one_method_or_no_common_seed() -> None:
    assert "no other method" in conclusion(with_levels(ridge=[0.9]))
    records = [a_record("ridge", 0, 0.9), a_record("sequential", 1, 0.8)]
    (apart,) = make_tables(map(Result.of, records))
    assert "no seed in common" in conclusion(apart)


def test_an_upper_bound_is_mentioned_and_may_be_beaten() -> None:
    text = conclusion(with_levels(ridge=[0.8], joint=[0.9]))
    assert text.startswith("`ridge` has the highest AvgACC, 0.800.")
    assert "as an upper bound: `joint` 0.900." in text
    assert "undertrained" not in text
    assert "`ridge` did better" in conclusion(with_levels(ridge=[0.9], joint=[0.8]))


def test_unranked_rows_are_explained() -> None:
    records = [a_record("ridge", seed, 0.8) for seed in range(3)]
    records += [a_record("ridge", seed, 0.85, variant="ridge@x") for seed in range(3)]
    (table,) = make_tables(map(Result.of, [*records, a_record("slda", 0, 0.9)]))
    text = conclusion(table)
    assert text.startswith("`ridge` has the highest AvgACC")
    assert "fewer seeds than the others: `slda` (1 seed, AvgACC 0.8" in text
    assert "`ridge@x`" not in text
    assert text.endswith("Variants (@) are not ranked.")


def test_forgetting_is_compared_with_the_least() -> None:
    def record(method: str, seed: int, loss: float) -> Result:
        start = 0.9 + 0.001 * seed
        R = {"accuracy": [[start, 0.3], [start - loss, 0.9]], "macro_f1": [[0.5, 0.5]] * 2}
        return Result.of(a_record(method, seed, R=R))

    losses = [0.10, 0.11, 0.13]
    runs = [record("residual-sodap", seed, loss) for seed, loss in enumerate(losses)]
    runs += [record("ridge", seed, 0.01) for seed in range(3)]
    (table,) = make_tables(runs)
    text = conclusion(table)
    assert "`ridge` forgets least, AvgF 0.010; `residual-sodap` forgets 0.103 (" in text


def test_a_difference_may_be_significant_alone_but_not_among_many() -> None:
    near = [0.6985, 0.7000, 0.6970, 0.7005, 0.6985]
    noise = {
        f"m{n}": [x + 0.001 * ((n + k) % 3 - 1) for k, x in enumerate(NOISY)] for n in range(19)
    }
    table = with_levels(first=NOISY, near=near, **noise)
    (alone,) = table.differences([("first", "near")], "average_accuracy")
    pairs = [("first", other) for other in ("near", *noise)]
    among, *_ = table.differences(pairs, "average_accuracy")
    assert alone is not None
    assert among is not None
    assert alone.p is not None
    assert alone.mean == among.mean
    assert alone.significant
    assert not among.significant
    assert among.p == pytest.approx(20 * alone.p)
