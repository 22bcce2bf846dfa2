"""Results out: figures and pages that people read."""

from sodap.reporting.figures.accuracy import (
    accuracy_matrix,
    drift,
    forgetting,
    pool_growth,
    samples,
)
from sodap.reporting.figures.losses import losses
from sodap.reporting.figures.svg import to_svg
from sodap.reporting.pages.demo_page import demo_page
from sodap.reporting.tables.conclusion import verdict
from sodap.reporting.tables.formats import as_csv, as_latex, as_markdown, as_text
from sodap.reporting.tables.stream_table import (
    METRICS,
    StreamTable,
    find_metrics,
    find_records,
    make_tables,
)

__all__ = [
    "METRICS",
    "StreamTable",
    "accuracy_matrix",
    "as_csv",
    "as_latex",
    "as_markdown",
    "as_text",
    "demo_page",
    "drift",
    "find_metrics",
    "find_records",
    "forgetting",
    "losses",
    "make_tables",
    "pool_growth",
    "samples",
    "to_svg",
    "verdict",
]
