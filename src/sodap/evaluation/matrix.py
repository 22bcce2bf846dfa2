"""Continual-learning metrics (supplement C) as functions of the result matrix R.

R `[stages, domains]` holds one result per evaluation, usually an accuracy: row i was measured after
stage i + 1, column j belongs to the domain of stage j + 1. T is the number of rows, so an
unfinished run has metrics too. Entries above the diagonal belong to domains not learned yet; they
are ignored and may be NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sodap.errors import SodapError

MEANINGS = {
    "final": "accuracy after the last stage, averaged over the learned domains",
    "AvgACC": "accuracy on the domains learned so far, averaged over the stages",
    "AvgF": "highest accuracy that a domain ever had minus its final accuracy, averaged over all "
    "domains but the last; 0 is best",
    "BWT": "final accuracy of a domain minus its accuracy right after its own stage, averaged over "
    "all domains but the last; negative is a loss",
    "AvgF by chance": "AvgF that a method without forgetting would show on these test images: the "
    "mean with the stages of each patient or image in random order",
    "balanced": "recall after the last stage, averaged over the classes and the learned domains",
    "macro-F1": "F1 after the last stage, averaged over the classes and the learned domains",
    "rarest class": "recall of the class with the fewest test images after the last stage",
}
"""Meaning of the scores, by title."""


def average_accuracy(results: ArrayLike) -> float:
    """AvgACC = 1/T Σ_i 1/i Σ_{j≤i} R_ij: mean over stages of the mean over learned domains."""
    R = _checked(results)
    return float(np.mean([R[i, : i + 1].mean() for i in range(len(R))]))


def average_forgetting(results: ArrayLike) -> float | None:
    """AvgF = 1/(T-1) Σ_{j<T} (max_{i≥j} R_ij - R_Tj), never negative; None after one stage."""
    R = _checked(results)
    last = len(R) - 1
    if last == 0:
        return None
    return float(np.mean([R[j:, j].max() - R[last, j] for j in range(last)]))


def final_average(results: ArrayLike) -> float:
    """1/T Σ_{j≤T} R_Tj: mean over all learned domains after the last stage."""
    R = _checked(results)
    return float(R[-1, : len(R)].mean())


def backward_transfer(results: ArrayLike) -> float | None:
    """BWT = 1/(T-1) Σ_{j<T} (R_Tj - R_jj); None after one stage.

    Negative if later stages cost accuracy. -BWT is often reported as forgetting. It is at most
    AvgF, and equal to it if no domain improves after its own stage.
    """
    R = _checked(results)
    last = len(R) - 1
    if last == 0:
        return None
    return float(np.mean([R[last, j] - R[j, j] for j in range(last)]))


def summary(results: ArrayLike) -> dict[str, float | None]:
    """All metrics of a run by name."""
    return {
        "average_accuracy": average_accuracy(results),
        "average_forgetting": average_forgetting(results),
        "final_average": final_average(results),
        "backward_transfer": backward_transfer(results),
    }


def _checked(results: ArrayLike) -> NDArray[np.float64]:
    R = np.asarray(results, dtype=np.float64)
    if R.ndim != 2 or not 1 <= R.shape[0] <= R.shape[1]:
        raise SodapError(
            "R needs one row per finished stage and one column per domain, "
            f"with at least as many columns as rows, got shape {list(R.shape)}"
        )
    if not np.isfinite(R[np.tril_indices(len(R))]).all():
        raise SodapError("R has no result for a domain that has been learned")
    return R
