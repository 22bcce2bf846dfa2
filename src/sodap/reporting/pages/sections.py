"""The sections of the page about one run."""

from __future__ import annotations

from sodap.reporting.loading import LoadedRun
from sodap.reporting.pages.accuracy import accuracy_section
from sodap.reporting.pages.blocks import Section
from sodap.reporting.pages.composition import composition_section
from sodap.reporting.pages.cost import cost_section
from sodap.reporting.pages.origin import origin_section, problems_section
from sodap.reporting.pages.pool import pool_section
from sodap.reporting.pages.probes import probes_section
from sodap.reporting.pages.routing import routing_section
from sodap.reporting.pages.stream import stream_section
from sodap.reporting.pages.training import training_section

_SECTIONS = (
    accuracy_section,
    stream_section,
    pool_section,
    routing_section,
    probes_section,
    training_section,
    composition_section,
    cost_section,
    problems_section,
    origin_section,
)


def run_sections(run: LoadedRun) -> list[Section]:
    """All sections of a run, in order; sections that do not apply to its method are left out."""
    return [section for make in _SECTIONS if (section := make(run)) is not None]
