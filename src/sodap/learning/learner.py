"""A classifier that keeps learning, as an object to hold in one's hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, Literal, SupportsIndex

import numpy as np
import torch
from lightning.fabric import Fabric
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from sodap.backbones import build_backbone
from sodap.errors import SodapError, TrainingBrokeError
from sodap.evaluation import (
    accuracy,
    confusion_matrix,
    macro_f1,
    quadratic_kappa,
    recall_per_class,
)
from sodap.learning.forward import EVALUATION_BATCH, Answers, Forward
from sodap.learning.fusing import fused
from sodap.learning.loop import OnBatch, OnEpoch, end_stage, learn_stage
from sodap.learning.precision import tensor_cores
from sodap.learning.progress import StageProgress, snapshot
from sodap.learning.training import Training
from sodap.methods import Asset, build_method
from sodap.randomness import Randomness
from sodap.storage import load_state, save_state
from sodap.streams import Domain, Split, Stage, read_images, to_gpu_if_fits
from sodap.version import __version__


@dataclass(frozen=True)
class Prediction:
    """What the model says of N images."""

    labels: list[str]
    probabilities: Tensor
    """`[N, C]`, rows sum to 1, columns in the order of the learner's classes."""


@dataclass(frozen=True)
class Scores:
    """How well one split is classified; all of it follows from the confusion matrix."""

    confusion: NDArray[np.int64]
    """`[C, C]`, rows = truth."""
    answers: Answers
    """To each image of the split."""

    @property
    def accuracy(self) -> float:
        return accuracy(self.confusion)

    @property
    def macro_f1(self) -> float:
        return macro_f1(self.confusion)

    @property
    def kappa(self) -> float:
        return quadratic_kappa(self.confusion)

    @property
    def recall(self) -> list[float | None]:
        return recall_per_class(self.confusion)


