"""Options of the prompter, section 3.1 of the paper."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Context = Literal["cls", "patch_mean"]
Selection = Literal["entmax", "softmax"]
Combination = Literal["residual", "competing", "joint"]
Merge = Literal["paper", "rescale"]
PerLayer = Literal["none", "adapters", "all"]


class PromptingOptions(BaseModel):
    """Sizes, constants and readings of section 3.1; the sizes and constants are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query_enhancer: bool = Field(True, description="QE: enhance the query by context and memory")
    sodap: bool = Field(True, description="SODAP: entmax and residual; off = softmax, one set")

    pool_size: int = Field(60, ge=1, description="N: prompts in stage 1")
    capacity: int | None = Field(
        256, ge=1, le=100_000, description="most prompts the pool can hold; null = no limit (paper)"
    )
    bottleneck: int = Field(512, ge=1, description="d_a: width of prompts and adapters")
    memory_slots: int = Field(9, ge=1, description="M: slots of the memory bank")
    memory_momentum: float = Field(
        0.99, ge=0, lt=1, description="momentum of the memory bank's moving average"
    )
    memory_assignment: Literal["attention", "nearest"] = Field(
        "attention",
        description="slots that a query is written to: all, by attention, or the nearest one, "
        "with slots that start as clusters of queries and keep the features that follow them",
    )
    memory_norm: bool = Field(
        True,
        description="LayerNorm on the query that reads and writes the memory (paper: none)",
    )
    memory_write: Literal["stage1", "always", "learned"] = Field(
        "stage1",
        description="moving average in stage 1 only, always (paper), or trained by gradient",
    )
    queries: Literal["raw", "standardised"] = Field(
        "raw",
        description="CLS tokens and context as they are (paper), or standardised per layer by the "
        "first domain",
    )
    context: Context = Field(
        "patch_mean",
        description="g: CLS after embedding (paper; the same for all images) or mean patch",
    )
    alpha: float = Field(1.5, gt=1, le=4, description="α of entmax: 2 = sparsemax")
    temperature: float = Field(
        1.5, gt=0, description="divides the logits: alpha = entmax as printed, 1 = the usual one"
    )
    residual: float = Field(0.1, ge=0, description="λ_r: weight of the active prompts")
    selection: Selection = Field("entmax", description="how logits become routing weights")
    combination: Combination = Field(
        "residual",
        description="route F and A separately and add (paper); add A by the weight it wins against "
        "F; or route both as one set",
    )
    key_start: Literal["noise", "clusters"] = Field(
        "noise",
        description="initial keys: random, or clusters of the new domain's queries that no frozen "
        "key covers",
    )
    merge: Merge = Field(
        "rescale",
        description="how active prompts freeze: rescaled, so that outputs stay, or as they are",
    )
    per_layer: PerLayer = Field(
        "none", description="what each layer has of its own: nothing, adapters, or a pool as well"
    )

    @model_validator(mode="after")
    def _pool_fits(self) -> Self:
        if self.capacity is not None and self.pool_size > self.capacity:
            raise ValueError(f"a pool of capacity {self.capacity} cannot hold {self.pool_size}")
        return self
