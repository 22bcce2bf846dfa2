"""The suite itself: a sound method passes, and each broken one fails at the promise it breaks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

import sodap.methods.registry as registry
from sodap.backbones import FrozenViT
from sodap.errors import SodapError
from sodap.methods import Asset, Batch, MethodConfig, Observations, StageInfo
from sodap.methods.sequential import Sequential, SequentialConfig
from sodap.randomness import Randomness
from sodap.testing import CHECKS, NEEDS_GPU, SLOW, BrokenPromise, Trial, check_method, tiny_stream


class Sound(Sequential):
    """A linear head with a buffer to misuse; as it is, it breaks no promise."""

    name = "subject"
    extra: Tensor

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.register_buffer("extra", torch.ones(classes))


# ------------------------------------------------------------------ promises, broken one by one


class NoNumber(Sound):
    """Its loss is no number."""

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"ce": F.cross_entropy(self(batch.images), batch.labels) * torch.nan}


class NoScalar(Sound):
    """Its loss is one number an image."""

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if len(batch.labels) == 24:  # the loop itself would stumble
            return {"ce": F.cross_entropy(self(batch.images), batch.labels, reduction="none")}
        return super().losses(batch)


class LooksAround(Sound):
    """Its logits depend on the other images of the batch."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return logits - 0.1 * logits.mean(0)


class Remembers(Sound):
    """Its logits depend on how often it was called."""

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            self.extra.mul_(0.9)
        return super().forward(images) * self.extra


class MovesTheFrozen(Sound):
    """It changes a buffer in every step without declaring it."""

    def after_step(self) -> None:
        self.extra.add_(1e-6)


class MovesTheBackbone(Sound):
    """It trains what is frozen."""

    def after_step(self) -> None:
        with torch.no_grad():
            next(self.backbone.parameters()).add_(1e-6)


class GrowsInSteps(Sound):
    """Its state has other names after the steps of a stage."""

    def after_step(self) -> None:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(1))

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        if "late" in state:
            self.after_step()
        super().restore(state, stage)


class UnderstatesItself(Sound):
    """Its trainable_count is 1."""

    def trainable_count(self) -> int:
        return 1


class OverstatesItself(Sound):
    """Its trainable_count includes the backbone."""

    def trainable_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


class DrawsAnywhere(Sound):
    """It draws from torch's global generator."""

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        noise = torch.randn(len(batch.labels), self.classes, device=batch.images.device)
        return {"ce": F.cross_entropy(self(batch.images) + noise, batch.labels)}


class HidesATensor(Sound):
    """It stores labels in a list."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.kept: list[dict[str, Tensor]] = []

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        self.kept.append({"labels": torch.cat([labels for _, labels in train])})
        return {}


SHELF: list[Tensor] = []


class HidesOnTheClass(Sound):
    """It stores a tensor in a class attribute."""

    shelf = SHELF

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        self.shelf.append(torch.zeros(1))
        return {}


class HidesAModule(Sound):
    """It has a module in a plain list."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        self.heads = [nn.Linear(2, 2)]


class GrowsWithImages(Sound):
    """It stores a label of every image, but declares no images."""

    stores = "labels"

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        labels = torch.cat([labels for _, labels in train])
        self.extra = torch.cat([self.extra, labels.to(self.extra)])
        return {}

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        self.extra = torch.empty_like(state["extra"], device=self.extra.device)
        super().restore(state, stage)

    def stored(self) -> list[Asset]:
        return [Asset("labels", "statistics", self.extra.nbytes)]


class KeepsAnImage(Sound):
    """It stores an image and declares a statistic."""

    stores = "a statistic"

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, classes, randomness, config)
        side = backbone.image_size
        self.register_buffer("statistic", torch.zeros(1, 3, side, side))

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        self.statistic = next(iter(train))[0][:1].clone()
        return {}

    def stored(self) -> list[Asset]:
        return [Asset("a statistic", "statistics", self.statistic.nbytes)]


class SaysNothingIsStored(Sound):
    """It lists an asset, but `stores` is `nothing`."""

    def stored(self) -> list[Asset]:
        return [Asset("extra", "statistics", self.extra.nbytes)]


class SaysMoreThanItStores(Sound):
    """It lists no asset, but `stores` names one."""

    stores = "a teacher"


class ForgetsToSave(Sound):
    """Its logits depend on a number outside its state."""

    scale = 1.0

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * self.scale

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        self.scale += 1
        return {}


