"""Where the time of one training step goes: `python -m benchmarks.profile --record FILE`.

The plain version launches every operation from Python. The fast one is compiled and replayed from a
CUDA graph. The third goes back along the CLS row only. On a processor there is nothing to launch,
and the first stands against the third.
"""

from __future__ import annotations

import argparse
import bisect
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.figures import write
from benchmarks.steps import Contender, make, seconds, wait
from sodap.prompting.prompter import Prompter, PromptPass
from sodap.reporting.svg import STYLE

KINDS = {
    "attention": "#2f86d0",
    "products": "#1b9e77",
    "norm, pointwise": "#c9b458",
    "prompter": "#d9660a",
    "optimiser": "#b565a7",
    "idle": "#e4e4e4",
}
"""And their colours. Idle is what lies between two kernels; on a processor, Python's own time."""

# What is neither of the two is pointwise, or a norm, or a copy.
ATTENTION = re.compile(r"flash|fmha|attention|cudnn_generated_fort_native_sdpa", re.I)
PRODUCTS = re.compile(r"gemm|gemv|cutlass|xmma|nvjet|splitk|conv|\b(add)?b?mm\b|mkldnn|dot\b", re.I)

STEP, PROMPTER = "step of the benchmark", "prompter of the benchmark"
OPTIMISER = "Optimizer.step"
RESOLUTION = 1000
"""What is shorter than so many parts of a step is drawn with its neighbours."""


@dataclass(frozen=True)
class Kernel:
    """One piece of work, on the GPU or, without one, of the processor; times in microseconds."""

    name: str
    start: float
    length: float
    kind: str


def kind_by_name(name: str) -> str:
    if ATTENTION.search(name):
        return "attention"
    if PRODUCTS.search(name):
        return "products"
    if "adam" in name.lower():
        return "optimiser"
    return "prompter" if "entmax" in name.lower() else "norm, pointwise"


# ------------------------------------------------------------------ one step, watched


