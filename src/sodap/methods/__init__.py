"""One file a method, behind one small contract; importing this package registers them all."""

from sodap.methods.base import Asset, Batch, Method, MethodConfig, Observations, StageInfo
from sodap.methods.coda_prompt import CodaPrompt
from sodap.methods.der import Der
from sodap.methods.dual_prompt import DualPrompt
from sodap.methods.ewc import OnlineEwc
from sodap.methods.finetune import Finetune
from sodap.methods.joint import Joint
from sodap.methods.l2p import L2P
from sodap.methods.lwf import Lwf
from sodap.methods.moe_adapters import MoeAdapters
from sodap.methods.ncm import NearestClassMean
from sodap.methods.options import Option, options_of
from sodap.methods.os_prompt import OSPrompt, OSPromptPlus
from sodap.methods.registry import build_method, find_method, method_names, register_method
from sodap.methods.residual_sodap import ResidualSodap, ResidualSodapConfig
from sodap.methods.ridge import ProjectedRidge, Ridge
from sodap.methods.sequential import Sequential
from sodap.methods.slda import StreamingLDA
from sodap.methods.uniprompt import UniPrompt

__all__ = [
    "L2P",
    "Asset",
    "Batch",
    "CodaPrompt",
    "Der",
    "DualPrompt",
    "Finetune",
    "Joint",
    "Lwf",
    "Method",
    "MethodConfig",
    "MoeAdapters",
    "NearestClassMean",
    "OSPrompt",
    "OSPromptPlus",
    "Observations",
    "OnlineEwc",
    "Option",
    "ProjectedRidge",
    "ResidualSodap",
    "ResidualSodapConfig",
    "Ridge",
    "Sequential",
    "StageInfo",
    "StreamingLDA",
    "UniPrompt",
    "build_method",
    "find_method",
    "method_names",
    "options_of",
    "register_method",
]