class CountsItsSteps(Sound):
    """Its losses depend on a step count outside its state."""

    taken = 0

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        ce = super().losses(batch)["ce"]
        return {"ce": ce / (1 + self.taken % 5)}

    def begin_stage(self, number: int, train: Observations) -> StageInfo:
        self.taken = 0
        return super().begin_stage(number, train)

    def after_step(self) -> None:
        self.taken += 1


class TakesAnyState(Sound):
    """It does not mind a state that does not fit."""

    def restore(self, state: Mapping[str, Tensor], stage: int) -> None:
        self.stage = stage
        self.load_state_dict(dict(state), strict=False)


class KnowsThreeClasses(Sound):
    """It has three outputs, whatever is asked for."""

    def __init__(
        self, backbone: FrozenViT, classes: int, randomness: Randomness, config: MethodConfig
    ) -> None:
        super().__init__(backbone, 3, randomness, config)


class NeedsEveryClass(Sound):
    """It divides by the number of images of each class."""

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        labels = torch.cat([labels for _, labels in train])
        self.head.bias.data /= torch.bincount(labels, minlength=self.classes).clamp(max=1)
        return {}


class NeedsASecondBatch(Sound):
    """It compares the second batch of a domain with the first."""

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        first, second, *_ = [images.mean() for images, _ in train]
        return {"change": float(second - first)}


class NeedsTwoImages(Sound):
    """It divides by n - 1."""

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        count = sum(len(labels) for _, labels in train)
        self.head.bias.data *= 1 / (count - 1)
        return {}


class NeedsFullPrecision(Sound):
    """It amplifies what bf16 rounds away."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return (logits - logits.detach().to(torch.float16)) * 1e5 + logits


class CannotBeCompiled(Sound):
    """Compiled, it returns other logits."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + torch.compiler.is_compiling() * torch.arange(3)


class SilentConfig(SequentialConfig):
    """An option without a description."""

    pull: float = 1.0


class Unexplained(Sound):
    """It has an option without a description."""

    Config = SilentConfig


class DemandingConfig(SequentialConfig):
    """An option without a default."""

    pull: float = Field(description="how strong")


class Demanding(Sound):
    """It cannot be built without options."""

    Config = DemandingConfig  # type: ignore[assignment]


