"""LayUP (Ahrens et al., 2024): adapt in stage 1, and solve for a head on several layers at once."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from sodap.methods.parts.first_session import FirstSessionConfig, FirstSessionRidge
from sodap.methods.parts.last_blocks import read_last_blocks, width_of_last_blocks
from sodap.methods.registry import register_method


class LayUPConfig(FirstSessionConfig):
    """The residual of stage 1 and the blocks that are read."""

    layers: int = Field(6, ge=1, description="k, number of last blocks whose CLS tokens are read")


@register_method
class LayUP(FirstSessionRidge):
    """Ridge regression on the CLS tokens of the last blocks of a network that stage 1 adapted."""

    name = "layup"
    Config = LayUPConfig
    folds, held_out = 4, 4  # as published: fourfold cross-validation

    config: LayUPConfig

    @property
    def feature_width(self) -> int:
        return width_of_last_blocks(self.backbone, self.config.layers, patches=False)

    def features(self, images: Tensor) -> Tensor:
        tokens = self.backbone.embed(images)
        return read_last_blocks(
            self.backbone, tokens, self.config.layers, patches=False, norm=False, lora=self.lora
        )
