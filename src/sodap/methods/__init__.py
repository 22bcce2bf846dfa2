"""One file a method, behind one small contract; importing this package registers them all."""

from sodap.methods.base import Asset, Facts, Method, MethodConfig
from sodap.methods.registry import build_method, find_method, method_names, register_method
from sodap.methods.residual_sodap import ResidualSodap
from sodap.methods.residual_sodap_config import ResidualSodapConfig
from sodap.methods.ridge import ProjectedRidge, Ridge
from sodap.methods.sequential import Sequential

__all__ = [
    "Asset",
    "Facts",
    "Method",
    "MethodConfig",
    "ProjectedRidge",
    "ResidualSodap",
    "ResidualSodapConfig",
    "Ridge",
    "Sequential",
    "build_method",
    "find_method",
    "method_names",
    "register_method",
]