BROKEN: list[tuple[type[Sound], str, str]] = [
    (NoNumber, "losses_are_finite", "ce is not finite"),
    (NoScalar, "losses_are_finite", r"'ce' is not a scalar but \[24\]"),
    (
        LooksAround,
        "predictions_are_independent_of_the_batch",
        "predicted alone, a prob",
    ),
    (Remembers, "predictions_are_independent_of_the_batch", "predicted again"),
    (MovesTheFrozen, "frozen_stays_frozen", "stage 1 changed 'extra'"),
    (MovesTheBackbone, "frozen_stays_frozen", "the frozen backbone was changed"),
    (GrowsInSteps, "frozen_stays_frozen", "stage 1 added or dropped 'late'"),
    (UnderstatesItself, "trainable_count_is_right", "it is 1, but"),
    (OverstatesItself, "trainable_count_is_right", r"in stage 1 it is \d+"),
    (DrawsAnywhere, "the_seed_determines_everything", "differs in 'head.bias', 'head.weight'"),
    (HidesATensor, "all_tensors_are_in_the_state", r"'kept\[0\]\['labels'\]'"),
    (HidesOnTheClass, "all_tensors_are_in_the_state", r"'shelf\[0\]'"),
    (HidesAModule, "all_tensors_are_in_the_state", r"'heads\[0\]\.bias', 'heads\[0\]\.weight'"),
    (HidesATensor, "stored_data_is_declared", "it holds 384 bytes more"),
    (GrowsWithImages, "stored_data_is_declared", "it holds 192 bytes more"),
    (KeepsAnImage, "stored_data_is_declared", "'statistic' has the shape of images"),
    (SaysNothingIsStored, "stored_data_is_declared", "`stores` is 'nothing', but `stored` lists 1"),
    (SaysMoreThanItStores, "stored_data_is_declared", "'a teacher', but `stored` lists 0"),
    (ForgetsToSave, "a_saved_learner_continues", "predicts something else"),
    (TakesAnyState, "a_saved_learner_continues", "accepts an empty state"),
    (
        CountsItsSteps,
        "a_stage_resumes_after_an_epoch",
        "the last step after a resume differs in 'head",
    ),
    (KnowsThreeClasses, "any_number_of_classes", "3 logits for 2 classes"),
    (NeedsEveryClass, "a_class_may_be_missing", "after stage 1 some logits are not finite"),
    (NeedsASecondBatch, "a_stage_may_be_one_batch", "ValueError: not enough values"),
    (NeedsTwoImages, "a_stage_may_be_one_image", "ZeroDivisionError"),
    (NeedsFullPrecision, "bf16_changes_little", "a probability changes by"),
    (CannotBeCompiled, "a_compiled_forward_agrees", "compiled, a probability changes by"),
    (Unexplained, "describes_itself", "option 'pull' has no description"),
    (Demanding, "describes_itself", "option 'pull' has no default"),
]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register a class under the name `subject`."""

    def register(method: type[Sound]) -> None:
        monkeypatch.setitem(registry._METHODS, "subject", method)

    return register


@pytest.mark.parametrize(
    ("method", "promise", "reason"),
    [
        pytest.param(
            *case,
            id=f"{case[0].__name__}-{case[1]}",
            marks=[pytest.mark.slow] if case[1] in SLOW else [],
        )
        for case in BROKEN
    ],
)
def test_a_broken_promise_is_found(
    registered: Any, method: type[Sound], promise: str, reason: str
) -> None:
    registered(method)
    with pytest.raises(BrokenPromise, match=reason) as broken:
        CHECKS[promise](Trial("subject"))
    assert str(broken.value).startswith(f"method 'subject' breaks the promise {promise} (")


def test_every_check_can_fail() -> None:
    """Except the one that needs a GPU."""
    assert {promise for _, promise, _ in BROKEN} == CHECKS.keys() - NEEDS_GPU


@pytest.mark.slow
def test_a_sound_method_passes(registered: Any) -> None:
    registered(Sound)
    check_method("subject", slow=True)


def test_the_first_broken_promise_ends_the_trial(registered: Any) -> None:
    registered(LooksAround)
    with pytest.raises(
        BrokenPromise, match="breaks the promise predictions_are_independent_of_the_batch"
    ):
        check_method("subject")


class AllowedToMove(MovesTheFrozen):
    """It changes a buffer in every step and declares it."""

    running = ("ext*",)


class AllowedToDerive(Sound):
    """It has tensors that are derived from its state and declares them."""

    derived = ("table",)

    def end_stage(self, number: int, train: Observations, val: Observations) -> StageInfo:
        self.table = (torch.zeros(3), [self.head.weight])
        return {}


class DeclaresImages(KeepsAnImage):
    """It stores an image and declares it."""

    stores = "an image"

    def stored(self) -> list[Asset]:
        return [Asset("an image", "images", self.statistic.nbytes, images=1)]


class GivesAReason(CannotBeCompiled):
    """It cannot be compiled and declares why."""

    not_compiled = "its result depends on whether it is compiled"


@pytest.mark.parametrize(
    ("method", "promise"),
    [
        (AllowedToMove, "frozen_stays_frozen"),
        (AllowedToDerive, "all_tensors_are_in_the_state"),
        (DeclaresImages, "stored_data_is_declared"),
        (GivesAReason, "a_compiled_forward_agrees"),
    ],
)
def test_what_is_declared_is_allowed(registered: Any, method: type[Sound], promise: str) -> None:
    registered(method)
    CHECKS[promise](Trial("subject"))


def test_options_that_do_not_fit_break_no_promise() -> None:
    with pytest.raises(SodapError, match="option 'distance' of ncm"):
        check_method("ncm", {"distance": "far"})
    with pytest.raises(SodapError, match="no method is called 'nothing'"):
        check_method("nothing")


def test_options_reach_the_method() -> None:
    trial = Trial("ncm", {"distance": "euclid"})
    assert trial.learner().method.config.model_dump() == {"distance": "euclid"}


def test_the_saved_model_is_deleted_with_the_trial() -> None:
    trial = Trial("ncm")
    folder = Path(trial.trained.folder)
    assert (folder / "model.json").is_file()
    del trial
    assert not folder.exists()


def test_the_tiny_stream_is_always_the_same() -> None:
    one, two = tiny_stream(classes=4), tiny_stream(classes=4)
    assert one.classes == ("class 0", "class 1", "class 2", "class 3")
    for left, right in zip(one.domains, two.domains, strict=True):
        for (_, a), (_, b) in zip(left.splits(), right.splits(), strict=True):
            assert torch.equal(a.images, b.images)
    assert not torch.equal(one.domains[0].train.images, one.domains[1].train.images)
