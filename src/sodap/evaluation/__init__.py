"""From predictions to the numbers of a run, as pure functions.

One evaluation is a confusion matrix; one run is a matrix R of such results, a row for each
finished stage and a column for each domain (supplement C).
"""

from sodap.evaluation.calibration import Reliability, reliability
from sodap.evaluation.comparison import FEWEST, Difference, Spread, paired_bootstrap, spread
from sodap.evaluation.composition import Effects, effects, mean_effects
from sodap.evaluation.confusion import (
    accuracy,
    confusion_matrix,
    macro_f1,
    quadratic_kappa,
    recall_per_class,
)
from sodap.evaluation.constant import constant_confusions
from sodap.evaluation.matrix import (
    average_accuracy,
    average_forgetting,
    backward_transfer,
    final_average,
    summary,
)
from sodap.evaluation.resampling import (
    Interval,
    difference_intervals,
    draw_results,
    metric_intervals,
)

__all__ = [
    "FEWEST",
    "Difference",
    "Effects",
    "Interval",
    "Reliability",
    "Spread",
    "accuracy",
    "average_accuracy",
    "average_forgetting",
    "backward_transfer",
    "confusion_matrix",
    "constant_confusions",
    "difference_intervals",
    "draw_results",
    "effects",
    "final_average",
    "macro_f1",
    "mean_effects",
    "metric_intervals",
    "paired_bootstrap",
    "quadratic_kappa",
    "recall_per_class",
    "reliability",
    "spread",
    "summary",
]
