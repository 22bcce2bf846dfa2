"""The result of a table in a few sentences: which method is best, and is that more than noise?"""

from __future__ import annotations

from sodap.evaluation import PairedDifference
from sodap.formats import format_score, plural
from sodap.reporting.tables.metrics import METRICS
from sodap.reporting.tables.stream_table import MAIN, StreamTable, sees_all_domains

ACCURACY, FORGETTING, FINAL = "average_accuracy", "average_forgetting", "final_average"


def conclusion(table: StreamTable) -> str:
    """What a table shows; methods are set between backticks."""
    ranked = table.ranked
    found = table.differences([(ranked[0], other) for other in ranked[1:]], ACCURACY)
    to_best = dict(zip(ranked[1:], found, strict=True))
    sentences = [
        warning(table),
        *_best(table, to_best),
        _least_forgetting(table),
        _constant(table),
        _never_found(table),
        *_upper_bound(table),
        _incomplete(table),
        _about_p(to_best),
        "Variants (@) are not ranked." if table.variants else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def warning(table: StreamTable) -> str:
    """Sentence about settings that differ between the methods; empty if none does."""
    if not table.unequal:
        return ""
    return f"Warning: the methods ran with different settings: {'; '.join(table.unequal)}."


Differences = dict[str, PairedDifference | None]
"""Best method minus each other ranked method."""


def _best(table: StreamTable, to_best: Differences) -> list[str]:
    ranked = table.ranked
    if not ranked:
        return []
    best = f"`{ranked[0]}` has the highest AvgACC, {_mean(table, ranked[0], ACCURACY)}."
    if len(ranked) == 1:
        return [best, "There is no other method to compare it with."]
    sentences = [best, f"The next is `{ranked[1]}`, {_lower(to_best[ranked[1]])}."]
    if MAIN in ranked[2:]:
        place = f"`{MAIN}` is number {ranked.index(MAIN) + 1} of {len(ranked)}"
        sentences.append(f"{place}, {_lower(to_best[MAIN])}.")
    return sentences


def _lower(found: PairedDifference | None) -> str:
    """How much lower a method is than the best."""
    if found is None:
        return "which has no seed in common with it"
    return f"{_size(found)} lower{_noise(found)}"


def _least_forgetting(table: StreamTable) -> str:
    means = {m: found.mean for m in table.ranked if (found := table.mean(m, FORGETTING))}
    if len(means) < 2:
        return ""
    least = sorted(table.best(METRICS[FORGETTING]))
    names = " and ".join(f"`{method}`" for method in least)
    verb = "forgets" if len(least) == 1 else "forget"
    sentence = f"{names} {verb} least, AvgF {format_score(means[least[0]])}"
    if MAIN in means and MAIN not in least:
        others = [method for method in means if method != MAIN]
        differences = table.differences([(MAIN, other) for other in others], FORGETTING)
        more = differences[others.index(least[0])]
        if more is not None:
            sentence += f"; `{MAIN}` forgets {_size(more)} more{_noise(more)}"
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


def _size(found: PairedDifference) -> str:
    if found.low is None or found.high is None:
        return format_score(found.mean)
    return f"{format_score(found.mean)} ({found.low:.3f} to {found.high:.3f})"


def _noise(found: PairedDifference) -> str:
    """How the difference compares with the noise between seeds."""
    if found.low is None:
        return f" (noise unknown with {plural(found.count, 'common seed')})"
    if found.p is None:
        return " (the same for every seed, so the noise is unknown)"
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    if found.significant:
        return f", more than the noise between seeds ({p})"
    if found.sign:
        return f", which can be chance among so many comparisons ({p})"
    return f", within the noise between seeds ({p})"


def _about_p(to_best: Differences) -> str:
    """Which p values the sentences give; empty if they give none."""
    count = sum(found is not None and found.p is not None for found in to_best.values())
    if not count:
        return ""
    corrected = ", corrected for the comparisons of one method with all others (Holm)"
    return f"P values: Student's t test, paired by seed{corrected if count > 1 else ''}."