@contextmanager
def marked_prompter() -> Iterator[None]:
    """Whatever the prompter does goes under its name while this lasts."""
    places: list[tuple[type, str]] = [
        (PromptPass, "__init__"),
        (PromptPass, "cls"),
        (Prompter, "diversity"),
        (Prompter, "norm"),
        (Prompter, "remember"),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name in places]

    def marked(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with record_function(PROMPTER):
                return work(*args, **options)

        return call

    try:
        for owner, name, work in before:
            setattr(owner, name, marked(work))
        yield
    finally:
        for owner, name, work in before:
            setattr(owner, name, work)


def watched(work: Callable[[], object], device: torch.device) -> list[Any]:
    """The events of the last of three runs, each waited for."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as seen:
        for _ in range(3):
            with record_function(STEP):
                work()
                wait(device)
    assert seen.profiler is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() != "[memory]"]
    last = max((e for e in events if e.name() == STEP and on_host(e)), key=lambda e: e.start_ns())
    return [e for e in events if last.start_ns() <= e.start_ns() < last.end_ns() and e is not last]


def on_host(event: Any) -> bool:
    return bool(event.device_type() == DeviceType.CPU)


class Ranges:
    """Spans of time on the host's threads, and whether something began within one."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event in events:
            self.spans[event.start_thread_id()].append((event.start_ns(), event.end_ns()))
        for thread, spans in self.spans.items():
            outer: list[tuple[int, int]] = []
            for start, end in sorted(spans):
                if not outer or start >= outer[-1][1]:  # else within the one before
                    outer.append((start, end))
            self.spans[thread] = outer

    def __contains__(self, event: Any) -> bool:
        spans = self.spans.get(event.start_thread_id(), [])
        at = bisect.bisect_right(spans, (event.start_ns(), 1 << 63)) - 1
        return at >= 0 and event.start_ns() < spans[at][1]


def kernels_of(events: Sequence[Any]) -> list[Kernel]:
    """The work of one step that was launched piece by piece, each piece with its kind."""
    host = sorted((e for e in events if on_host(e)), key=lambda e: e.start_ns())
    forward = Ranges(e for e in host if e.name() == PROMPTER)
    # Several operations may carry one number; the last of them is the one with a backward pass.
    maker = {e.sequence_nr(): e for e in host if e.scope() == 0 and e.sequence_nr() >= 0}
    backward = Ranges(
        e
        for e in host
        if e.scope() == 1 and e.sequence_nr() in maker and maker[e.sequence_nr()] in forward
    )
    optimiser = Ranges(e for e in host if e.name().startswith(OPTIMISER))

    def kind(name: str, launched: Any | None) -> str:
        if launched is not None and launched in optimiser:
            return "optimiser"
        if launched is not None and (launched in forward or launched in backward):
            return "prompter"
        return kind_by_name(name)

    on_device = [e for e in events if not on_host(e) and not is_annotation(e)]
    if not on_device:
        return [kernel(e, kind(e.name(), e)) for e in leaves(host)]
    operations = {e.correlation_id(): e for e in host if e.correlation_id() > 0}
    return [
        kernel(e, kind(e.name(), operations.get(e.linked_correlation_id())))
        for e in sorted(on_device, key=lambda e: e.start_ns())
    ]


def is_annotation(event: Any) -> bool:
    """The profiler repeats the host's ranges on the GPU's side; they are no work."""
    name = event.name()
    return name in (STEP, PROMPTER) or name.startswith((OPTIMISER, "Optimizer.zero_grad"))


def leaves(host: Sequence[Any]) -> list[Any]:
    """Operations that call no other, in order of time."""
    found: list[Any] = []
    for event in host:
        if found and event.start_ns() < found[-1].end_ns():
            found.pop()  # it calls this one
        found.append(event)
    return [e for e in found if not is_annotation(e) and e.scope() != 1]


def kernel(event: Any, kind: str) -> Kernel:
    return Kernel(event.name(), event.start_ns() / 1e3, event.duration_ns() / 1e3, kind)


def replayed(kernels: Sequence[Kernel], launched: Sequence[Kernel]) -> list[Kernel]:
    """A replay has lost who asked for a kernel; the step that was recorded had the same ones."""
    kinds: dict[str, deque[str]] = defaultdict(deque)
    for each in launched:
        kinds[each.name].append(each.kind)
    return [
        replace(each, kind=kinds[each.name].popleft()) if kinds[each.name] else each
        for each in kernels
    ]


def profiled(contender: Contender) -> dict[str, Any]:
    """Milliseconds of a step, sums per kind, and what follows what."""
    device = contender.learner.fabric.device
    for _ in range(6):
        contender.learn()
    plain_seconds = seconds(contender.learn, device, 10 if device.type == "cuda" else 2)
    step, images, labels = contender.step, contender.images, contender.labels
    with marked_prompter():
        launched = kernels_of(watched(lambda: step.plain(images, labels), device))
    kernels = launched
    if step.recording is not None:
        kernels = replayed(kernels_of(watched(contender.learn, device)), launched)
    return {"milliseconds": round(1e3 * plain_seconds, 3)} | summed(kernels)


def summed(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Milliseconds per kind, and spans of one kind: its number, start and length in microseconds.

    Where two kernels overlap, the time belongs to the one that began first.
    """
    sums = dict.fromkeys(KINDS, 0.0)
    start = now = kernels[0].start
    end = max(each.start + each.length for each in kernels)
    spans: list[list[float]] = []
    names = list(KINDS)
    for each in kernels:
        begin, until = max(each.start, now), each.start + each.length
        if until <= now:
            continue
        sums["idle"] += begin - now
        sums[each.kind] += until - begin
        number = names.index(each.kind)
        gap = begin - start - sum(spans[-1][1:]) if spans else 0.0
        if spans and spans[-1][0] == number and gap < (end - start) / RESOLUTION:
            spans[-1][2] = until - start - spans[-1][1]
        else:
            spans.append([number, begin - start, until - begin])
        now = until
    return {
        "watched_milliseconds": round((end - start) / 1e3, 3),
        "kernels": len(kernels),
        "sums": {kind: round(total / 1e3, 4) for kind, total in sums.items()},
        "spans": [[int(n), round(begin, 1), round(length, 1)] for n, begin, length in spans],
    }


# ------------------------------------------------------------------ the picture


def picture(record: dict[str, Any]) -> Figure:
    """A line of time for each way to take the step, all on one scale."""
    steps: dict[str, Any] = record["steps"]
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 1.0 + 0.75 * len(steps)), facecolor="white")
        axes = figure.add_subplot(facecolor="white")
        for row, (name, step) in enumerate(steps.items()):
            length = step["watched_milliseconds"]
            axes.broken_barh([(0, length)], (row - 0.3, 0.6), color=KINDS["idle"], linewidth=0)
            least = 1e3 * length / RESOLUTION
            for number, (kind, colour) in enumerate(KINDS.items()):
                pieces = [
                    (begin / 1e3, max(span, least) / 1e3)
                    for n, begin, span in step["spans"]
                    if n == number and kind != "idle"
                ]
                axes.broken_barh(pieces, (row - 0.3, 0.6), color=colour, linewidth=0)
            idle = step["sums"]["idle"] / length
            axes.text(
                0, row - 0.36, f"{name}: {length:.1f} ms, {idle:.0%} idle", va="bottom", size=9
            )
        axes.set_ylim(len(steps) - 0.55, -0.75)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, max(step["watched_milliseconds"] for step in steps.values()))
        axes.set_xlabel("milliseconds")
        figure.legend(
            handles=[Patch(color=colour, label=kind) for kind, colour in KINDS.items()],
            loc="outside upper center",
            ncols=len(KINDS),
            fontsize=9,
        )
    return figure


def draw(record: dict[str, Any], path: Path) -> None:
    """The same record always gives the same file."""
    unsigned = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({**STYLE, "svg.hashsalt": "profile"}):
        picture(record).savefig(path, format="svg", facecolor="white", metadata=unsigned)


# ------------------------------------------------------------------ the run


def contenders(device: str, backbone: str, batch: int) -> Iterator[tuple[str, Contender]]:
    """One after the other, so that none of them holds memory while another is measured."""
    row = {"backprop": "cls_row"}
    if device == "cpu":
        yield "plain", make("residual-sodap", backbone, batch, device)
        yield "along the CLS row", make("residual-sodap", backbone, batch, device, options=row)
        return
    yield "plain", make("residual-sodap", backbone, batch, device, record=False)
    yield "fast", make("residual-sodap", backbone, batch, device, compiled=True)
    yield (
        "fast, along the CLS row",
        make("residual-sodap", backbone, batch, device, compiled=True, options=row),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", help="default: vit_base on a GPU, deit_tiny elsewhere")
    parser.add_argument("--batch", type=int, help="default: 64 on a GPU, 16 elsewhere")
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    backbone = args.backbone or ("vit_base" if on_gpu else "deit_tiny")
    batch = args.batch or (64 if on_gpu else 16)
    steps = {}
    for name, contender in contenders(args.device, backbone, batch):
        steps[name] = profiled(contender)
        sums = ", ".join(f"{kind} {ms:.2f}" for kind, ms in steps[name]["sums"].items())
        print(f"{name}: {steps[name]['milliseconds']:.2f} ms; watched: {sums}", flush=True)
    if args.record is not None:
        write(args.record, {}, {}, backbone=backbone, batch=batch, steps=steps)


if __name__ == "__main__":
    main()
