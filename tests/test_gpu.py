"""What only a GPU can show. Skipped where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sodap
from sodap.learning import Learner, Training
from sodap.learning.forward import Forward
from sodap.learning.step import Step, make_optimizer, set_learning_rates
from sodap.learning.stopwatch import Stopwatch
from sodap.learning.trace import TraceBuffer
from sodap.methods import method_names
from sodap.prompting.fast import entmax
from sodap.recording import WARM_UP, CannotRecordError, Recorded
from sodap.streams import Augmentation, Stream, to_gpu_if_fits
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
def test_recorded_steps_are_the_plain_ones(method: str) -> None:
    """A step that is replayed from a CUDA graph does what it does when it is launched anew."""
    stream = make_stream(domains=2, count=100)  # six full batches and a rest
    found = []
    for record in (False, True):
        training = TRAINING.model_copy(
            update={"record_steps": record, "augmentation": PAPER_AUGMENTATION}
        )
        learner = Learner(
            stream.classes, method=method, training=training, device="cuda", precision="fp32"
        )
        for domain in stream.domains:
            learner.learn(domain)
        found.append(learner.predict(stream.domains[0].test.images).probabilities)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=2e-3)


@pytest.mark.parametrize("method", ["residual-sodap", "sequential", "der++"])
def test_recorded_steps_are_kept_one_by_one(method: str) -> None:
    """A replay answers with the tensors of the one before: each must have been copied in time."""
    stream = make_stream(domains=2, count=100)  # six full batches and a rest
    found = []
    for record in (False, True):
        training = TRAINING.model_copy(update={"record_steps": record})
        learner = Learner(
            stream.classes, method=method, training=training, device="cuda", precision="fp32"
        )
        found.append([learner.learn(domain).trace for domain in stream.domains])
    for plain, recorded in zip(*found, strict=True):
        assert len(plain) == 21
        expected = plain.tensors()
        for name, values in recorded.tensors().items():
            assert values.device.type == "cpu"
            torch.testing.assert_close(values, expected[name], rtol=1e-2, atol=1e-2, equal_nan=True)
        assert len(set(recorded.losses["ce"].tolist())) > 18
    assert bool(found[1][1].weights) == (method == "residual-sodap")


def test_recorded_predictions_are_the_plain_ones_and_listeners_hear_all(stripes: Stream) -> None:
    learner = Learner(stripes.classes, training=TRAINING, device="cuda", precision="fp32")
    learner.learn(stripes.domains[0])
    split = make_split(4 * 64 + 10, 3, 0.0, 7)
    recorded, plain = (
        Forward(learner.method, learner.fabric, 64, record=record) for record in (True, False)
    )
    for some in torch.split(split.images.cuda(), 64):
        torch.testing.assert_close(recorded(some).clone(), plain(some), rtol=0, atol=1e-5)
    assert len(recorded.recorded.recordings) == 1, "the last batch is filled up"
    heard: list[int] = []
    hook = learner.method.register_forward_hook(lambda *_: heard.append(1))
    recorded.answers(split)
    hook.remove()
    assert len(heard) == 5
    head = learner.method.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.bias.add_(torch.tensor([0.0, 9.0, 0.0], device="cuda"))  # in its place
    assert (recorded.answers(split).classes == 1).float().mean() > 0.9
    bias = torch.tensor([9.0, 0.0, 0.0], device="cuda")
    head.bias = torch.nn.Parameter(bias)  # and in another
    assert torch.equal(recorded.answers(split).classes, plain.answers(split).classes)


def test_work_is_recorded_for_every_shape_that_comes_again() -> None:
    weight, draws = torch.ones(3, device="cuda"), torch.Generator("cuda").manual_seed(0)

    def work(numbers: Tensor) -> Tensor:
        noise = torch.rand(numbers.shape, device="cuda", generator=draws)
        return numbers * weight + (noise > 2)

    recorded = Recorded(work, weight.device, generators=[draws])
    for round in range(WARM_UP + 3):
        for rows in (5, 2, 7) if round == 0 else (5, 2):
            numbers = torch.rand(rows, 3, device="cuda")
            torch.testing.assert_close(recorded(numbers), numbers * weight)
        weight += 1
    assert {kind[0][0][0] for kind in recorded.recordings} == {5, 2}


def test_what_waits_for_the_host_is_launched_anew_or_refused() -> None:
    def work(numbers: Tensor) -> Tensor:
        return numbers * float(numbers.sum())

    numbers = torch.rand(3, device="cuda")
    willing, strict = (Recorded(work, numbers.device, strict=strict) for strict in (False, True))
    for _ in range(WARM_UP):
        strict(numbers)
    with pytest.raises(CannotRecordError):
        strict(numbers)
    for _ in range(WARM_UP + 2):
        torch.testing.assert_close(willing(numbers), work(numbers))
    assert not willing.recordings


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("method", ["residual-sodap", "sequential"])
def test_a_step_never_waits_for_the_host(method: str, record: bool, stripes: Stream) -> None:
    """Neither to learn nor to keep what it gave."""
    learner = Learner(stripes.classes, method=method, training=TRAINING, device="cuda")
    learner.learn(stripes.domains[0])
    learner.learn(stripes.domains[1])
    model = learner.method.train()
    split = stripes.domains[1].train
    images, labels = split.images.cuda(), split.labels.cuda()
    optimizer = make_optimizer(model.parameter_groups(1e-3, 0.01), learner.fabric.device)
    set_learning_rates(optimizer, [1e-3] * len(optimizer.param_groups), learner.fabric.device)
    step = Step(model, optimizer, learner.fabric, len(labels), Augmentation(), record=record)
    step.begin_epoch(1)
    buffer = TraceBuffer(WARM_UP + 4, learner.fabric.device)

    def learn() -> None:
        outcome = step(images, labels)
        buffer.add(len(labels), outcome.losses, outcome.weights)

    for _ in range(WARM_UP + 1):  # tables that are derived once, and a recording, may wait
        learn()
    assert bool(step.recorded.recordings) == record
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            learn()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trace = buffer.fetch(1)
    assert len(set(trace.losses["ce"].tolist())) == WARM_UP + 4


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_entmax_on_a_gpu(alpha: float) -> None:
    logits = torch.randn(64, 90, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entmax(logits.cuda(), alpha).cpu(), entmax(logits, alpha))


def sleep(seconds: float) -> None:
    """Keep the GPU busy for about so long."""
    torch.cuda._sleep(round(2_000_000_000 * seconds))  # type: ignore[no-untyped-call]


def fall_asleep() -> torch.cuda.Event:
    """The event is when the GPU wakes up, about a second later."""
    sleep(1)
    awake = torch.cuda.Event()  # type: ignore[no-untyped-call]
    awake.record()
    return awake


def test_recording_does_not_wait_for_work_under_way() -> None:
    weight = torch.ones(64, 64, device="cuda")
    recorded = Recorded(lambda numbers: numbers @ weight, weight.device)
    numbers = torch.rand(5, 64, device="cuda")
    recorded(numbers)
    torch.cuda.synchronize()
    before = fall_asleep()
    answer = recorded(numbers)
    assert recorded.recordings
    assert not before.query(), "the GPU should still be asleep"  # type: ignore[no-untyped-call]
    torch.testing.assert_close(answer, numbers @ weight)


def test_recording_leaves_random_numbers_of_work_under_way_as_they_are() -> None:
    """Replays that are still waiting when another shape is recorded draw as they would have."""
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

    recorded = Recorded(work, full.device, generators=[draws])
    for plain, replayed in zip(epochs(work), epochs(recorded), strict=True):
        assert torch.equal(plain, replayed)
    assert len(recorded.recordings) == 2


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
def test_memory_in_reserve_is_given_back_where_a_recording_could_lack_it(
    free: int, given_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 50))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: times.append(1))
    numbers = torch.rand(5, device="cuda")
    recorded = Recorded(lambda numbers: numbers + 1, numbers.device)
    for _ in range(WARM_UP + 2):
        torch.testing.assert_close(recorded(numbers), numbers + 1)
    assert len(times) == given_back


def test_a_stopwatch_counts_what_the_gpu_does() -> None:
    nothing, asleep = Stopwatch(torch.device("cuda")), Stopwatch(torch.device("cuda"))
    nothing.stop()
    sleep(1)
    asleep.stop()
    began = time.perf_counter()
    seconds = asleep.seconds()
    assert time.perf_counter() - began > 0.5 * seconds, "it was launched, not waited for"
    assert 0 <= nothing.seconds() < 0.1 * seconds
    assert 0.2 < seconds < 10
