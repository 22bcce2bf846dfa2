"""Reports of runs: figures, tables and HTML pages."""

from sodap.reporting.loading import LoadedRun, load_runs, with_composition, with_stream
from sodap.reporting.pages.report import write_report
from sodap.reporting.tables.conclusion import conclusion
from sodap.reporting.tables.formats import as_csv, as_latex, as_markdown, as_text
from sodap.reporting.tables.metrics import METRICS, find_metrics
from sodap.reporting.tables.results import Result, load_results
from sodap.reporting.tables.stream_table import StreamTable, make_tables

__all__ = [
    "METRICS",
    "LoadedRun",
    "Result",
    "StreamTable",
    "as_csv",
    "as_latex",
    "as_markdown",
    "as_text",
    "conclusion",
    "find_metrics",
    "load_results",
    "load_runs",
    "make_tables",
    "with_composition",
    "with_stream",
    "write_report",
]
