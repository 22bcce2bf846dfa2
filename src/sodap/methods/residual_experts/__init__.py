"""Residual experts: a closed-form base for all domains and a low-rank expert for each."""

from sodap.methods.residual_experts.config import ResidualExpertsConfig
from sodap.methods.residual_experts.method import ResidualExperts

__all__ = ["ResidualExperts", "ResidualExpertsConfig"]
