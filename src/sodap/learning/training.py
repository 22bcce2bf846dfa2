"""How a stage is trained: the settings that every method shares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from sodap.streams import Augmentation


class Training(BaseModel):
    """AdamW with a cosine to zero, restarted at every stage. The defaults are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(100, ge=1, le=10_000, description="epochs a stage at most")
    patience: int = Field(
        5, ge=1, description="stop a stage after so many epochs without a better validation score"
    )
    batch_size: int = Field(64, ge=1, le=65_536, description="images a training step")
    lr: float = Field(1e-3, gt=0, le=10, description="learning rate at the start of a stage")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's decay, on matrices only")
    record_steps: bool = Field(
        True,
        description="on a GPU, record steps and predictions once and replay them (a CUDA graph)",
    )
    compile: bool = Field(
        False, description="fuse the network with torch.compile: a minute to start, then faster"
    )
    augmentation: Augmentation | None = Field(
        None, description="random views of the training images; default: what suits the stream"
    )
