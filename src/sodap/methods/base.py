"""The contract between a method and the training loop.

The loop gives a method prepared images on the device. The method returns named losses and logits,
and declares what it stores. It never sees a stream, an optimiser or a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from sodap.methods.variants import Variant
from sodap.prompting import NOTHING, Inspection, Intervention, Routing
from sodap.randomness import Randomness

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT

Result = TypeVar("Result", bound=Tensor | tuple[Tensor, ...])

StageInfo = Mapping[str, Any]
"""What a method reports about the start or end of a stage: JSON values for the run's record."""


@dataclass(frozen=True)
class Batch:
    """The input of one training step."""

    images: Tensor
    """Randomly augmented and prepared images `[B, 3, S, S]`."""
    labels: Tensor
    """Class indices `[B]`."""
    generator: torch.Generator
    """Source of every random number that the step draws."""
    augment: Callable[[Tensor], Tensor]
    """Augment and prepare stored images, uint8 `[N, 3, S, S]`, as the training images of this
    stage are; draws from `generator`."""


class Observations:
    """Prepared images `[B, 3, S, S]` and labels `[B]` of one split, in batches.

    Can be iterated repeatedly; the order is the same every time.
    """

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches)

    def map(self, function: Callable[[Tensor], Result]) -> Iterator[tuple[Result, Tensor]]:
        """Yield `(function(images), labels)` for every batch, without gradients.

        The function returns a tensor or a tuple of tensors with one row per image. A row may depend
        only on its own image, because batches may be padded.
        """
        for images, labels in self:
            with torch.no_grad():
                result = function(images)
            yield result, labels


