"""The sections of a report, one file each: from what a run left to what a page shows."""

from __future__ import annotations

from sodap.reporting.loading import ShownRun
from sodap.reporting.pages.blocks import Section
from sodap.reporting.pages.composition import composition_section
from sodap.reporting.pages.cost import cost_section
from sodap.reporting.pages.growth import growth_section
from sodap.reporting.pages.origin import origin_section, troubles_section
from sodap.reporting.pages.results import results_section
from sodap.reporting.pages.routing import routing_section
from sodap.reporting.pages.stream import stream_section
from sodap.reporting.pages.training import training_section

__all__ = ["sections_of"]

_ALL = (
    results_section,
    stream_section,
    growth_section,
    routing_section,
    training_section,
    composition_section,
    cost_section,
    troubles_section,
    origin_section,
)


def sections_of(run: ShownRun) -> list[Section]:
    """All sections that have something to say about a run, in the order of the page."""
    return [section for make in _ALL if (section := make(run)) is not None]
