"""How it learned: losses and their weights, learning rate, and when each stage stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sodap.formats import format_score, plural
from sodap.reporting.figures import losses as loss_figures
from sodap.reporting.figures.accuracy import BLUE, ORANGE, WIDTH, Row
from sodap.reporting.figures.svg import INK, STYLE
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Facts, Prose, Section, Table
from sodap.reporting.pages.demo_page import TERMS

MOST_POINTS = 600
"""On one line: more than the figure has pixels would only make the page heavy."""


def training_section(run: ShownRun) -> Section:
    return Section("training", "How it learned", list(_blocks(run)))


def _blocks(run: ShownRun) -> Iterator[Block]:
    if not run.log:
        if not run.stages:
            yield Prose("No epoch was finished.", "warning")
        elif any(stage["epochs"] for stage in run.stages):
            yield Prose("There is no log of the epochs.", "note")
        else:
            yield Prose("It learns without epochs.")
        return
    yield losses_drawing(run)
    if all("lr" in row for row in run.log):
        yield Drawing(
            "learning-rate",
            f"Learning rate and validation score of {run.title} in each epoch",
            schedule_figure(run),
            "Above: macro-F1 on the validation images of the domain being learned; the ring is the "
            "epoch that was kept. Below: the learning rate, restarted at every stage.",
            [stops_table(run)],
        )
    else:
        yield stops_table(run)
    terms = dict.fromkeys(term for row in run.log for term in row["losses"])
    known = [(term, TERMS[term]) for term in terms if term in TERMS]
    if known:
        yield Facts(known)


def losses_drawing(run: ShownRun) -> Drawing:
    """Step by step, as in the paper's Fig. 4; epoch by epoch where single steps are not there."""
    traces, why_not = run.steps
    weighed = any(row["weights"] for row in run.log if why_not or traces[row["stage"]].weights)
    bare = loss_figures.unweighed(run.log)
    below = f", and below the weight that was learned for it{bare}" if weighed else ""
    tables = [epochs_table(run.log)]
    if why_not:
        return Drawing(
            "losses",
            f"Losses of {run.title} in each epoch",
            loss_figures.losses(run.log),
            f"Every loss, mean over the images of an epoch{below}. Single steps are not shown: "
            f"{why_not}.",
            tables,
        )
    steps = sum(map(len, traces.values()))
    size = -(-steps // MOST_POINTS)
    point = f"at each of {plural(steps, 'step')}"
    if size > 1:
        point = f"at {plural(steps, 'step')}, each point the mean of {size}"
    return Drawing(
        "losses",
        f"Losses of {run.title} at each step",
        loss_figures.losses_by_step(run.log, traces, size),
        f"Every loss {point}{below}. The dots are means of whole epochs, which the table has; "
        f"every single step is in the run's folder, in `steps`.",
        tables,
    )


def schedule_figure(run: ShownRun) -> Figure:
    rows = run.log
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.0))
        top = figure.add_subplot(2, 1, 1)
        bottom = figure.add_subplot(2, 1, 2, sharex=top)
        for axes, key, colour in ((top, "val_macro_f1", BLUE), (bottom, "lr", ORANGE)):
            _by_stage(axes, rows, key, colour)
        kept = kept_epochs(run)
        top.plot(
            [epoch for epoch, _ in kept],
            [score for _, score in kept],
            "o",
            ms=9,
            mfc="none",
            mec=ORANGE,
            label="kept",
        )
        top.set_ylim(0, 1.05)
        top.set_ylabel("macro-F1")
        bottom.set_ylim(0, max(row["lr"] for row in rows) * 1.1)
        bottom.set_ylabel("learning rate")
        bottom.set_xlabel("epoch, counted over all stages")
    return figure


def _by_stage(axes: Axes, rows: Sequence[Row], key: str, colour: str) -> None:
    """One line a stage, with a thin line between them."""
    for stage in dict.fromkeys(row["stage"] for row in rows):
        points = [(at, row[key]) for at, row in enumerate(rows, 1) if row["stage"] == stage]
        axes.plot(*zip(*points, strict=True), "-o", ms=3, lw=1.4, color=colour)
    for at, (row, following) in enumerate(pairwise(rows), 1):
        if row["stage"] != following["stage"]:
            axes.axvline(at + 0.5, color=INK, alpha=0.25, lw=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=INK, alpha=0.15)


def kept_epochs(run: ShownRun) -> list[tuple[int, float]]:
    """Where each finished stage had its best epoch: counted over all stages, and its score."""
    best = {stage["stage"]: stage["best_epoch"] for stage in run.stages}
    return [
        (at, row["val_macro_f1"])
        for at, row in enumerate(run.log, 1)
        if best.get(row["stage"]) == row["epoch"]
    ]


def epochs_table(rows: Sequence[Row]) -> Table:
    terms = list(dict.fromkeys(term for row in rows for term in row["losses"]))
    weighed = list(dict.fromkeys(term for row in rows for term in row["weights"]))
    found: list[Sequence[str | Cell]] = []
    for row in rows:
        losses = [_number(row["losses"].get(term), 4) for term in terms]
        weights = [_number(row["weights"].get(term), 3) for term in weighed]
        found.append(
            [
                f"{row['stage']} {row['domain']}, {row['epoch']}",
                *losses,
                *weights,
                _number(row.get("lr"), 6),
                _number(row.get("val_macro_f1"), 3),
            ]
        )
    heads = [*terms, *(f"weight of {term}" for term in weighed), "learning rate", "val macro-F1"]
    return Table("Every epoch", ["Stage, epoch", *heads], found)


def stops_table(run: ShownRun) -> Table:
    training = run.record["config"].get("training", {})
    rows: list[Sequence[str | Cell]] = []
    for stage in run.stages:
        epochs, best = stage["epochs"], stage.get("best_epoch", 0)
        rows.append(
            [
                f"{stage['stage']} {stage['domain']}",
                Cell(str(epochs), epochs),
                Cell(str(best), best),
                Cell(format_score(stage.get("best_val_macro_f1")), stage.get("best_val_macro_f1")),
                why_stopped(epochs, training.get("epochs")),
            ]
        )
    return Table(
        "When each stage stopped",
        ["Stage", "Epochs", "Best epoch", "Best validation macro-F1", "Why it stopped"],
        rows,
    )


def why_stopped(epochs: int, most: int | None) -> str:
    if not epochs:
        return "solved in closed form"
    if most is None:
        return "not recorded"
    return "all epochs done" if epochs >= most else "no better for a while (early stop)"


def _number(value: float | None, digits: int) -> Cell:
    return Cell("–" if value is None else f"{value:.{digits}g}", value)
