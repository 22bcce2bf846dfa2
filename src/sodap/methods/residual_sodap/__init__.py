"""Residual SODAP, the paper's method."""

from sodap.methods.residual_sodap.config import ResidualSodapConfig
from sodap.methods.residual_sodap.method import ResidualSodap

__all__ = ["ResidualSodap", "ResidualSodapConfig"]
