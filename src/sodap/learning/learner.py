"""`Learner`: a classifier that learns one domain after another."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from sodap.backbones import build_backbone, native_size
from sodap.backbones.names import MICRO, ask_for_backbone
from sodap.errors import SodapError, TrainingBrokeError
from sodap.evaluation import confusion_matrix
from sodap.execution import ClassPredictions, Forward, Runtime
from sodap.formats import first_few, format_bytes, plural
from sodap.learning.bar import LearningBar
from sodap.learning.inputs import Images, OnError, PredictInput, most_probable
from sodap.learning.loop import OnBatch, OnEpoch, end_stage, learn_stage
from sodap.learning.progress import StageProgress, snapshot
from sodap.learning.results import Prediction, Scores
from sodap.learning.training import Training
from sodap.methods import Asset, build_method, find_method
from sodap.randomness import Randomness
from sodap.storage import save_state
from sodap.streams import Domain, Split, Stage, to_gpu_if_fits
from sodap.streams.grey import NO_RANGES
from sodap.version import __version__


class RepeatedDomainWarning(UserWarning):
    """A domain is learned that was learned before."""


class Learner:
    """A classifier that learns domains one after another and can predict at any time.

    >>> learner = Learner(["benign", "malignant"], backbone="deit_tiny", epochs=20)
    >>> learner.learn(first_clinic)
    >>> learner.learn(second_clinic)
    >>> learner.predict(["lesion.jpg"]).labels

    Args:
        classes: Names of the classes, in the order of the label numbers; `stream.classes`.
        method: Name of the method; `sodap methods` lists all.
        options: Options of the method by name; `sodap methods NAME` lists them.
        backbone: The frozen vision transformer: `deit_tiny`, or the name of any timm ViT with a
            class token; default: the embedded `micro`, which is for images of 32 pixels.
        weights: Its weights: `pretrained` (timm's), `random`, or a file (safetensors or pth).
        image_size: Side of the images in pixels; default: that of the backbone.
        training: Training settings as an object, for example to share them between learners.
        seed: Seed of all random numbers.
        device: `cpu`, `cuda`, or `auto`: a GPU if there is one.
        precision: Of the frozen backbone: `fp32`, `bf16`, or `auto`: bf16 on a GPU.
        settings: Single training settings, which replace those of `training`: `epochs` (at most,
            per stage), `patience` (epochs without a better validation score), `batch_size`, `lr`,
            `weight_decay`, `augmentation`, `compile` and `cuda_graphs`.
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
        **settings: Any,
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
        self.training = _training(training or Training(), settings, method)
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
        self.domains_learned: tuple[str, ...] = ()
        """Names of the domains of all stages, as far as they are known."""
        self.ranges = NO_RANGES
        """Black and white of deep grey images, as in the domains that were learned."""
        self._forward: Forward | None = None  # dropped when a stage is learned or restored

    def learn(
        self,
        domain: Domain,
        *,
        resumed: StageProgress | None = None,
        on_epoch: OnEpoch | None = None,
        on_batch: OnBatch | None = None,
        progress: bool | None = None,
    ) -> StageProgress:
        """Learn one stage: train on a domain with early stopping and keep the best state.

        If anything fails or is interrupted, the learner is left as it was before.

        Args:
            domain: The domain to learn, one of `stream.domains`.
            resumed: Progress of this stage to continue from, after `restore`.
            on_epoch: Called after every epoch with the progress of the stage.
            on_batch: Called after every step with the epoch, the steps done and those of an epoch.
            progress: Whether to show progress: a bar on a terminal, elsewhere a line an epoch.
                By default there is a bar on a terminal, and nothing elsewhere.
        """
        _expect(domain, Domain, "learn")
        domain.check(self.classes)
        self._check_ranges(domain)
        side = domain.train.images.shape[-1]
        if not self._backbone_chosen and side > native_size(MICRO):
            raise ask_for_backbone(f"images of {side} pixels")
        self._warn_if_repeated(domain)
        self._forward = None
        self.runtime.release_cache()
        train, val = to_gpu_if_fits([domain.train, domain.val], self.runtime.device)
        stage = Stage(self.stages_learned + 1, replace(domain, train=train, val=val))
        before = snapshot(self.method.state())
        bar = LearningBar(domain.name, self.training.epochs, progress, on_epoch, on_batch)
        try:
            with bar:
                learned = learn_stage(
                    self.method,
                    stage,
                    self.training,
                    self.runtime,
                    resumed=resumed,
                    on_epoch=bar.epoch_done,
                    on_batch=bar.batch_done,
                )
                learned.ended = end_stage(self.method, stage, self.training, self.runtime)
            self._forward = None
            if not self.method.has_epochs:
                learned.best_score = self.evaluate(val).macro_f1
        except BaseException:
            # A failed stage must leave no trace, or a second attempt would start from it.
            self._forward = None
            self.method.restore(before, self.stages_learned if resumed is None else stage.number)
            raise
        self.stages_learned = stage.number
        self.domains_learned += (domain.name,)
        self.ranges = self.ranges.with_missing(domain.ranges)
        return learned

    def _warn_if_repeated(self, domain: Domain) -> None:
        if domain.name in self.domains_learned:
            warnings.warn(
                f"domain '{domain.name}' was learned before, so its images count twice if they are "
                f"the same; start again from an earlier model, or give new images another name",
                RepeatedDomainWarning,
                stacklevel=3,
            )

    def evaluate(self, data: Domain | Split) -> Scores:
        """Scores on a split, or on the test split of a domain.

        Args:
            data: A domain, whose test split is taken, or any split.
        """
        _expect(data, (Domain, Split), "evaluate")
        if isinstance(data, Domain):
            data.check_classes(self.classes)
            self._check_ranges(data)
        split = data.test if isinstance(data, Domain) else data
        predictions = self.forward.predictions(split)
        if problem := predictions.problem():
            raise TrainingBrokeError(f"training broke: {problem}")
        matrix = confusion_matrix(split.labels, predictions.classes, len(self.classes))
        return Scores(matrix, predictions)

    def _check_ranges(self, domain: Domain) -> None:
        """Raise an error for grey images that were scaled otherwise than those learned before."""
        if self.ranges.with_missing(domain.ranges) != domain.ranges.with_missing(self.ranges):
            raise SodapError(
                f"the grey images of domain '{domain.name}' were not scaled like those learned "
                f"before; load it with ranges=learner.ranges"
            )

    @property
    def forward(self) -> Forward:
        """Evaluation of the current model on stored images."""
        if self._forward is None:
            self._forward = Forward(self.method, self.runtime)
        return self._forward

    @torch.inference_mode()
    def predict(self, images: Images, *, on_error: OnError = "raise") -> Prediction:
        """Classify images; no domain has to be named.

        Args:
            images: One image file or several, uint8 images `[N, 3, H, W]`, or grey images of 16
                bits `[N, 1, H, W]` (uint16), which are scaled like the training images.
            on_error: What to do about a file that cannot be read: `raise` an error, or `skip` it.
                A skipped file is in `errors` of the prediction, and its label is None.
        """
        if self.stages_learned == 0:
            raise SodapError("nothing has been learned yet; call learn before predict")
        given = PredictInput(images, self.method.backbone.image_size, self.ranges, on_error)
        rows, known = [torch.empty(0, len(self.classes))], []
        for batch in given:
            rows += [each.float().softmax(-1).cpu() for each in self.forward.logits([batch])]
            known.append(self.forward.domains(batch))
        found = torch.cat(rows)
        if problem := ClassPredictions(found.argmax(-1), found.amax(-1)).problem():
            raise SodapError(f"this model is broken: {problem}")
        probabilities = given.aligned(found)
        labels = most_probable(probabilities, self.classes)
        told = [each.float().cpu() for each in known if each is not None]
        if not told:
            return Prediction(labels, probabilities, errors=given.errors)
        domains = given.aligned(torch.cat(told))
        names = self.domains_learned
        if len(names) != domains.shape[-1]:  # restored without the names
            names = tuple(f"domain {number + 1}" for number in range(domains.shape[-1]))
        nearest = most_probable(domains, names)
        return Prediction(labels, probabilities, nearest, domains, given.errors)

    def stored(self) -> list[Asset]:
        """Everything the model stores about images it has seen."""
        return self.method.stored()

    def save(self, folder: str | Path) -> None:
        """Write what was learned to a folder, with the name and digest of the backbone.

        Args:
            folder: A new folder, or that of an earlier model, which is replaced.
        """
        home = Path(folder)
        if home.exists() and not (home / "model.json").exists() and any(_entries(home)):
            raise SodapError(f"{home} is not empty and holds no model; choose another folder")
        save_state(home, "model", self.method.state(), self.metadata())

    def restore(
        self,
        tensors: Mapping[str, Tensor],
        stage: int,
        stages_learned: int,
        domains_learned: Sequence[str] = (),
    ) -> None:
        """Load the state of a method that had begun `stage`, in place of everything learned."""
        self._forward = None
        try:
            self.method.restore(tensors, stage)
        except (KeyError, RuntimeError) as error:
            raise SodapError(f"the saved state does not fit {self.method_name}: {error}") from error
        self.stages_learned = stages_learned
        self.domains_learned = tuple(domains_learned)

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
            "ranges": self.ranges.to_json(),
            "stages_learned": self.stages_learned,
            "domains_learned": list(self.domains_learned),
        }

    def __repr__(self) -> str:
        backbone, assets = self.method.backbone, self.stored()
        learned = plural(self.stages_learned, "domain") + " learned"
        if self.domains_learned:
            learned += f" ({first_few(self.domains_learned)})"
        images = sum(asset.images for asset in assets)
        return (
            f"Learner: {self.method_name} on {backbone.name} ({backbone.image_size} px, "
            f"{self.runtime.device}), {len(self.classes)} classes ({first_few(self.classes)})\n"
            f"{learned}; stored about them: {format_bytes(sum(each.bytes for each in assets))}, "
            f"{plural(images, 'image') if images else 'no image'}"
        )


def _training(training: Training, settings: Mapping[str, Any], method: str) -> Training:
    """Training settings with single changes; an option of the method is not one of them."""
    options = find_method(method).Config.model_fields
    if misplaced := [name for name in settings if name in options]:
        given = {misplaced[0]: settings[misplaced[0]]}
        raise SodapError(f"'{misplaced[0]}' is an option of {method}; give it as options={given}")
    return training.changed(settings)


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
