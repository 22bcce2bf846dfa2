"""One page that shows what methods made of the same stream; it needs no other file, no network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from sodap.errors import SodapError
from sodap.formats import format_score
from sodap.reporting.figures import accuracy as figures
from sodap.reporting.figures import losses as loss_figures
from sodap.reporting.figures.accuracy import Record, Row
from sodap.reporting.figures.svg import METHOD_COLOURS, to_svg
from sodap.reporting.pages.lead import lead
from sodap.streams import Stream

METRICS = (
    ("AvgACC", "accuracy", "average_accuracy",
     "accuracy on the domains learned so far, averaged over the stages"),
    ("AvgF", "accuracy", "average_forgetting",
     "the best accuracy a domain ever had minus the one it ends with, averaged over all domains "
     "but the last; 0 is best"),
    ("Final accuracy", "accuracy", "final_average",
     "accuracy after the last stage, averaged over the domains learned"),
    ("BWT", "accuracy", "backward_transfer",
     "the accuracy a domain ends with minus the one right after it was learned, averaged over all "
     "domains but the last; below 0 is loss"),
    ("Final macro-F1", "macro_f1", "final_average",
     "F1 after the last stage, averaged over classes and domains learned"),
)  # fmt: skip
"""What it is called, which measure and metric of the record it is, and what it means."""

TERMS = {
    "ce": "cross-entropy: name the class of the new images",
    "div": "diversity: prompts that are used together should differ",
    "norm": "prompts should stay small",
    "real": "distillation: on new images, answer as the classifier of the stage before",
    "pseudo": "distillation: do so on features drawn from the statistics of old classes, too",
}
"""The losses of the methods that this package brings."""


def demo_page(
    stream: Stream, records: Mapping[str, Record], logs: Mapping[str, Sequence[Row]]
) -> str:
    """The page as HTML. The first record is the one the page is about, the others compare."""
    for name, record in records.items():
        if not record["R"]["accuracy"]:
            raise SodapError(f"{name} has not learned a domain yet; there is nothing to show")
    main, record = next(iter(records.items()))
    pages = Environment(
        loader=PackageLoader("sodap.reporting.pages"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    pages.filters |= {"shown": format_score, "command": shlex.join, "yaml": _yaml}
    return pages.get_template("demo.html.j2").render(
        stream=stream,
        main=main,
        records=records,
        colours=dict(zip(records, cycle(METHOD_COLOURS), strict=False)),
        lead=lead(records),
        metrics=METRICS,
        samples=_drawn(figures.samples(stream), f"Test images of the domains of {stream.name}"),
        matrices={
            name: _drawn(
                figures.accuracy_matrix(each, name), f"Accuracy of {name} after each stage"
            )
            for name, each in records.items()
        },
        forgetting=_drawn(
            figures.forgetting(records), f"Accuracy over the stages: {', '.join(records)}"
        ),
        growth=dict(_growth(main, record)),
        losses=_drawn(loss_figures.losses(logs[main]), f"Losses of {main} in each epoch"),
        terms={term: TERMS.get(term, "") for row in logs[main] for term in row["losses"]},
        weighed=any(row["weights"] for row in logs[main]),
        unweighed=loss_figures.unweighed(logs[main]),
    )


def _growth(name: str, record: Record) -> Iterator[tuple[str, Markup]]:
    """Figures of the pool and of drift, as far as the method has such things."""
    if all("pool" in stage["ended"] for stage in record["stages"]):
        yield "pool", _drawn(figures.pool_growth(record), f"Prompts of {name} after each stage")
    if any("drift" in stage["begun"] for stage in record["stages"]):
        yield "drift", _drawn(figures.drift(record), f"Drift that {name} met in each stage")


def _drawn(figure: Figure, title: str) -> Markup:
    return Markup(to_svg(figure, title))


def _yaml(config: Mapping[str, Any]) -> str:
    """As in a recipe."""
    return yaml.safe_dump(config, sort_keys=False)
