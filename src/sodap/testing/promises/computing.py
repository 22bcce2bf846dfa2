"""Compiled, or on another device, it says the same."""

from __future__ import annotations

import torch

from sodap.learning import load
from sodap.testing.promises.judging import demand, promise
from sodap.testing.trial import Trial


@promise
def a_compiled_forward_agrees(trial: Trial) -> None:
    """`torch.compile` of forward says the same, or `not_compiled` says why it cannot."""
    learner = trial.taught.learner
    if learner.method.not_compiled:
        return
    method, device = learner.method.eval(), learner.runtime.device
    images = method.backbone.prepare(trial.stream.domains[0].test.images.to(device))
    # What a method's own code can break is being captured, not the making of machine code.
    compiled = torch.compile(method, backend="aot_eager")
    with torch.no_grad():
        change = float((compiled(images).softmax(-1) - method(images).softmax(-1)).abs().max())
    torch.compiler.reset()
    demand(change <= trial.tolerance, f"compiled, a probability changes by {change:.2g}")


@promise
def a_gpu_agrees_with_the_cpu(trial: Trial) -> None:
    """Learned on one device, it predicts nearly the same on the other, and learns on there."""
    images = trial.stream.domains[0].test.images
    first = trial.taught.first_logits.softmax(-1)
    for device in ("cpu", "cuda"):
        other = load(trial.taught.folder, device=device, precision="fp32")
        change = float((trial.logits(other, images).softmax(-1) - first).abs().max())
        demand(change <= 5e-3, f"on {device} a probability changes by {change:.2g}")
        trial.teach(other, trial.stream.domains)
        finite = bool(trial.logits(other, images).isfinite().all())
        demand(finite, f"after a stage on {device} some logits are not finite")
