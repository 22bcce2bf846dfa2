"""What only a GPU can show. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sodap
from sodap.learning import Learner, Training
from sodap.learning.forward import Forward
from sodap.methods import method_names
from sodap.prompting import entmax
from sodap.streams import Stream
from sodap.streams.augment import PAPER
from tests.conftest import make_split, make_stream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

TRAINING = Training(epochs=3, patience=3, batch_size=16, lr=3e-3)


@pytest.mark.parametrize("method", method_names())
def test_a_gpu_agrees_with_the_cpu(method: str, stripes: Stream, tmp_path: Path) -> None:
    learner = Learner(
        stripes.classes, method=method, training=TRAINING, device="cuda", precision="fp32"
    )
    for domain in stripes.domains:
        learner.learn(domain)
    images = stripes.domains[0].test.images
    found = learner.predict(images).probabilities
    learner.save(tmp_path)
    on_cpu = sodap.load(tmp_path, device="cpu").predict(images).probabilities
    torch.testing.assert_close(found, on_cpu, rtol=0, atol=5e-3)
    half = sodap.load(tmp_path, device="cuda", precision="bf16").predict(images).probabilities
    torch.testing.assert_close(half, on_cpu, rtol=0, atol=0.08)


@pytest.mark.parametrize("method", method_names())
def test_recorded_steps_are_the_plain_ones(method: str) -> None:
    """A step that is replayed from a CUDA graph does what it does when it is launched anew."""
    stream = make_stream(domains=2, count=100)  # six full batches and a rest
    found = []
    for record in (False, True):
        training = TRAINING.model_copy(update={"record_steps": record, "augmentation": PAPER})
        learner = Learner(
            stream.classes, method=method, training=training, device="cuda", precision="fp32"
        )
        for domain in stream.domains:
            learner.learn(domain)
        found.append(learner.predict(stream.domains[0].test.images).probabilities)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=2e-3)


def test_recorded_predictions_are_the_plain_ones_and_listeners_hear_all(stripes: Stream) -> None:
    learner = Learner(stripes.classes, training=TRAINING, device="cuda", precision="fp32")
    learner.learn(stripes.domains[0])
    images = make_split(4 * 64 + 10, 3, 0.0, 7).images.cuda()
    recorded, plain = (Forward(learner.method, learner.fabric, 64, batches) for batches in (4, 0))
    assert recorded.records
    for some in torch.split(images, 64):
        torch.testing.assert_close(recorded(some).clone(), plain(some), rtol=0, atol=1e-5)
    heard: list[int] = []
    hook = learner.method.register_forward_hook(lambda *_: heard.append(1))
    assert not Forward(learner.method, learner.fabric, 64, 4).records
    hook.remove()


@pytest.mark.parametrize("method", ["residual-sodap", "sequential"])
def test_a_step_never_waits_for_the_host(method: str, stripes: Stream) -> None:
    learner = Learner(stripes.classes, method=method, training=TRAINING, device="cuda")
    learner.learn(stripes.domains[0])
    learner.learn(stripes.domains[1])
    model = learner.method.train()
    split = stripes.domains[1].train
    images = model.backbone.prepare(split.images.cuda())
    labels = split.labels.cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameter_groups(1e-3, 0.01))

    def step() -> None:
        with learner.fabric.autocast():
            total = model.total(model.losses(images, labels, generator))
        optimizer.zero_grad(set_to_none=True)
        learner.fabric.backward(total)
        optimizer.step()
        model.after_step()

    step()  # tables that are derived once may wait
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_entmax_on_a_gpu(alpha: float) -> None:
    logits = torch.randn(64, 90, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entmax(logits.cuda(), alpha).cpu(), entmax(logits, alpha))
