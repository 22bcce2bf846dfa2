"""From predictions to the numbers of a run, as pure functions.

One evaluation is a confusion matrix; one run is a matrix R of such results, a row for each
finished stage and a column for each domain (supplement C).
"""

from sodap.evaluation.confusion import (
    accuracy,
    confusion_matrix,
    macro_f1,
    quadratic_kappa,
    recall_per_class,
)
from sodap.evaluation.matrix import (
    average_accuracy,
    average_forgetting,
    backward_transfer,
    final_average,
    summary,
)

__all__ = [
    "accuracy",
    "average_accuracy",
    "average_forgetting",
    "backward_transfer",
    "confusion_matrix",
    "final_average",
    "macro_f1",
    "quadratic_kappa",
    "recall_per_class",
    "summary",
]
