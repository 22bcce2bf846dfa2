"""Labels of the diabetic retinopathy data sets: grades 0 to 4 in three classes."""

from __future__ import annotations

CLASSES = ("Normal", "NPDR", "PDR")

CLASS_OF_GRADE = {"0": "Normal", "1": "NPDR", "2": "NPDR", "3": "NPDR", "4": "PDR"}
"""Grades of the international scale (none, mild, moderate, severe, proliferative) -> class."""

UNGRADABLE = "5"
"""Grade of images whose quality is too poor to grade; they are left out."""
