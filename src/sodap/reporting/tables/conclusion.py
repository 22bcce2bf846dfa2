"""Who wins on a stream, by how much, and whether the seeds can tell, in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping

from sodap.evaluation import Difference
from sodap.formats import plural
from sodap.reporting.tables.significance import Claim, claims
from sodap.reporting.tables.stream_table import MAIN, METRICS, StreamTable, is_bound

ACCURACY, FORGETTING = "average_accuracy", "average_forgetting"


def verdict(table: StreamTable) -> str:
    ranked = table.contenders
    to_the_first = dict(
        zip(ranked[1:], claims([(table, ranked[0], m, ACCURACY) for m in ranked[1:]]), strict=True)
    )
    sentences = [
        warning(table),
        _winner(table, to_the_first),
        _of_main(table, to_the_first),
        _forgetting(table),
        _constant(table),
        _bound(table),
        _incomplete(table),
        _of_many(to_the_first),
        "Variants (@) are not ranked." if table.variants else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def warning(table: StreamTable) -> str:
    """That the rows cannot be compared as they are, and in what they differ; else nothing."""
    if not table.unequal:
        return ""
    return f"Warning: not on equal terms: {'; '.join(table.unequal)}."


def _winner(table: StreamTable, behind: Mapping[str, Claim | None]) -> str:
    ranked = table.contenders
    if not ranked:
        return ""
    first = f"`{ranked[0]}` has the highest AvgACC, {_mean(table, ranked[0], ACCURACY)}"
    if len(ranked) == 1:
        return f"{first}; there is nothing to compare it with."
    claim = behind[ranked[1]]
    if claim is None:
        return f"{first}, and `{ranked[1]}` is next; they share no seed."
    return f"{first}. The next, `{ranked[1]}`, is {_size(claim.gap)} behind{_trust(claim)}."


def _of_main(table: StreamTable, behind: Mapping[str, Claim | None]) -> str:
    ranked = table.contenders
    if MAIN not in ranked[1:]:
        return ""
    place = f"`{MAIN}` is number {ranked.index(MAIN) + 1} of {len(ranked)}"
    claim = behind[MAIN]
    if claim is None:
        return f"{place}."
    return f"{place}, {_size(claim.gap)} behind `{ranked[0]}`{_trust(claim)}."


def _forgetting(table: StreamTable) -> str:
    """Not forgetting is easy for whoever learns little, so it is told after the accuracy."""
    forgot = {m: table.spread(m, FORGETTING) for m in table.contenders}
    known = {method: each.mean for method, each in forgot.items() if each is not None}
    if len(known) < 2:
        return ""
    least = sorted(table.best(METRICS[FORGETTING]))
    names = " and ".join(f"`{method}`" for method in least)
    told = f"{names} forget{'s' * (len(least) == 1)} least, AvgF {known[least[0]]:.3f}"
    if MAIN not in known or MAIN in least:
        return f"{told}."
    others = [method for method in known if method != MAIN]
    found = claims([(table, MAIN, other, FORGETTING) for other in others])
    claim = found[others.index(least[0])]
    if claim is None:
        return f"{told}."
    return f"{told}; `{MAIN}` forgets {_size(claim.gap)} more{_trust(claim)}."


def _constant(table: StreamTable) -> str:
    bar = table.constant[ACCURACY]
    assert bar is not None
    below = []
    for method in table.methods:
        found = table.spread(method, ACCURACY)
        if found is not None and found.mean <= bar:
            below.append(f"`{method}`")
    told = f"Always answering '{table.answer}' has an AvgACC of {bar:.3f}"
    if not below:
        return f"{told}, less than every method here."
    return f"{told}; no better {'is' if len(below) == 1 else 'are'} {', '.join(below)}."


def _bound(table: StreamTable) -> str:
    bounds = [method for method in table.methods if is_bound(method)]
    if not bounds:
        return ""
    told = ", ".join(f"`{method}` {_mean(table, method, ACCURACY)}" for method in bounds)
    sentence = f"Given the images of all domains so far, which is a bound and no rival: {told}."
    above = [m for m in table.contenders if table.methods.index(m) < table.methods.index(bounds[0])]
    if above:
        names = ", ".join(f"`{method}`" for method in above)
        sentence += f" Here it bounds nothing: {names} did better, so it may be undertrained."
    return sentence


def _incomplete(table: StreamTable) -> str:
    few = [
        f"`{method}` ({plural(len(table.seeds(method)), 'seed')}, "
        f"AvgACC {_mean(table, method, ACCURACY)})"
        for method in table.incomplete
    ]
    return f"Left out of the ranking for having fewer seeds: {', '.join(few)}." if few else ""


def _mean(table: StreamTable, method: str, metric: str) -> str:
    found = table.spread(method, metric)
    return "–" if found is None else f"{found.mean:.3f}"


def _size(gap: Difference) -> str:
    if gap.low is None or gap.high is None:
        return f"{gap.mean:.3f}"
    return f"{gap.mean:.3f} ({gap.low:.3f} to {gap.high:.3f})"


def _trust(claim: Claim) -> str:
    if claim.gap.low is None:
        few = "one seed, which tells" if claim.gap.count == 1 else "two seeds, which tell"
        return f", by {few} nothing of the noise"
    if claim.p is None:
        return ", the same for every seed, so that seeds tell nothing of the noise"
    p = f"(p {_p(claim.p)})"
    if claim.certain:
        return f", which is more than the noise between seeds {p}"
    if claim.gap.sign:
        return f", which can be chance among so many comparisons {p}"
    return f", which is within the noise between seeds {p}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _of_many(behind: Mapping[str, Claim | None]) -> str:
    """What a p is, wherever there is one."""
    count = sum(claim is not None and claim.p is not None for claim in behind.values())
    if not count:
        return ""
    held = " and corrected for the comparisons of one method with all others (Holm)"
    return f"Each p is Student's, of differences paired by seed{held if count > 1 else ''}."
