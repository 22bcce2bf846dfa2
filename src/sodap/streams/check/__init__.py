"""What is wrong with a stream's data, before anything is learned from them."""

from sodap.streams.check.checking import check_plan
from sodap.streams.check.page import check_page
from sodap.streams.check.result import CheckResult, Leak, Picture, Twins

__all__ = ["CheckResult", "Leak", "Picture", "Twins", "check_page", "check_plan"]
