"""Prompts inside a frozen ViT: a memory-informed query, sparse routing, a pool that grows."""

from sodap.prompting.adapter import Adapter
from sodap.prompting.enhancer import QueryEnhancer
from sodap.prompting.entmax import entmax
from sodap.prompting.losses import diversity_loss, norm_loss
from sodap.prompting.memory import MemoryBank
from sodap.prompting.pool import PromptPool
from sodap.prompting.prompter import Prompter, PromptPass
from sodap.prompting.routing import Router, Routing

__all__ = [
    "Adapter",
    "MemoryBank",
    "PromptPass",
    "PromptPool",
    "Prompter",
    "QueryEnhancer",
    "Router",
    "Routing",
    "diversity_loss",
    "entmax",
    "norm_loss",
]
