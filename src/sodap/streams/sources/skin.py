"""Labels of the skin lesion data sets: melanoma against everything else."""

from __future__ import annotations

CLASSES = ("benign", "malignant")

CLASS_OF_TARGET = {"0": "benign", "1": "malignant"}
"""Melanoma no or yes -> class."""
