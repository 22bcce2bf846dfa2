"""Checks of a stream's data before training: counts, duplicates, leakage, unreadable files."""

from sodap.streams.check.checking import check_plan
from sodap.streams.check.page import check_page
from sodap.streams.check.result import CheckResult, Duplicates, ImageRef, Leak

__all__ = ["CheckResult", "Duplicates", "ImageRef", "Leak", "check_page", "check_plan"]
