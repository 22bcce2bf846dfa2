"""Tests that need a GPU; skipped without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sodap
from sodap.execution import (
    EVALUATION_BATCH,
    CannotCaptureError,
    DeviceTimer,
    Forward,
    GraphedCallable,
    Runtime,
    TrainStep,
)
from sodap.execution.cuda_graphs import WARM_UP_CALLS
from sodap.learning import Learner, Training
from sodap.learning.trace import TraceBuffer
from sodap.methods import method_names
from sodap.prompting.fast import entmax
from sodap.streams import Stream, to_gpu_if_fits
from sodap.streams.augmentation import PAPER_AUGMENTATION
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
def test_captured_steps_train_like_others(method: str) -> None:
    stream = make_stream(domains=2, count=100)  # six full batches and a rest
    found = []
    for cuda_graphs in (False, True):
        training = TRAINING.model_copy(
            update={"cuda_graphs": cuda_graphs, "augmentation": PAPER_AUGMENTATION}
        )
        learner = Learner(
            stream.classes, method=method, training=training, device="cuda", precision="fp32"
        )
        for domain in stream.domains:
            learner.learn(domain)
        found.append(learner.predict(stream.domains[0].test.images).probabilities)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=2e-3)


@pytest.mark.parametrize("method", ["residual-sodap", "sequential", "der++"])
def test_the_trace_has_every_captured_step(method: str) -> None:
    """A replay overwrites the result of the one before, which must have been copied in time."""
    stream = make_stream(domains=2, count=100)  # six full batches and a rest
    found = []
    for cuda_graphs in (False, True):
        training = TRAINING.model_copy(update={"cuda_graphs": cuda_graphs})
        learner = Learner(
            stream.classes, method=method, training=training, device="cuda", precision="fp32"
        )
        found.append([learner.learn(domain).trace for domain in stream.domains])
    for plain, captured in zip(*found, strict=True):
        assert len(plain) == 21
        expected = plain.tensors()
        for name, values in captured.tensors().items():
            assert values.device.type == "cpu"
            torch.testing.assert_close(values, expected[name], rtol=1e-2, atol=1e-2, equal_nan=True)
        assert len(set(captured.losses["ce"].tolist())) > 18
    assert bool(found[1][1].weights) == (method == "residual-sodap")


def test_captured_predictions_are_those_of_a_plain_pass(stripes: Stream) -> None:
    learner = Learner(stripes.classes, training=TRAINING, device="cuda", precision="fp32")
    learner.learn(stripes.domains[0])
    split = make_split(4 * 64 + 10, 3, 0.0, 7)
    captured, plain = (
        Forward(learner.method, Runtime("cuda", "fp32", cuda_graphs=cuda_graphs), 64)
        for cuda_graphs in (True, False)
    )
    for some in torch.split(split.images.cuda(), 64):
        found = captured(some, pad=True).clone()
        torch.testing.assert_close(found, plain(some), rtol=0, atol=1e-5)
    assert len(captured.graphed.graphs) == 1, "the last batch is padded"
    calls: list[int] = []
    hook = learner.method.register_forward_hook(lambda *_: calls.append(1))
    captured.predictions(split)
    hook.remove()
    assert len(calls) == 5, "with a hook nothing is replayed"
    head = learner.method.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.bias.add_(torch.tensor([0.0, 9.0, 0.0], device="cuda"))  # at the same address
    assert (captured.predictions(split).classes == 1).float().mean() > 0.9
    bias = torch.tensor([9.0, 0.0, 0.0], device="cuda")
    head.bias = torch.nn.Parameter(bias)  # at another one
    assert torch.equal(captured.predictions(split).classes, plain.predictions(split).classes)


def test_predict_and_evaluate_agree(stripes: Stream) -> None:
    """Full batches of `predict` are replayed, smaller ones are not padded."""
    learner = Learner(stripes.classes, training=TRAINING, device="cuda", precision="fp32")
    learner.learn(stripes.domains[0])
    split = make_split(3 * EVALUATION_BATCH + 10, 3, 0.0, 7)
    predicted = learner.predict(split.images)
    assert len(learner.forward.graphed.graphs) == 1
    found = learner.evaluate(split).predictions
    confidence = predicted.probabilities.amax(-1)
    torch.testing.assert_close(found.confidence, confidence, rtol=0, atol=1e-4)
    assert [learner.classes[index] for index in found.classes] == predicted.labels


def test_observations_with_graphs_are_those_without(stripes: Stream) -> None:
    learner = Learner(stripes.classes, training=TRAINING, device="cuda", precision="fp32")
    method, split = learner.method.eval(), make_split(4 * 16 + 3, 3, 0.0, 7)
    found = []
    for cuda_graphs in (True, False):
        runtime = Runtime("cuda", "fp32", cuda_graphs=cuda_graphs)
        results = list(runtime.observe(method, split, 16).map(method))
        assert [len(logits) for logits, _ in results] == [16] * 4 + [3]
        found.append(torch.cat([logits for logits, _ in results]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_a_graph_is_captured_for_every_shape_that_comes_again() -> None:
    weight, draws = torch.ones(3, device="cuda"), torch.Generator("cuda").manual_seed(0)

    def work(numbers: Tensor) -> Tensor:
        noise = torch.rand(numbers.shape, device="cuda", generator=draws)
        return numbers * weight + (noise > 2)

    graphed = GraphedCallable(work, weight.device, generators=[draws])
    for round in range(WARM_UP_CALLS + 3):
        for rows in (5, 2, 7) if round == 0 else (5, 2):
            numbers = torch.rand(rows, 3, device="cuda")
            torch.testing.assert_close(graphed(numbers), numbers * weight)
        weight += 1
    assert {signature[0][0][0] for signature in graphed.graphs} == {5, 2}


def test_work_that_waits_for_the_host_is_not_captured() -> None:
    def work(numbers: Tensor) -> Tensor:
        return numbers * float(numbers.sum())

    numbers = torch.rand(3, device="cuda")
    lenient, strict = (
        GraphedCallable(work, numbers.device, strict=strict) for strict in (False, True)
    )
    for _ in range(WARM_UP_CALLS):
        strict(numbers)
    with pytest.raises(CannotCaptureError):
        strict(numbers)
    for _ in range(WARM_UP_CALLS + 2):
        torch.testing.assert_close(lenient(numbers), work(numbers))
    assert not lenient.graphs
    assert not lenient.active


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("method", ["residual-sodap", "sequential"])
def test_a_step_never_waits_for_the_host(method: str, cuda_graphs: bool, stripes: Stream) -> None:
    """Neither the step itself nor the trace of its losses."""
    training = TRAINING.model_copy(update={"cuda_graphs": cuda_graphs})
    learner = Learner(stripes.classes, method=method, training=training, device="cuda")
    learner.learn(stripes.domains[0])
    learner.learn(stripes.domains[1])
    model, runtime = learner.method.train(), learner.runtime
    split = stripes.domains[1].train
    images, labels = split.images.cuda(), split.labels.cuda()
    step = TrainStep(model, runtime, model.parameter_groups(1e-3, 0.01), len(labels))
    step.begin_epoch(1)
    buffer = TraceBuffer(WARM_UP_CALLS + 4, runtime.device)

    def learn() -> None:
        result = step(images, labels)
        buffer.add(len(labels), result.losses, result.weights)

    for _ in range(WARM_UP_CALLS + 1):  # derived tables and the capture may wait
        learn()
    assert bool(step.graphed.graphs) == cuda_graphs
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            learn()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trace = buffer.fetch(1)
    assert len(set(trace.losses["ce"].tolist())) == WARM_UP_CALLS + 4


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_entmax_on_a_gpu(alpha: float) -> None:
    logits = torch.randn(64, 90, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entmax(logits.cuda(), alpha).cpu(), entmax(logits, alpha))


def sleep(seconds: float) -> None:
    """Keep the GPU busy for about this long."""
    torch.cuda._sleep(round(2_000_000_000 * seconds))  # type: ignore[no-untyped-call]


def fall_asleep() -> torch.cuda.Event:
    """An event that the GPU reaches about a second later."""
    sleep(1)
    awake = torch.cuda.Event()  # type: ignore[no-untyped-call]
    awake.record()
    return awake


def test_a_capture_does_not_wait_for_queued_work() -> None:
    weight = torch.ones(64, 64, device="cuda")
    graphed = GraphedCallable(lambda numbers: numbers @ weight, weight.device)
    numbers = torch.rand(5, 64, device="cuda")
    graphed(numbers)
    torch.cuda.synchronize()
    before = fall_asleep()
    result = graphed(numbers)
    assert graphed.graphs
    assert not before.query(), "the GPU should still be asleep"  # type: ignore[no-untyped-call]
    torch.testing.assert_close(result, numbers @ weight)


def test_a_capture_does_not_change_the_random_numbers_of_queued_replays() -> None:
    draws = torch.Generator("cuda")

    def work(numbers: Tensor) -> Tensor:
        sleep(0.2)  # what a step does before it draws
        return numbers + torch.rand(numbers.shape, device="cuda", generator=draws)

    full, last = torch.zeros(5, 3, device="cuda"), torch.zeros(2, 3, device="cuda")

    def epochs(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
        draws.manual_seed(1)
        found = []
        for number, batch in enumerate([full, full, last, full, full, last, full, last]):
            found.append(call(batch).clone())
            if number < 3:
                torch.cuda.synchronize()
        return found

    graphed = GraphedCallable(work, full.device, generators=[draws])
    for plain, replayed in zip(epochs(work), epochs(graphed), strict=True):
        assert torch.equal(plain, replayed)
    assert len(graphed.graphs) == 2


@pytest.mark.parametrize("short", [False, True])
def test_images_live_on_the_gpu_where_they_fit(
    short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = [make_split(count, 3, 0.0, 7) for count in (8, 4)]
    needed = sum(split.images.nbytes for split in splits)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * (needed - short), 0))
    found = to_gpu_if_fits(splits, torch.device("cuda"), share=0.1)
    assert [split.images.is_cuda for split in found] == [not short] * 2
    for ours, theirs in zip(found, splits, strict=True):
        assert torch.equal(ours.images.cpu(), theirs.images)
        assert torch.equal(ours.labels.cpu(), theirs.labels)


@pytest.mark.parametrize(("free", "given_back"), [(0, 1), (1 << 50, 0)])
def test_cached_memory_is_released_if_a_graph_could_lack_it(
    free: int, given_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 50))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: times.append(1))
    numbers = torch.rand(5, device="cuda")
    graphed = GraphedCallable(lambda numbers: numbers + 1, numbers.device)
    for _ in range(WARM_UP_CALLS + 2):
        torch.testing.assert_close(graphed(numbers), numbers + 1)
    assert len(times) == given_back


def test_a_timer_measures_what_the_gpu_does_and_does_not_wait() -> None:
    device = torch.device("cuda")
    idle, busy = DeviceTimer(device), DeviceTimer(device)
    idle.stop()
    awake = fall_asleep()
    busy.stop()
    assert not awake.query(), "the GPU should still be asleep"  # type: ignore[no-untyped-call]
    assert busy.seconds() > idle.seconds() >= 0
    assert awake.query(), "reading the timer waits for its end"  # type: ignore[no-untyped-call]
