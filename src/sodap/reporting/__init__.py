"""Results out: figures and pages that people read."""

from sodap.reporting.demo_page import demo_page
from sodap.reporting.figures import accuracy_matrix, drift, forgetting, pool_growth, samples
from sodap.reporting.formats import as_csv, as_latex, as_markdown, as_text
from sodap.reporting.loss_figures import losses
from sodap.reporting.svg import to_svg
from sodap.reporting.tables import METRICS, StreamTable, find_metrics, find_records, make_tables
from sodap.reporting.verdict import verdict

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
