"""A linear head fine-tuned on one domain after the other, with nothing done against forgetting."""

from __future__ import annotations

from sodap.methods.base import MethodConfig
from sodap.methods.parts.linear_head import LinearHeadMethod
from sodap.methods.registry import register_method


class SequentialConfig(MethodConfig):
    """No options."""


@register_method
class Sequential(LinearHeadMethod):
    """Linear head on frozen features, trained on one domain after the other."""

    name = "sequential"
    family = "reference"
    trains = "head"
    stores = "nothing"
    Config = SequentialConfig
