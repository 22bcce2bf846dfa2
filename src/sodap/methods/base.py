"""The contract of a method: what the loop calls, and nothing more.

A method gets prepared images on the device, answers with named losses, and says what it keeps.
It never sees a stream, an optimiser or a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from sodap.backbones import FrozenViT
from sodap.prompting import Routing
from sodap.randomness import Randomness

Batches = Iterable[tuple[Tensor, Tensor]]
"""Re-iterable pairs of prepared images `[B, 3, S, S]` and labels `[B]`."""

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""The learning rates that a search may try, each about three times the one before."""

BUDGET = 4
"""How many settings of a method are compared before a grid: at most so many of every one."""
BEYOND = 2
"""How many more, at most, where the best learning rate is the first or the last of those tried:
an optimum at an edge is none. One list then fits trained prompts, heads and whole networks."""

Facts = Mapping[str, Any]
"""What a stage did to the method, in JSON's types, for the record of a run."""


class MethodConfig(BaseModel):
    """Every option of a method with its default, its bounds and one line of meaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Asset:
    """Something a method keeps about data it has seen: the unit of the audit."""

    name: str
    kind: str
    """statistics | teacher | usage | images | fisher | ..."""
    bytes: int
    images: int = 0
    """How many images can be seen in it: 0 for anything that is only numbers about them."""


class Method(nn.Module, ABC):
    """One way to keep learning. Subclasses say what trains and what is remembered."""

    name: ClassVar[str]
    family: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    trains: ClassVar[str]
    """What is learned, in a few words: `head`, `prompts, head`, ..."""
    stores: ClassVar[str]
    """What is kept of the past, in a few words; `nothing` where that is so."""
    learns_by_gradient: ClassVar[bool] = True
    """False for a method that needs no epochs: all it learns, it learns in `end_stage`."""
    learns_all_domains: ClassVar[bool] = False
    """True for an upper bound that is given the images of all domains so far at every stage."""
    candidates: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"lr": 3e-4},
        {"lr": 1e-3},
        {"lr": 3e-3},
        {"lr": 1e-2},
    )
    """The settings that a search begins with, at most `BUDGET`, by the keys that `sodap run`
    takes. A method in closed form has nothing to search, whatever stands here."""
    steps_alike: ClassVar[bool] = True
    """False if a training step asks the host what to do next: it is then never recorded as a
    CUDA graph. A step that is alike launches the same work on tensors of the same shapes in the
    same places, from the first batch of a stage to the last."""
    running: ClassVar[tuple[str, ...]] = ()
    """Patterns of names in the state (`memory.*`) that training steps write without an optimiser:
    moving averages, a reservoir. Whatever is not trained and not named here stays as it is."""
    derived: ClassVar[tuple[str, ...]] = ()
    """Patterns of attributes outside the state that hold tensors (`memory._table`): tables that
    are made anew from the state after a restore. Every other tensor belongs into the state."""
    not_compiled: ClassVar[str] = ""
    """Why `torch.compile` of `forward` cannot work, in one sentence; empty where it does."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        """Every number drawn at the start comes from `randomness`."""
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.classes = classes
        self.randomness = randomness
        self.stage = 0
        # Whether work on a GPU may be recorded (`sodap.recording`). The loop says so.
        self.records = False
        # Random views of kept images, as the training images of this stage get them: uint8
        # `[B, 3, S, S]` -> prepared. The loop puts the stream's own in place.
        self.view: Callable[[Tensor, torch.Generator], Tensor] = lambda images, _: backbone.prepare(
            images
        )

    def begin_stage(self, number: int, batches: Batches) -> Facts:
        """Get ready for a new domain; may look at its training images."""
        self.stage = number
        return {}

    @abstractmethod
    def losses(
        self, images: Tensor, labels: Tensor, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Named scalar losses of one batch; whatever is drawn is drawn from `generator`."""

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """One number to descend."""
        return torch.stack(list(losses.values())).sum()

    def before_step(self) -> None:
        """Gradients are there, the optimiser's step is not: correct or bound them."""

    def after_step(self) -> None:
        """Follow-up without gradients, after each step of the optimiser."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Logits `[B, C]`; each row depends on its own image alone."""

    def end_stage(self, number: int, train: Batches, val: Batches) -> Facts:
        """Keep what the next stage will need; called with the best weights restored."""
        return {}

    def routing(self, images: Tensor) -> list[Routing] | None:
        """Which prompts each image selects, per layer; None for a method without prompts."""
        return None

    def stored(self) -> list[Asset]:
        """Everything kept about past data."""
        return []

    def compile_parts(self) -> None:
        """Hand what is worth it to torch.compile; called once, if the user asks for it."""
        self.backbone.compile_blocks()

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """What trains in this stage. Decay pulls on matrices only, never on biases and scales."""
        trained = [p for p in self.parameters() if p.requires_grad]
        return [
            {"params": [p for p in trained if p.ndim >= 2], "lr": lr, "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "lr": lr, "weight_decay": 0.0},
        ]

    def weights(self) -> dict[str, float]:
        """The weight of each loss at this moment, for methods that balance theirs."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Everything but the backbone, which its name and digest stand for."""
        return {k: v for k, v in self.state_dict().items() if not k.startswith("backbone.")}

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        """The inverse of `state`, for a method that had begun stage number `stage`."""
        self.stage = stage
        missing, unexpected = self.load_state_dict(dict(state), strict=False)
        lost = [key for key in missing if not key.startswith("backbone.")]
        if lost or unexpected:
            raise KeyError(f"state does not fit: missing {lost}, unexpected {unexpected}")

    def trainable_count(self) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class LinearHead(nn.Linear):
    """A linear classifier, small at the start, and always in full precision."""

    def __init__(self, width: int, classes: int, generator: torch.Generator) -> None:
        super().__init__(width, classes)
        with torch.no_grad():
            self.weight.normal_(0.0, 0.02, generator=generator)
            self.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Features `[B, D]` -> logits `[B, C]`, float32 under autocast too."""
        with torch.autocast(features.device.type, enabled=False):
            return super().forward(features.float())


def tensor_bytes(*modules: nn.Module) -> int:
    """What the parameters and buffers of `modules` take."""
    tensors = [t for m in modules for t in cast(dict[str, Tensor], m.state_dict()).values()]
    return sum(t.numel() * t.element_size() for t in tensors)
