"""Predictions of a method for stored images."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sodap.execution.cuda_graphs import GraphedCallable, pad_rows
from sodap.execution.eager import compiled_only_if
from sodap.execution.runtime import Runtime
from sodap.methods.base import Method
from sodap.prompting import NOTHING, Inspection, Intervention, Routing
from sodap.streams import BatchLoader, Split

EVALUATION_BATCH = 256
"""Images per batch outside training."""


@dataclass(frozen=True)
class ClassPredictions:
    """Predicted classes of N images."""

    classes: Tensor
    """Class indices `[N]`."""
    confidence: Tensor
    """Probability of the predicted class `[N]`."""
    nll: Tensor | None = None
    """Negative logarithm of the probability of the true class `[N]`, if that is known."""

    def problem(self) -> str | None:
        """Describe predictions that are not numbers; None if all are."""
        lost = int(self.confidence.isnan().sum())
        if not lost:
            return None
        return f"the predictions for {lost:,} of {len(self.confidence):,} images are not numbers"


class Forward:
    """Evaluate a method on uint8 images `[B, 3, H, W]`, on a GPU with CUDA graphs.

    A graph is reused as long as all tensors of the method keep their addresses, so through the
    epochs of a stage. Batches of `batch_size` images are compiled, if anything is.
    """

    def __init__(
        self, method: Method, runtime: Runtime, batch_size: int = EVALUATION_BATCH
    ) -> None:
        self.method = method
        self.runtime = runtime
        self.batch_size = batch_size
        self.uses_graphs = runtime.graphs(method)
        self._reset()

    def _reset(self) -> None:
        self.addresses = self._addresses()
        self.graphed = GraphedCallable(
            partial(_logits, self.method, self.runtime),
            self.runtime.device,
            enabled=self.uses_graphs,
        )

    def _addresses(self) -> list[int]:
        """Addresses of all tensors that a graph reads."""
        return [tensor.data_ptr() for tensor in self.method.state_dict().values()]

    @torch.inference_mode()
    def __call__(self, images: Tensor, *, pad: bool = False) -> Tensor:
        """Logits `[B, C]` of one batch, valid until the next call.

        `pad` lets a smaller batch use the graph of the full ones, which pays if that exists anyway.
        """
        self.method.eval()
        images = images.to(self.runtime.device)
        count = len(images)
        full = count == self.batch_size
        fits = full or (pad and count < self.batch_size)
        if self.uses_graphs and fits and not self._has_hooks():
            return self.graphed(pad_rows(images, self.batch_size))[:count]
        with compiled_only_if(full):
            return _logits(self.method, self.runtime, images)

    def logits(self, batches: Iterable[Tensor], *, pad: bool = False) -> Iterator[Tensor]:
        """Logits of each batch; capture again if tensors of the method have moved."""
        if self.uses_graphs and self._addresses() != self.addresses:
            self._reset()
        for images in batches:
            yield self(images, pad=pad)

    @torch.inference_mode()
    def predictions(self, split: Split) -> ClassPredictions:
        """Predicted classes of all images of a split, in order."""
        classes, confidence, nll = [], [], []
        loader = BatchLoader(split, self.batch_size, self.runtime.device)
        labels = torch.split(split.labels.to(self.runtime.device), self.batch_size)
        batches = self.logits((images for images, _ in loader), pad=True)
        for logits, truth in zip(batches, labels, strict=True):
            classes.append(logits.argmax(-1))
            confidence.append(logits.float().softmax(-1).amax(-1))
            nll.append(F.cross_entropy(logits.float(), truth, reduction="none"))
        return ClassPredictions(*(torch.cat(each).cpu() for each in (classes, confidence, nll)))

    @torch.inference_mode()
    def routing(self, images: Tensor) -> list[Routing] | None:
        """Prompts selected by each image, as `Method.routing` returns them."""
        method, runtime = self.method.eval(), self.runtime
        with compiled_only_if(False), runtime.tf32(method), runtime.autocast():
            return method.routing(method.backbone.prepare(images.to(runtime.device)))

    @torch.inference_mode()
    def domains(self, images: Tensor) -> Tensor | None:
        """Probabilities of the known domains `[B, T]`, as the method returns them."""
        if type(self.method).domain_probabilities is Method.domain_probabilities:
            return None  # without preparing the images for nothing
        method, runtime = self.method.eval(), self.runtime
        with compiled_only_if(False), runtime.tf32(method), runtime.autocast():
            return method.domain_probabilities(method.backbone.prepare(images.to(runtime.device)))

    @torch.inference_mode()
    def inspect(self, images: Tensor, intervention: Intervention = NOTHING) -> Inspection | None:
        """A pass seen from inside, as `Method.inspect` returns it."""
        method, runtime = self.method.eval(), self.runtime
        with compiled_only_if(False), runtime.tf32(method), runtime.autocast():
            return method.inspect(method.backbone.prepare(images.to(runtime.device)), intervention)

    def _has_hooks(self) -> bool:
        """Whether any module has forward hooks, which a replay would not call."""
        return any(m._forward_hooks or m._forward_pre_hooks for m in self.method.modules())

    def __deepcopy__(self, memo: dict[int, Any]) -> Forward:
        """Copy without graphs, which cannot be copied."""
        method, runtime = copy.deepcopy(self.method, memo), copy.deepcopy(self.runtime, memo)
        return Forward(method, runtime, self.batch_size)


def _logits(method: Method, runtime: Runtime, images: Tensor) -> Tensor:
    with runtime.tf32(method), runtime.autocast():
        logits: Tensor = method(method.backbone.prepare(images))
    return logits
