"""Which part forgets: the representation of one stage under the head of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sodap.evaluation import effects, mean_effects
from sodap.formats import format_difference, format_score
from sodap.reporting.figures.accuracy import WIDTH
from sodap.reporting.figures.heat_maps import number_grid
from sodap.reporting.figures.svg import METHOD_COLOURS, STYLE
from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Block, Cell, Drawing, Prose, Section, Table

MOST_PANELS = 12

PARTS = ("representation", "classifier", "interaction", "both")


def composition_section(run: ShownRun) -> Section:
    return Section("composition", "Which part forgets", list(_blocks(run)))


def _blocks(run: ShownRun) -> Iterator[Block]:
    yield Prose(
        "A model is cut in two: B, everything before the head, and C, the head. Every B of a stage "
        "is tested with every C of a stage. The difference to the pair of the domain's own stage "
        "says which part lost it, with one caveat: parts that never learned together may not fit, "
        "and that is counted as a loss, too."
    )
    if run.composition is None:
        if run.no_composition:
            yield Prose(f"It was not measured: {run.no_composition}.", "note")
        else:
            yield Prose(
                "It was not measured. `sodap report RUN --compose` does it: one pass over all test "
                "images for each stage.",
                "note",
            )
        return
    if run.composition.get("deviation", 0) > 0:
        missed = run.composition["deviation"]
        yield Prose(
            f"Measured on another device than the run itself: where both have tested the same "
            f"model, they differ by up to {missed:.3f}.",
            "note",
        )
    yield Drawing(
        "cross-composition",
        f"Accuracy of every representation with every head of {run.title}",
        composition_figure(run),
        "A panel a domain. Rows: the stage of the representation B. Columns: the stage of the head "
        "C. The diagonal is R.",
        list(composition_tables(run)),
        wide=len(run.domains) > 3,
    )
    if len(run.composition["accuracy"]) > 1:
        yield Drawing(
            "forgetting-parts",
            f"What representation and head of {run.title} cost each old domain",
            effects_figure(run),
            "From a domain's own stage to the last: what the new representation changes under the "
            "old head, what the new head changes on the old representation, what they do together "
            "beyond that, and what really happened. Below 0 is loss.",
            [effects_table(run)],
        )
    yield Drawing(
        "probes",
        f"Accuracy of fresh linear heads on the representations of {run.title}",
        probe_figure(run),
        "The control: a fresh linear head, fitted to the domain's own training images (left) or to "
        "those of all domains (right) on the representation of each stage. What it finds, the "
        "representation has not lost.",
        [probe_table(run)],
    )


def composition_figure(run: ShownRun) -> Figure:
    assert run.composition is not None
    A = np.array(run.composition["accuracy"])  # [T, T, D]
    stages, domains = len(A), min(A.shape[2], MOST_PANELS)
    across = min(domains, 4 if domains > 3 else 3)
    down = -(-domains // across)
    side = max(1.5, 0.5 + 0.36 * stages)
    names_of = ([f"B{i}" for i in range(1, stages + 1)], [f"C{j}" for j in range(1, stages + 1)])
    with rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH, side * across + 0.3), (side + 0.35) * down))
        for domain in range(domains):
            axes = figure.add_subplot(down, across, domain + 1)
            number_grid(axes, A[:, :, domain], *names_of)
            axes.set_title(run.domains[domain], size=9)
    return figure


def composition_tables(run: ShownRun) -> Iterator[Table]:
    assert run.composition is not None
    A = np.array(run.composition["accuracy"])
    for domain in range(A.shape[2]):
        yield Table(
            f"{run.domains[domain]}: accuracy of B (rows) with C (columns)",
            ["", *(f"C{j + 1} {run.domains[j]}" for j in range(len(A)))],
            [
                [
                    f"B{i + 1} {run.domains[i]}",
                    *(
                        Cell(format_score(v), float(v), bold=i == j)
                        for j, v in enumerate(A[i, :, domain])
                    ),
                ]
                for i in range(len(A))
            ],
        )


def effects_figure(run: ShownRun) -> Figure:
    assert run.composition is not None
    found = effects(run.composition["accuracy"])
    places = np.arange(len(found))
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.0))
        axes = figure.add_subplot()
        for index, (part, colour) in enumerate(zip(PARTS, METHOD_COLOURS, strict=False)):
            values = [getattr(each, part) for each in found]
            axes.bar(places + (index - 1.5) * 0.2, values, 0.18, color=colour, label=part)
        axes.axhline(0, color="#010101", lw=0.8)
        axes.set_xticks(places, labels=[run.domains[each.domain] for each in found])
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel("change of accuracy")
        figure.legend(loc="outside upper center", ncols=4)
    return figure


def effects_table(run: ShownRun) -> Table:
    assert run.composition is not None
    found = effects(run.composition["accuracy"])
    rows: list[Sequence[str | Cell]] = []
    for each in found:
        cells = [
            Cell(format_difference(getattr(each, part)), getattr(each, part)) for part in PARTS
        ]
        rows.append([run.domains[each.domain], Cell(format_score(each.then), each.then), *cells])
    mean = mean_effects(found)
    if mean is not None:
        cells = [Cell(format_difference(mean[part]), mean[part], bold=True) for part in PARTS]
        rows.append(["mean", "", *cells])
    return Table(
        "From a domain's own stage to the last",
        ["Domain", "Accuracy then", *PARTS],
        rows,
    )


def probe_figure(run: ShownRun) -> Figure:
    assert run.composition is not None
    probe = run.composition["probe"]
    stages = len(probe["own"])
    names = run.domains[: len(probe["own"][0])]
    rows = [f"B{i}" for i in range(1, stages + 1)]
    with rc_context(STYLE):
        figure = Figure(figsize=(max(WIDTH, 1.0 + 0.9 * len(names)), 1.3 + 0.3 * stages))
        for place, (kind, words) in enumerate((("own", "own domain"), ("joint", "all domains")), 1):
            axes = figure.add_subplot(1, 2, place)
            number_grid(axes, probe[kind], rows, names, room=24)
            axes.set_title(f"fitted to {words}", size=9)
    return figure


def probe_table(run: ShownRun) -> Table:
    assert run.composition is not None
    probe = run.composition["probe"]
    names = run.domains[: len(probe["own"][0])]
    return Table(
        "Accuracy of fresh linear heads (ridge regression)",
        ["Representation", *(f"{name}, {fit}" for fit in ("own", "all") for name in names)],
        [
            [f"B{i} {run.domains[i - 1]}", *(Cell(format_score(v), v) for v in [*own, *joint])]
            for i, (own, joint) in enumerate(zip(probe["own"], probe["joint"], strict=True), 1)
        ],
    )
