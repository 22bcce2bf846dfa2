"""What the data sets of diabetic retinopathy share: the grades 0 to 4 in three classes."""

from __future__ import annotations

CLASSES = ("Normal", "NPDR", "PDR")

STAGES = {"0": "Normal", "1": "NPDR", "2": "NPDR", "3": "NPDR", "4": "PDR"}
"""Grades of the international scale: none; mild, moderate, severe; proliferative."""

UNGRADABLE = "5"
"""Where authors mark images of too poor a quality; they are no items."""