class Learner:
    """Learn domains one after the other; predict at any time; keep no image.

    >>> learner = Learner(["benign", "malignant"], backbone="deit_tiny", weights="deit.safetensors")
    >>> learner.learn(first_clinic)
    >>> learner.learn(second_clinic)
    >>> learner.predict(["lesion.jpg"]).labels
    """

    def __init__(
        self,
        classes: Sequence[str],
        *,
        method: str = "residual-sodap",
        options: Mapping[str, Any] | None = None,
        backbone: str = "micro",
        weights: str = "pretrained",
        image_size: int | None = None,
        training: Training | None = None,
        seed: int = 0,
        device: str = "auto",
        precision: str = "auto",
    ) -> None:
        names = [] if isinstance(classes, str) or not isinstance(classes, Iterable) else [*classes]
        named = all(isinstance(name, str) for name in names)
        if not named or not 2 <= len(set(names)) == len(names):
            raise SodapError("a learner needs a list of two or more classes with distinct names")
        if not isinstance(seed, SupportsIndex) or index(seed) < 0:
            raise SodapError(f"the seed must be a whole number and not negative, got {seed!r}")
        if image_size is not None and image_size not in range(8, 2049):
            raise SodapError(f"images have 8 to 2048 pixels a side, not {image_size!r}")
        if not isinstance(training, Training | None):
            raise SodapError(f"training takes a sodap.Training, not a {type(training).__name__}")
        self.classes = tuple(map(str, names))
        self.method_name = method
        self.weights = weights
        self.training = training or Training()
        self.fabric = _fabric(device, precision)
        self.randomness = Randomness(index(seed))
        frozen = build_backbone(backbone, weights, image_size, seed=self.randomness.number("vit"))
        self.method = build_method(
            method, options or {}, frozen, len(self.classes), self.randomness
        ).to(self.fabric.device)
        if self.fabric.device.type == "cuda" and precision != "fp32":
            frozen.round_weights(torch.bfloat16)
        if self.training.compile:
            self.method.compile_parts()
        self.stages_learned = 0
        self._forward: Forward | None = None
        """Kept as long as nothing is learned: until then, all tensors stay where they are."""

    def learn(
        self,
        domain: Domain,
        *,
        resumed: StageProgress | None = None,
        on_epoch: OnEpoch | None = None,
        on_batch: OnBatch | None = None,
    ) -> StageProgress:
        """One stage: train on the domain, stop early, keep the best, remember what is needed."""
        _expect(domain, Domain, "learn")
        domain.check(self.classes)
        self._forward = None
        if self.fabric.device.type == "cuda":
            # What the stage before holds in reserve: there is room for images, and for other runs.
            torch.cuda.empty_cache()
        train, val = to_gpu_if_fits([domain.train, domain.val], self.fabric.device)
        stage = Stage(self.stages_learned + 1, replace(domain, train=train, val=val))
        before = snapshot(self.method.state())
        try:
            progress = learn_stage(
                self.method,
                stage,
                self.training,
                self.fabric,
                resumed=resumed,
                on_epoch=on_epoch,
                on_batch=on_batch,
            )
            progress.ended = end_stage(self.method, stage, self.training, self.fabric)
            self._forward = None
            if not self.method.learns_by_gradient:
                progress.best_score = self.evaluate(val).macro_f1
        except BaseException:
            # A stage that broke off must leave no trace, or a second try would start from it.
            self._forward = None
            self.method.restore(before, self.stages_learned if resumed is None else stage.number)
            raise
        self.stages_learned = stage.number
        return progress

    def evaluate(self, data: Domain | Split) -> Scores:
        """Scores on a split, or on the test split of a domain."""
        _expect(data, (Domain, Split), "evaluate")
        if isinstance(data, Domain):
            data.check_classes(self.classes)
        split = data.test if isinstance(data, Domain) else data
        if self._forward is None:
            record = self.training.record_steps
            self._forward = Forward(self.method, self.fabric, record=record)
        answers = self._forward.answers(split)
        if broken := answers.broken():
            raise TrainingBrokeError(f"training broke: {broken}")
        return Scores(confusion_matrix(split.labels, answers.classes, len(self.classes)), answers)

    @torch.inference_mode()
    def predict(self, images: Tensor | str | Path | Sequence[str | Path]) -> Prediction:
        """Classify uint8 images `[N, 3, H, W]` or image files; each on its own, no domain asked."""
        if self.stages_learned == 0:
            raise SodapError("nothing has been learned yet, so there is nothing to predict with")
        if isinstance(images, (str, Path)):
            images = [images]
        if not isinstance(images, Tensor) and not (
            isinstance(images, Sequence) and all(isinstance(each, (str, Path)) for each in images)
        ):
            raise SodapError(
                "predict takes image files (paths) or a uint8 tensor [N, 3, height, width]"
            )
        self.method.eval()
        rows = [torch.empty(0, len(self.classes))]
        for start in range(0, len(images), EVALUATION_BATCH):
            some = images[start : start + EVALUATION_BATCH]
            batch = some if isinstance(some, Tensor) else self._read(some)
            if batch.dtype != torch.uint8 or batch.ndim != 4 or batch.shape[1] != 3:
                raise SodapError(
                    f"images must be uint8 [N, 3, height, width], "
                    f"got {batch.dtype} {list(batch.shape)}"
                )
            worth_it = len(batch) == EVALUATION_BATCH
            with (
                fused(worth_it),
                tensor_cores(self.fabric, self.method),
                self.fabric.autocast(),
            ):
                ready = self.method.backbone.prepare(batch.to(self.fabric.device))
                rows.append(self.method(ready).softmax(-1).float().cpu())
        probabilities = torch.cat(rows)
        if broken := Answers(probabilities.argmax(-1), probabilities.amax(-1)).broken():
            raise SodapError(f"this model is broken: {broken}")
        return Prediction([self.classes[i] for i in probabilities.argmax(-1)], probabilities)

    def _read(self, files: Sequence[str | Path]) -> Tensor:
        return read_images([Path(file) for file in files], self.method.backbone.image_size)

    def stored(self) -> list[Asset]:
        """Everything the model keeps about images it has seen."""
        return self.method.stored()

    def save(self, folder: str | Path) -> None:
        """Write what was learned (not the backbone: its name and fingerprint) to a folder."""
        home = Path(folder)
        if home.exists() and not (home / "model.json").exists() and any(_entries(home)):
            raise SodapError(f"{home} is not empty and holds no model; choose another folder")
        save_state(home, "model", self.method.state(), self.facts())

    def restore(self, tensors: Mapping[str, Tensor], stage: int, stages_learned: int) -> None:
        """Put back the state of a method that had begun `stage`."""
        self._forward = None
        try:
            self.method.restore(tensors, stage)
        except (KeyError, RuntimeError) as error:
            raise SodapError(f"the saved state does not fit {self.method_name}: {error}") from error
        self.stages_learned = stages_learned

    def facts(self) -> dict[str, Any]:
        """What is needed, besides the tensors, to build this learner again."""
        backbone = self.method.backbone
        return {
            "sodap": __version__,
            "classes": list(self.classes),
            "method": self.method_name,
            "options": self.method.config.model_dump(mode="json"),
            "backbone": {
                "name": backbone.name,
                "weights": self.weights,
                "image_size": backbone.image_size,
                "sha256": backbone.digest(),
            },
            "training": self.training.model_dump(mode="json"),
            "seed": self.randomness.seed,
            "stages_learned": self.stages_learned,
        }


