"""`Learner`: a classifier that learns one domain after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from sodap.backbones import build_backbone, native_size
from sodap.backbones.names import MICRO, ask_for_backbone
from sodap.errors import SodapError, TrainingBrokeError
from sodap.evaluation import (
    accuracy,
    confusion_matrix,
    macro_f1,
    quadratic_kappa,
    recall_per_class,
)
from sodap.execution import EVALUATION_BATCH, ClassPredictions, Forward, Runtime
from sodap.learning.loop import OnBatch, OnEpoch, end_stage, learn_stage
from sodap.learning.progress import StageProgress, snapshot
from sodap.learning.training import Training
from sodap.methods import Asset, build_method
from sodap.randomness import Randomness
from sodap.storage import load_state, save_state
from sodap.streams import Domain, Split, Stage, read_images, to_gpu_if_fits
from sodap.version import __version__


@dataclass(frozen=True)
class Prediction:
    """Predicted classes and probabilities of N images."""

    labels: list[str]
    probabilities: Tensor
    """`[N, C]`; rows sum to 1, columns are in the order of the learner's classes."""


@dataclass(frozen=True)
class Scores:
    """Scores of one split, all computed from its confusion matrix."""

    confusion: NDArray[np.int64]
    """`[C, C]`; rows are true classes."""
    predictions: ClassPredictions
    """Predicted class of each image."""

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
    """A classifier that learns domains one after another and can predict at any time.

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
        backbone: str | None = None,
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
        self.runtime = Runtime(device, precision, cuda_graphs=self.training.cuda_graphs)
        self.randomness = Randomness(index(seed))
        self._backbone_chosen = backbone is not None
        frozen = build_backbone(
            backbone or MICRO, weights, image_size, seed=self.randomness.number("vit")
        )
        self.method = self.runtime.place(
            build_method(method, options or {}, frozen, len(self.classes), self.randomness),
            compile=self.training.compile,
        )
        self.stages_learned = 0
        self._forward: Forward | None = None  # dropped when a stage is learned or restored

    def learn(
        self,
        domain: Domain,
        *,
        resumed: StageProgress | None = None,
        on_epoch: OnEpoch | None = None,
        on_batch: OnBatch | None = None,
    ) -> StageProgress:
        """Learn one stage: train on a domain with early stopping and keep the best state.

        If anything fails or is interrupted, the learner is left as it was before.

        Args:
            resumed: progress of this stage to continue from, after `restore`.
            on_epoch: called after every epoch.
            on_batch: called after every training step.
        """
        _expect(domain, Domain, "learn")
        domain.check(self.classes)
        side = domain.train.images.shape[-1]
        if not self._backbone_chosen and side > native_size(MICRO):
            raise ask_for_backbone(f"images of {side} pixels")
        self._forward = None
        self.runtime.release_cache()
        train, val = to_gpu_if_fits([domain.train, domain.val], self.runtime.device)
        stage = Stage(self.stages_learned + 1, replace(domain, train=train, val=val))
        before = snapshot(self.method.state())
        try:
            progress = learn_stage(
                self.method,
                stage,
                self.training,
                self.runtime,
                resumed=resumed,
                on_epoch=on_epoch,
                on_batch=on_batch,
            )
            progress.ended = end_stage(self.method, stage, self.training, self.runtime)
            self._forward = None
            if not self.method.learns_by_gradient:
                progress.best_score = self.evaluate(val).macro_f1
        except BaseException:
            # A failed stage must leave no trace, or a second attempt would start from it.
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
        predictions = self.forward.predictions(split)
        if problem := predictions.problem():
            raise TrainingBrokeError(f"training broke: {problem}")
        matrix = confusion_matrix(split.labels, predictions.classes, len(self.classes))
        return Scores(matrix, predictions)

    @property
    def forward(self) -> Forward:
        """Evaluation of the current model on stored images."""
        if self._forward is None:
            self._forward = Forward(self.method, self.runtime)
        return self._forward

    @torch.inference_mode()
    def predict(self, images: Tensor | str | Path | Sequence[str | Path]) -> Prediction:
        """Classify uint8 images `[N, 3, H, W]` or image files; no domain has to be named."""
        if self.stages_learned == 0:
            raise SodapError("nothing has been learned yet; call learn before predict")
        if isinstance(images, (str, Path)):
            images = [images]
        if not isinstance(images, Tensor) and not (
            isinstance(images, Sequence) and all(isinstance(each, (str, Path)) for each in images)
        ):
            raise SodapError(
                "predict takes image files (paths) or a uint8 tensor [N, 3, height, width]"
            )
        logits = self.forward.logits(self._batches(images))
        rows = [each.float().softmax(-1).cpu() for each in logits]
        probabilities = torch.cat([torch.empty(0, len(self.classes)), *rows])
        classes = probabilities.argmax(-1)
        if problem := ClassPredictions(classes, probabilities.amax(-1)).problem():
            raise SodapError(f"this model is broken: {problem}")
        return Prediction([self.classes[i] for i in classes], probabilities)

    def _batches(self, images: Tensor | Sequence[str | Path]) -> Iterator[Tensor]:
        for start in range(0, len(images), EVALUATION_BATCH):
            some = images[start : start + EVALUATION_BATCH]
            if not isinstance(some, Tensor):
                some = read_images([Path(file) for file in some], self.method.backbone.image_size)
            if some.dtype != torch.uint8 or some.ndim != 4 or some.shape[1] != 3:
                raise SodapError(
                    f"images must be uint8 [N, 3, height, width], "
                    f"got {some.dtype} {list(some.shape)}"
                )
            yield some

    def stored(self) -> list[Asset]:
        """Everything the model stores about images it has seen."""
        return self.method.stored()

    def save(self, folder: str | Path) -> None:
        """Write what was learned to a folder, with the name and digest of the backbone."""
        home = Path(folder)
        if home.exists() and not (home / "model.json").exists() and any(_entries(home)):
            raise SodapError(f"{home} is not empty and holds no model; choose another folder")
        save_state(home, "model", self.method.state(), self.metadata())

    def restore(self, tensors: Mapping[str, Tensor], stage: int, stages_learned: int) -> None:
        """Load the state of a method that had begun `stage`."""
        self._forward = None
        try:
            self.method.restore(tensors, stage)
        except (KeyError, RuntimeError) as error:
            raise SodapError(f"the saved state does not fit {self.method_name}: {error}") from error
        self.stages_learned = stages_learned

    def metadata(self) -> dict[str, Any]:
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
    """Load the learner that `save` wrote to a folder, or the model of a run.

    Args:
        weights: file of the backbone's weights, if it is not where it was when saved.
    """
    home = Path(folder)
    if not (home / "model.json").is_file() and (home / "model" / "model.json").is_file():
        home = home / "model"  # a run's folder holds the model in a folder of its own
    if not (home / "model.json").is_file() and (home / "config.json").is_file():
        raise SodapError(f"the run in {home} has no model: it is not finished, or it was deleted")
    tensors, metadata = load_state(home, "model")
    try:
        known = _Metadata.model_validate(metadata)
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


class _Metadata(BaseModel):
    """The part of `Learner.metadata` that is needed to build a learner again."""

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
