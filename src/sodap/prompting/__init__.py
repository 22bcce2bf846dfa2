"""Sparse prompt selection inside a frozen ViT, section 3.1 of the paper.

The equations as they are printed. `sodap.prompting.fast` computes the same faster.
"""

from sodap.prompting.adapter import Adapter
from sodap.prompting.enhancer import QueryEnhancer
from sodap.prompting.entmax import entmax
from sodap.prompting.inspection import (
    NOTHING,
    Inspection,
    Inspector,
    Intervention,
    Selection,
)
from sodap.prompting.losses import diversity_loss, norm_loss
from sodap.prompting.memory import MemoryBank
from sodap.prompting.options import PromptingOptions
from sodap.prompting.pool import PromptPool
from sodap.prompting.prompter import Prompter, PromptPass
from sodap.prompting.routing import Groups, Router, Routing

__all__ = [
    "NOTHING",
    "Adapter",
    "Groups",
    "Inspection",
    "Inspector",
    "Intervention",
    "MemoryBank",
    "PromptPass",
    "PromptPool",
    "Prompter",
    "PromptingOptions",
    "QueryEnhancer",
    "Router",
    "Routing",
    "Selection",
    "diversity_loss",
    "entmax",
    "norm_loss",
]