class MethodConfig(BaseModel):
    """Options of a method, each with a default, bounds and a one-line description."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Asset:
    """Something a method stores about data it has seen."""

    name: str
    kind: str
    """statistics | teacher | usage | images | fisher | ..."""
    bytes: int
    images: int = 0
    """Number of images that can be recovered from it."""


class Method(nn.Module, ABC):
    """Base class of all continual-learning methods."""

    name: ClassVar[str]
    family: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    trains: ClassVar[str]
    """What is trained, in a few words: `head`, `prompts, head`, ..."""
    stores: ClassVar[str]
    """What is stored about past data, in a few words, or `nothing`."""
    learns_by_gradient: ClassVar[bool] = True
    """False for a closed form: there are no epochs and `end_stage` does all the learning."""
    learns_all_domains: ClassVar[bool] = False
    """True for an upper bound that is given the images of all domains so far at every stage."""
    selects_by: ClassVar[Literal["macro_f1", "nll"]] = "macro_f1"
    """Score on the validation images that decides which epoch of a stage is kept: macro-F1, or the
    mean negative log-likelihood, which says more if there are few of them."""
    keeps_start: ClassVar[bool] = False
    """Whether the state before the first epoch is kept if no epoch is better (epoch 0)."""
    candidates: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"lr": 3e-4},
        {"lr": 1e-3},
        {"lr": 3e-3},
        {"lr": 1e-2},
    )
    """Settings that a hyperparameter search tries first, by the keys of `sodap run`. Ignored for
    a closed form, which has nothing to search."""
    removals: ClassVar[tuple[Variant, ...]] = ()
    """Variants with one part taken away each, for `sodap ablate`."""
    other_ways: ClassVar[tuple[Variant, ...]] = ()
    """Variants with a part done another way, for `sodap ablate --extra`."""
    running: ClassVar[tuple[str, ...]] = ()
    """Name patterns of state (`memory.*`) that training steps update without an optimiser, such as
    moving averages. All other state that is not trained stays the same during a stage."""
    derived: ClassVar[tuple[str, ...]] = ()
    """Name patterns of attributes outside the state that hold tensors (`memory._table`) and are
    recomputed from the state. Every other tensor must be a parameter or a buffer."""
    without_decay: ClassVar[tuple[str, ...]] = ()
    """Name patterns of parameters (`pool.*`) without weight decay, besides all biases and other
    vectors, which never decay."""
    routed_to: ClassVar[str] = "prompt"
    """What `inspect` weights: prompts, or what takes their place."""
    not_compiled: ClassVar[str] = ""
    """Why `torch.compile` of `forward` cannot work, in one sentence; empty if it does."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        """Draw all initial values from `randomness`."""
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.classes = classes
        self.randomness = randomness
        self.stage = 0

    @classmethod
    def active_parts(cls, options: Mapping[str, Any]) -> dict[str, bool]:
        """Which parts of the method are on, for the table of an ablation; `removals` name them."""
        return {}

    @property
    def graph_safe(self) -> bool:
        """Whether a training step can be captured as a CUDA graph.

        Such a step never waits for the host. From the first batch of a stage to the last it
        launches the same kernels on tensors that keep their shapes and addresses.
        """
        return True

    @property
    def sgd_momentum(self) -> float | None:
        """Momentum of SGD, for a method that is trained with it; None for AdamW."""
        return None

    @property
    def has_epochs(self) -> bool:
        """Whether the stage that has begun has training steps; by default all stages have."""
        return self.learns_by_gradient

    @torch.no_grad()
    def frozen_features(self, images: Tensor) -> Tensor:
        """Features of the frozen backbone in float32, without gradient: `[B, D]`."""
        features: Tensor = self.backbone(images)
        return features.float()

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        """Prepare for a new domain, given its training images."""
        self.stage = number
        return {}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Named scalar losses of one batch; never called for a closed form, which needs none."""
        raise NotImplementedError(f"{type(self).__name__} learns by gradient, but has no losses")

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Combine the losses into the scalar that is minimised."""
        return torch.stack(list(losses.values())).sum()

    def before_step(self) -> None:
        """Modify gradients after the backward pass and before the optimiser's step."""

    def after_step(self) -> None:
        """Update state without gradients after the optimiser's step."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, C]` of prepared images; each row depends only on its own image."""

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        """Store what later stages need; called with the best weights of the stage restored."""
        return {}

    def routing(self, images: Tensor) -> list[Routing] | None:
        """Prompts selected by each image, per layer; None for a method without prompts."""
        return None

    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection | None:
        """Logits, and what each image selects in each layer; None for a method without routing.

        The intervention takes a part away, as `sodap.probing` does to measure what it is worth.
        Without one the logits are those of `forward`.
        """
        return None

    def memory_slots(self) -> tuple[Tensor, Tensor] | None:
        """Keys and values `[M, D]` of a memory that all images read; None without one."""
        return None

    def prompt_values(self) -> Tensor | None:
        """Values of the prompts in use `[copies, N, d]`; None for a method without a pool."""
        return None

    def domain_probabilities(self, images: Tensor) -> Tensor | None:
        """Probabilities `[B, T]` that an image is from each domain learned so far, in order.

        None for a method that does not tell domains apart.
        """
        return None

    def stored(self) -> list[Asset]:
        """Everything stored about past data."""
        return []

    def compile_parts(self) -> None:
        """Apply torch.compile where it pays; called once, if the user asks for it."""
        self.backbone.compile_blocks()

    def lr_factor(self, name: str) -> float:
        """Learning rate of the parameter called `name`, relative to that of the run."""
        return 1.0

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Optimiser groups of everything that trains in this stage."""
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                decays = parameter.ndim >= 2 and not any(
                    fnmatchcase(name, pattern) for pattern in self.without_decay
                )
                groups.setdefault((self.lr_factor(name), decays), []).append(parameter)
        return [
            {"params": members, "lr": lr * factor, "weight_decay": weight_decay * decays}
            for (factor, decays), members in groups.items()
        ]

    def loss_weights(self) -> dict[str, Tensor]:
        """Current weights of the losses, as scalars on the device; empty if none are learned.

        Called in every training step, so it must not wait for the device.
        """
        return {}

    def state(self) -> dict[str, Tensor]:
        """All tensors but the backbone's, which is identified by its name and digest."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("backbone.")}

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        """Load `state` of a method that had begun stage number `stage`."""
        self.stage = stage
        missing, unexpected = self.load_state_dict(dict(state), strict=False)
        lost = [key for key in missing if not key.startswith("backbone.")]
        if lost or unexpected:
            raise KeyError(f"state does not fit: missing {lost}, unexpected {unexpected}")

    def trainable_count(self) -> int:
        """Number of scalars that are trained in the current stage."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class LinearHead(nn.Linear):
    """Linear classifier with small initial weights that always computes in full precision."""

    def __init__(self, width: int, classes: int, generator: torch.Generator) -> None:
        super().__init__(width, classes)
        with torch.no_grad():
            self.weight.normal_(0.0, 0.02, generator=generator)
            self.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Features `[B, D]` -> logits `[B, C]`, in the precision of the weights."""
        with torch.autocast(features.device.type, enabled=False):
            return super().forward(features.to(self.weight.dtype))


def tensor_bytes(*modules: nn.Module) -> int:
    """Size of all parameters and buffers of `modules`, in bytes."""
    tensors = [t for m in modules for t in cast(dict[str, Tensor], m.state_dict()).values()]
    return sum(t.numel() * t.element_size() for t in tensors)