def load(
    folder: str | Path,
    *,
    weights: str | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> Learner:
    """The learner that `save` wrote; `weights` says where the backbone's file is now."""
    home = Path(folder)
    if not (home / "model.json").is_file() and (home / "model" / "model.json").is_file():
        home = home / "model"  # a run's folder holds the model in a folder of its own
    if not (home / "model.json").is_file() and (home / "config.json").is_file():
        raise SodapError(f"the run in {home} has no model: it is not finished, or it was deleted")
    tensors, facts = load_state(home, "model")
    try:
        known = _Facts.model_validate(facts)
    except ValidationError as error:
        raise SodapError(f"{folder} was saved by a version of sodap that does not fit") from error
    backbone = known.backbone
    learner = Learner(
        known.classes,
        method=known.method,
        options=known.options,
        backbone=backbone.name,
        weights=weights or backbone.weights,
        image_size=backbone.image_size,
        training=known.training,
        seed=known.seed,
        device=device,
        precision=precision,
    )
    if learner.method.backbone.digest() != backbone.sha256:
        raise SodapError(
            f"{folder} was learned on other weights of {backbone.name} than "
            f"'{weights or backbone.weights}'; give the same file with weights=FILE"
        )
    learner.restore(tensors, known.stages_learned, known.stages_learned)
    return learner


class _Backbone(BaseModel):
    name: str
    weights: str
    image_size: int = Field(ge=8, le=2048)
    sha256: str


class _Facts(BaseModel):
    """`Learner.facts`, as far as they are needed to build a learner again."""

    classes: list[str]
    method: str
    options: dict[str, Any]
    backbone: _Backbone
    training: Training
    seed: int
    stages_learned: int = Field(ge=0, le=1_000_000)


def _expect(given: object, kind: type | tuple[type, ...], verb: str) -> None:
    if not isinstance(given, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or a ".join(each.__name__ for each in kinds)
        raise SodapError(f"{verb} takes a {wanted} of a stream, not a {type(given).__name__}")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise SodapError(f"{folder} is no folder that can be written to") from error


def _fabric(device: str, precision: str) -> Fabric:
    """Where to compute, and in how many bits: bf16 for the trunk where there is a GPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise SodapError("device=cuda was asked for, but PyTorch sees no GPU here")
    if device not in ("cpu", "cuda"):
        raise SodapError(f"no device is called '{device}'; give auto, cpu or cuda")
    if precision == "auto":
        precision = "bf16" if device == "cuda" else "fp32"
    if precision not in ("bf16", "fp32"):
        raise SodapError(f"no precision is called '{precision}'; give auto, bf16 or fp32")
    bits: Literal["bf16-mixed", "32-true"] = "bf16-mixed" if precision == "bf16" else "32-true"
    return Fabric(accelerator=device, devices=1, precision=bits)
