"""What the data sets of skin lesions share: melanoma against all else."""

from __future__ import annotations

CLASSES = ("benign", "malignant")

MELANOMA = {"0": "benign", "1": "malignant"}
"""For data sets that write yes or no."""
