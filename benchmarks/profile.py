"""Profile of one training step: `python -m benchmarks.profile --record FILE`.

On a GPU three variants are compared: every operation launched from Python; compiled and replayed
from a CUDA graph; and the same with `backprop=cls_row`. On a CPU the first and the third are.
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
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.figures import write
from benchmarks.steps import Contender, make, seconds, wait
from sodap.prompting.prompter import Prompter, PromptPass
from sodap.reporting.figures.style import STYLE

KINDS = {
    "attention": ("a", "#2f86d0"),
    "products": ("m", "#1b9e77"),
    "norm, pointwise": ("n", "#c9b458"),
    "prompter": ("p", "#d9660a"),
    "optimiser": ("o", "#b565a7"),
    "idle": (".", "#e4e4e4"),
}
"""Kinds of work, with their letters in a record and their colours. Idle is the time between two
kernels; on a CPU, the time that Python takes."""

# Patterns of kernel names; the first match counts. Compiled kernels list what they replace.
NAMES = {
    "prompter": r"entmax",
    "norm, pointwise": r"^triton_(poi|per|red)_",
    "attention": r"flash|fmha|attention|sdpa",
    "products": r"gemm|gemv|cutlass|xmma|nvjet|splitk|triton_tem|conv(?!ert)|mkldnn"
    r"|\b(b?add)?b?mm\b",
    "optimiser": r"adam",
}

STEP, PROMPTER = "step of the benchmark", "prompter of the benchmark"
OPTIMISER, BACKWARD = "Optimizer.step", "autograd::engine::evaluate_function"  # torch's names
COLUMNS = 480
"""Columns of the picture; each shows the kind that took most of its time."""


@dataclass(frozen=True)
class Kernel:
    """A kernel on the GPU, or an operation on the CPU; times in microseconds."""

    name: str
    start: float
    length: float
    kind: str


def kind_by_name(name: str) -> str:
    """Kind of a kernel, judged by its name."""
    fits = (kind for kind, words in NAMES.items() if re.search(words, name, re.IGNORECASE))
    return next(fits, "norm, pointwise")


# ------------------------------------------------------------------ profile of one step


@contextmanager
def marked_prompter() -> Iterator[None]:
    """Label everything that the prompter does in the profile."""
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


def profile_events(work: Callable[[], object], device: torch.device) -> list[Any]:
    """Profiler events of the last of three calls, with a synchronisation after each."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for _ in range(3):
            with record_function(STEP):
                work()
                wait(device)
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() != "[memory]"]
    last = max((e for e in events if e.name() == STEP and on_host(e)), key=lambda e: e.start_ns())
    return [e for e in events if last.start_ns() <= e.start_ns() < last.end_ns() and e is not last]


def on_host(event: Any) -> bool:
    """Whether an event happened on the CPU."""
    return bool(event.device_type().name == "CPU")


class Ranges:
    """Time spans on the host's threads; tells whether an event began within one."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event in events:
            self.spans[event.start_thread_id()].append((event.start_ns(), event.end_ns()))
        for thread, spans in self.spans.items():
            outer: list[tuple[int, int]] = []
            for start, end in sorted(spans):
                if not outer or start >= outer[-1][1]:  # otherwise it is nested
                    outer.append((start, end))
            self.spans[thread] = outer

    def __contains__(self, event: Any) -> bool:
        spans = self.spans.get(event.start_thread_id(), [])
        at = bisect.bisect_right(spans, (event.start_ns(), 1 << 63)) - 1
        return at >= 0 and event.start_ns() < spans[at][1]


def kernels_of(events: Sequence[Any]) -> list[Kernel]:
    """Kernels of one step that was not replayed, each with its kind."""
    host = sorted((e for e in events if on_host(e)), key=lambda e: e.start_ns())
    forward = Ranges(e for e in host if e.name() == PROMPTER)
    # Several operations may share a sequence number; the last one has the backward pass.
    maker = {e.sequence_nr(): e for e in operations(host) if e.sequence_nr() >= 0}
    backward = Ranges(
        e
        for e in host
        if e.name().startswith(BACKWARD)
        and e.sequence_nr() in maker
        and maker[e.sequence_nr()] in forward
    )
    optimiser = Ranges(e for e in host if e.name().startswith(OPTIMISER))

    def kind(name: str, launched: Any | None) -> str:
        if launched is not None and launched in optimiser:
            return "optimiser"
        if launched is not None and (launched in forward or launched in backward):
            return "prompter"
        return kind_by_name(name)

    # The profiler repeats the host's annotations on the GPU; they are not kernels.
    on_device = [e for e in events if not on_host(e) and not e.is_user_annotation()]
    if not on_device:
        return [  # on a CPU, operations take the place of kernels
            Kernel(e.name(), start / 1e3, (end - start) / 1e3, kind(e.name(), e))
            for e, start, end in innermost(host)
        ]
    # Calls of the driver have numbers of their own and are linked to operations.
    numbered = {e.correlation_id(): e for e in host if e.linked_correlation_id() == 0}
    return [
        kernel(e, kind(e.name(), numbered.get(e.linked_correlation_id())))
        for e in sorted(on_device, key=lambda e: e.start_ns())
    ]


def operations(host: Sequence[Any]) -> list[Any]:
    """Events that are operations and not annotations around them."""
    return [
        e
        for e in host
        if e.scope() == 0 and not e.is_user_annotation() and not e.name().startswith(BACKWARD)
    ]


def innermost(host: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """The innermost operation that the CPU was in, with its start and end."""
    found: list[tuple[Any, int, int]] = []
    stack: list[Any] = []
    now = 0

    def until(end: int) -> None:
        nonlocal now
        while stack and now < end:
            stop = min(end, stack[-1].end_ns())
            if stop > now:
                found.append((stack[-1], now, stop))
                now = stop
            if stack[-1].end_ns() <= end:
                stack.pop()
        now = max(now, end)

    every = operations(host)
    for event in every:
        until(event.start_ns())
        stack.append(event)
    until(max(e.end_ns() for e in every))
    return found


def kernel(event: Any, kind: str) -> Kernel:
    return Kernel(event.name(), event.start_ns() / 1e3, event.duration_ns() / 1e3, kind)


def replayed(kernels: Sequence[Kernel], launched: Sequence[Kernel]) -> list[Kernel]:
    """Label the kernels of a replay, which has no Python stack, like those of the captured step."""
    kinds: dict[str, deque[str]] = defaultdict(deque)
    for each in launched:
        kinds[each.name].append(each.kind)
    return [
        replace(each, kind=kinds[each.name].popleft()) if kinds[each.name] else each
        for each in kernels
    ]


def profile_step(contender: Contender) -> dict[str, Any]:
    """Milliseconds of a step, in total, per kind and in their order."""
    device = contender.learner.runtime.device
    for _ in range(6):
        contender.learn()
    plain_seconds = seconds(contender.learn, device, 10 if device.type == "cuda" else 2)
    step, images, labels = contender.step, contender.images, contender.labels
    with marked_prompter():
        launched = kernels_of(profile_events(lambda: step.graphed.function(images, labels), device))
    kernels = launched
    if step.graphed.graphs:
        kernels = replayed(kernels_of(profile_events(contender.learn, device)), launched)
    return {"milliseconds": round(1e3 * plain_seconds, 3)} | summed(kernels)


def summed(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Milliseconds per kind, and the step as a string with one letter per column.

    Where two kernels overlap, the time is counted for the one that began first.
    """
    start = now = kernels[0].start
    length = max(each.start + each.length for each in kernels) - start
    columns = [dict.fromkeys(KINDS, 0.0) for _ in range(COLUMNS)]

    def spend(kind: str, begin: float, end: float) -> None:
        """Distribute a time span over the columns it overlaps."""
        first, last = ((t - start) / length * COLUMNS for t in (begin, end))
        for at in range(int(first), min(int(last) + 1, COLUMNS)):
            columns[at][kind] += (min(last, at + 1) - max(first, at)) * length / COLUMNS

    for each in kernels:
        begin, end = max(each.start, now), each.start + each.length
        if end > now:
            spend("idle", now, begin)
            spend(each.kind, begin, end)
            now = end
    return {
        "watched_milliseconds": round(length / 1e3, 3),
        "kernels": len(kernels),
        "sums": {kind: round(sum(c[kind] for c in columns) / 1e3, 4) for kind in KINDS},
        "line": "".join(KINDS[max(column, key=column.__getitem__)][0] for column in columns),
    }


