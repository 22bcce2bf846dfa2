"""Metrics and statistics, as pure functions.

An evaluation gives a confusion matrix, and a run gives a matrix R of such results: one row per
finished stage, one column per domain (supplement C).
"""

from sodap.evaluation.answers import DomainAnswers, rarest_class, scores
from sodap.evaluation.bootstrap import bootstrap_difference, mixtures, resampled
from sodap.evaluation.calibration import Reliability, reliability
from sodap.evaluation.chance import forgetting_by_chance
from sodap.evaluation.comparison import (
    MIN_SEEDS,
    PairedDifference,
    SeedMean,
    holm,
    mean_over_seeds,
    paired_difference,
)
from sodap.evaluation.composition import Effects, effects, mean_effects
from sodap.evaluation.confusion import (
    accuracy,
    balanced_accuracy,
    confusion_matrix,
    macro_f1,
    quadratic_kappa,
    recall_per_class,
)
from sodap.evaluation.constant import constant_answer, constant_confusions
from sodap.evaluation.intervals import KIND, difference_intervals, metric_intervals
from sodap.evaluation.matrix import (
    MEANINGS,
    average_accuracy,
    average_forgetting,
    backward_transfer,
    final_average,
    summary,
)
from sodap.evaluation.proportions import Interval, exact_interval, is_tiny, tiny_tests
from sodap.evaluation.verdict import Verdict, judge

__all__ = [
    "KIND",
    "MEANINGS",
    "MIN_SEEDS",
    "DomainAnswers",
    "Effects",
    "Interval",
    "PairedDifference",
    "Reliability",
    "SeedMean",
    "Verdict",
    "accuracy",
    "average_accuracy",
    "average_forgetting",
    "backward_transfer",
    "balanced_accuracy",
    "bootstrap_difference",
    "confusion_matrix",
    "constant_answer",
    "constant_confusions",
    "difference_intervals",
    "effects",
    "exact_interval",
    "final_average",
    "forgetting_by_chance",
    "holm",
    "is_tiny",
    "judge",
    "macro_f1",
    "mean_effects",
    "mean_over_seeds",
    "metric_intervals",
    "mixtures",
    "paired_difference",
    "quadratic_kappa",
    "rarest_class",
    "recall_per_class",
    "reliability",
    "resampled",
    "scores",
    "summary",
    "tiny_tests",
]
