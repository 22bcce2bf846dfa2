"""The result of a table in a few sentences: which method is best, and is that more than noise?"""

from __future__ import annotations

from collections.abc import Mapping

from sodap.evaluation import PairedDifference
from sodap.formats import format_score, plural
from sodap.reporting.tables.metrics import METRICS
from sodap.reporting.tables.stream_table import StreamTable, sees_all_domains

ACCURACY, FORGETTING, FINAL = "average_accuracy", "average_forgetting", "final_average"


def conclusion(table: StreamTable, against: str | None = None) -> str:
    """What a table shows; methods are set between backticks.

    Only differences to the reference of the table are tested, in words as in cells.
    """
    reference = table.reference(against)
    family = {} if reference is None else table.family(reference, ACCURACY)
    sentences = [
        warning(table),
        *_best(table, reference, family),
        _least_forgetting(table, reference),
        _constant(table),
        _never_found(table),
        *_upper_bound(table),
        _incomplete(table),
        _about_p(table, family),
        "Variants (@) are not ranked." if table.variants else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def warning(table: StreamTable) -> str:
    """Sentence about settings that differ between the methods; empty if none does."""
    if not table.unequal:
        return ""
    return f"Warning: the methods ran with different settings: {'; '.join(table.unequal)}."


Differences = Mapping[str, PairedDifference | None]
"""Every other method minus the reference."""


def _best(table: StreamTable, reference: str | None, family: Differences) -> list[str]:
    ranked = table.ranked
    if not ranked:
        return []
    best = ranked[0]
    sentences = [f"`{best}` has the highest AvgACC, {_mean(table, best, ACCURACY)}."]
    if len(ranked) == 1:
        return [*sentences, "There is no other method to compare it with."]
    if best == reference:
        return [*sentences, f"The next is `{ranked[1]}`, {_lower(table, family[ranked[1]], -1)}."]
    if ranked[1] != reference:
        sentences.append(f"The next is `{ranked[1]}`, {_mean(table, ranked[1], ACCURACY)}.")
    if reference in ranked:
        place = f"`{reference}` is number {ranked.index(reference) + 1} of {len(ranked)}"
        sentences.append(f"{place}, {_lower(table, family[best], 1)}.")
    return sentences


def _lower(table: StreamTable, found: PairedDifference | None, sign: int) -> str:
    """How much lower a method is than the best: a difference, or with sign -1 its opposite."""
    if found is None:
        return "which has no seed in common with it"
    return f"{_size(found, sign)} lower{_noise(table, found)}"


def _least_forgetting(table: StreamTable, reference: str | None) -> str:
    means = {m: found.mean for m in table.ranked if (found := table.mean(m, FORGETTING))}
    if len(means) < 2:
        return ""
    least = sorted(table.best(METRICS[FORGETTING]))
    names = " and ".join(f"`{method}`" for method in least)
    verb = "forgets" if len(least) == 1 else "forget"
    sentence = f"{names} {verb} least, AvgF {format_score(means[least[0]])}"
    if chance := table.mean(least[0], "forgetting_by_chance"):
        sentence += f" ({format_score(chance.mean)} by chance)"
    if reference in means and reference not in least:
        more = table.family(reference, FORGETTING)[least[0]]
        if more is not None:
            sentence += f"; `{reference}` forgets {_size(more, -1)} more{_noise(table, more)}"
    return f"{sentence}."


def _constant(table: StreamTable) -> str:
    """What the constant answer gives, and which methods are no better."""
    score = table.constant[FINAL]
    assert score is not None
    below = [
        f"`{method}`"
        for method in table.methods
        if (found := table.mean(method, FINAL)) and found.mean <= score
    ]
    sentence = (
        f"Always answering '{table.constant_class}' gives a final average of {format_score(score)}"
    )
    return f"{sentence}; no better: {', '.join(below)}." if below else f"{sentence}."


def _never_found(table: StreamTable) -> str:
    """Methods that never find a class, whatever the seed."""
    found = [
        f"`{method}` never finds {', '.join(map(repr, missed))}"
        for method in table.methods
        if (missed := table.never_found(method))
    ]
    return f"{'; '.join(found)}." if found else ""


def _upper_bound(table: StreamTable) -> list[str]:
    bounds = [method for method in table.methods if sees_all_domains(method)]
    if not bounds:
        return []
    means = ", ".join(f"`{method}` {_mean(table, method, ACCURACY)}" for method in bounds)
    sentences = [f"With the images of all domains so far, as an upper bound: {means}."]
    place = table.methods.index(bounds[0])
    above = [f"`{m}`" for m in table.ranked if table.methods.index(m) < place]
    if above:
        sentences.append(
            f"{', '.join(above)} did better than this bound, which may be undertrained."
        )
    return sentences


def _incomplete(table: StreamTable) -> str:
    few = [
        f"`{method}` ({plural(len(table.seeds(method)), 'seed')}, "
        f"AvgACC {_mean(table, method, ACCURACY)})"
        for method in table.incomplete
    ]
    return f"Not ranked, with fewer seeds than the others: {', '.join(few)}." if few else ""


def _mean(table: StreamTable, method: str, metric: str) -> str:
    found = table.mean(method, metric)
    return format_score(found.mean if found else None)


def _size(found: PairedDifference, sign: int) -> str:
    """A difference, or with sign -1 its opposite, and its interval."""
    if found.low is None or found.high is None:
        return format_score(sign * found.mean)
    low, high = sorted([sign * found.low, sign * found.high])
    return f"{format_score(sign * found.mean)} ({format_score(low)} to {format_score(high)})"


def _noise(table: StreamTable, found: PairedDifference) -> str:
    """How the difference compares with noise."""
    if found.low is None:
        return f" (noise unknown with {plural(found.count, 'common seed')})"
    if found.p is None:
        return " (the same for every seed, so the noise is unknown)"
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    if found.significant:
        return f", more than {table.noise} ({p})"
    if found.sign:
        return f", which can be chance among so many comparisons ({p})"
    return f", within {table.noise} ({p})"


def _about_p(table: StreamTable, family: Differences) -> str:
    """Which p values the sentences give; empty if they give none."""
    count = sum(found is not None and found.p is not None for found in family.values())
    if not count:
        return ""
    test = "Student's t test, paired by seed"
    if table.answers:
        test = "bootstrap, paired by test image and seed"
    corrected = ", corrected for the comparisons of one method with all others (Holm)"
    return f"P values: {test}{corrected if count > 1 else ''}."
