"""Confusion matrices `[C, C]` (rows: true class, columns: prediction) and metrics of them.

A metric that is not defined is None, never NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sodap.errors import SodapError

if TYPE_CHECKING:
    from torch import Tensor


def confusion_matrix(
    labels: Tensor | ArrayLike, predictions: Tensor | ArrayLike, classes: int
) -> NDArray[np.int64]:
    """Confusion matrix of labels `[N]` and predictions `[N]`."""
    truth, predicted = _indices(labels, classes), _indices(predictions, classes)
    if truth.shape != predicted.shape:
        raise SodapError(f"cannot compare {len(truth)} labels with {len(predicted)} predictions")
    counts = np.bincount(truth * classes + predicted, minlength=classes**2)
    return counts.reshape(classes, classes).astype(np.int64)


def accuracy(confusion: NDArray[np.int64]) -> float:
    """Share of the images on the diagonal."""
    return float(np.trace(confusion) / _total(confusion))


def recall_per_class(confusion: NDArray[np.int64]) -> list[float | None]:
    """Recall of each class; None for a class without images."""
    _total(confusion)
    return [float(row[c] / row.sum()) if row.any() else None for c, row in enumerate(confusion)]


def balanced_accuracy(confusion: NDArray[np.int64]) -> float:
    """Mean recall over the classes that have images."""
    return float(np.mean([each for each in recall_per_class(confusion) if each is not None]))


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Mean F1 = 2 TP / (2 TP + FP + FN) over the classes that occur as label or prediction."""
    _total(confusion)
    occurrences = confusion.sum(axis=0) + confusion.sum(axis=1)  # 2 TP + FP + FN
    occurs = occurrences > 0
    return float(np.mean(2 * np.diagonal(confusion)[occurs] / occurrences[occurs]))


def quadratic_kappa(confusion: NDArray[np.int64]) -> float:
    """Cohen's kappa for ordered classes, with quadratic weights.

    1 is perfect, 0 is chance. If all labels and predictions are the same class, kappa is 0/0 and
    counts as 1.
    """
    total = _total(confusion)
    grades = np.arange(len(confusion))
    cost = (grades[:, None] - grades[None, :]) ** 2
    by_chance = np.outer(confusion.sum(axis=1), confusion.sum(axis=0)) / total
    expected = float((cost * by_chance).sum())
    return 1.0 - float((cost * confusion).sum()) / expected if expected > 0 else 1.0


def _indices(values: Tensor | ArrayLike, classes: int) -> NDArray[np.int64]:
    array = np.asarray(values.cpu() if hasattr(values, "cpu") else values)  # without torch
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SodapError(
            f"labels and predictions must be class indices [N], got {array.dtype} "
            f"{list(array.shape)}"
        )
    if array.size and (array.min() < 0 or array.max() >= classes):
        raise SodapError(
            f"class indices must lie in 0..{classes - 1}, got {array.min()}..{array.max()}"
        )
    return array.astype(np.int64)


def _total(confusion: NDArray[np.int64]) -> int:
    """Number of images; an empty matrix is an error."""
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise SodapError(f"a confusion matrix must be square, got shape {list(confusion.shape)}")
    total = int(confusion.sum())
    if total == 0:
        raise SodapError("the confusion matrix is empty: no image was evaluated")
    return total
