"""Results out: figures and pages that people read."""

from sodap.reporting.demo_page import demo_page
from sodap.reporting.figures import (
    accuracy_matrix,
    drift,
    forgetting,
    losses,
    pool_growth,
    samples,
)
from sodap.reporting.svg import to_svg

__all__ = [
    "accuracy_matrix",
    "demo_page",
    "drift",
    "forgetting",
    "losses",
    "pool_growth",
    "samples",
    "to_svg",
]