# ------------------------------------------------------------------ the picture


def picture(record: dict[str, Any]) -> Figure:
    """A time line for each variant of the step, on a common scale."""
    steps: dict[str, Any] = record["steps"]
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 1.0 + 0.75 * len(steps)), facecolor="white")
        axes = figure.add_subplot(facecolor="white")
        for row, (name, step) in enumerate(steps.items()):
            length = step["watched_milliseconds"]
            for letter, colour in KINDS.values():
                axes.broken_barh(
                    [(at * length, share * length) for at, share in runs(step["line"], letter)],
                    (row - 0.3, 0.6),
                    color=colour,
                    linewidth=0,
                    antialiased=False,
                )
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
            handles=[Patch(color=colour, label=kind) for kind, (_, colour) in KINDS.items()],
            loc="outside upper center",
            ncols=len(KINDS),
            fontsize=9,
        )
    return figure


def runs(line: str, letter: str) -> Iterator[tuple[float, float]]:
    """Start and length of each run of a letter, as fractions of the line."""
    for found in re.finditer(f"{re.escape(letter)}+", line):
        yield found.start() / len(line), len(found.group()) / len(line)


def draw(record: dict[str, Any], path: Path) -> None:
    """Write the picture as SVG, always the same file for the same record."""
    unsigned = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({**STYLE, "svg.hashsalt": "profile"}):
        picture(record).savefig(path, format="svg", facecolor="white", metadata=unsigned)


# ------------------------------------------------------------------ the run


def contenders(device: str, backbone: str, batch: int) -> Iterator[tuple[str, Contender]]:
    """Variants of the step, made one at a time, so that only one of them holds memory."""
    row = {"backprop": "cls_row"}
    if device == "cpu":
        yield "plain", make("residual-sodap", backbone, batch, device)
        yield "along the CLS row", make("residual-sodap", backbone, batch, device, options=row)
        return
    yield "plain", make("residual-sodap", backbone, batch, device, cuda_graphs=False)
    yield "fast", make("residual-sodap", backbone, batch, device, compiled=True)
    yield (
        "fast, along the CLS row",
        make("residual-sodap", backbone, batch, device, compiled=True, options=row),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", help="default: vit_base on a GPU, deit_tiny on a CPU")
    parser.add_argument("--batch", type=int, help="default: 64 on a GPU, 16 on a CPU")
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    backbone = args.backbone or ("vit_base" if on_gpu else "deit_tiny")
    batch = args.batch or (64 if on_gpu else 16)
    steps = {}
    for name, contender in contenders(args.device, backbone, batch):
        steps[name] = profile_step(contender)
        sums = ", ".join(f"{kind} {ms:.2f}" for kind, ms in steps[name]["sums"].items())
        print(f"{name}: {steps[name]['milliseconds']:.2f} ms; profiled: {sums}", flush=True)
    if args.record is not None:
        write(args.record, {}, {}, backbone=backbone, batch=batch, steps=steps)


if __name__ == "__main__":
    main()
