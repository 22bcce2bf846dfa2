"""Checks of compilation and of the GPU."""

from __future__ import annotations

import torch

from sodap.learning import load
from sodap.testing.promises.checks import promise, require
from sodap.testing.trial import Trial


@promise
def a_compiled_forward_agrees(trial: Trial) -> None:
    """`torch.compile` of `forward` gives the same logits, or `not_compiled` says why it cannot."""
    learner = trial.trained.learner
    if learner.method.not_compiled:
        return
    method, device = learner.method.eval(), learner.runtime.device
    images = method.backbone.prepare(trial.stream.domains[0].test.images.to(device))
    # The code of a method can break tracing, but not what comes after it.
    compiled = torch.compile(method, backend="eager")
    with torch.no_grad():
        change = float((compiled(images).softmax(-1) - method(images).softmax(-1)).abs().max())
    torch.compiler.reset()
    require(change <= trial.tolerance, f"compiled, a probability changes by {change:.2g}")


@promise
def a_gpu_agrees_with_the_cpu(trial: Trial) -> None:
    """A model learned on one device predicts nearly the same on the other and can learn there."""
    images = trial.stream.domains[0].test.images
    first = trial.trained.first_logits.softmax(-1)
    for device in ("cpu", "cuda"):
        other = load(trial.trained.folder, device=device, precision="fp32")
        change = float((trial.logits(other, images).softmax(-1) - first).abs().max())
        require(change <= 5e-3, f"on {device} a probability changes by {change:.2g}")
        trial.learn_next(other, trial.stream.domains)
        finite = bool(trial.logits(other, images).isfinite().all())
        require(finite, f"after a stage on {device} some logits are not finite")
