"""1.5-entmax compared with the public package `entmax`: `python -m benchmarks.entmax`.

Both take turns within one process, forward and backward, on rows of random scores. On a GPU they
are measured with ordinary launches and in a CUDA graph, where the host plays no part. Memory is the
peak of what a forward and a backward pass allocate.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from entmax import entmax15
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.figures import show, write
from benchmarks.steps import seconds
from sodap.prompting.fast import entmax

SHAPES = [(64, 60), (64, 256), (64, 512), (1024, 60), (1024, 256), (4096, 60), (4096, 512)]
ROUNDS = 15
TARGETS = {
    "cpu": {"entmax_vs_package": (1.0, ">="), "entmax_memory_vs_package": (1.0, "<=")},
    "cuda": {"entmax_vs_package": (4.0, ">="), "entmax_memory_vs_package": (1.0, "<=")},
}

Work = Callable[[], None]


def forward_backward(function: Callable[[Tensor], Tensor], scores: Tensor, signal: Tensor) -> Work:
    """Work that runs a forward and a backward pass."""

    def work() -> None:
        torch.autograd.grad(function(scores), scores, signal)

    return work


def captured(work: Work) -> Work:
    """Capture work as a CUDA graph and return its replay."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def times_faster(ours: Work, theirs: Work, device: torch.device, times: int) -> float:
    """Ratio of durations: the median over rounds in which both take turns."""
    for work in (ours, theirs):
        seconds(work, device, 3)
    ratios = []
    for _ in range(ROUNDS):
        mine = seconds(ours, device, times)
        ratios.append(seconds(theirs, device, times) / mine)
    return statistics.median(ratios)


def peak_bytes(work: Work, device: torch.device) -> int:
    """Peak of the memory that `work` allocates."""
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()  # negative when freed
        peak = max(peak, held)
    return peak


def against_package(device: str) -> dict[str, float]:
    """Speed and memory relative to the package, for each shape and for the worst one."""
    place = torch.device(device)
    speeds: dict[str, float] = {}
    in_graph: dict[str, float] = {}
    memory: dict[str, float] = {}
    for rows, size in SHAPES:
        shape = f"{rows}x{size}"
        draw = torch.Generator().manual_seed(0)
        scores = (0.3 * torch.randn(rows, size, generator=draw)).to(place).requires_grad_()
        signal = torch.randn(rows, size, generator=draw).to(place)
        ours, theirs = (forward_backward(each, scores, signal) for each in (entmax, entmax15))
        times = 50 if place.type == "cuda" else max(1, 200_000 // (rows * size))
        speeds[shape] = times_faster(ours, theirs, place, times)
        memory[shape] = peak_bytes(ours, place) / peak_bytes(theirs, place)
        if place.type == "cuda":
            in_graph[shape] = times_faster(captured(ours), captured(theirs), place, times)
    figures = {f"entmax_vs_package_{shape}": ratio for shape, ratio in speeds.items()}
    figures |= {f"entmax_vs_package_graph_{shape}": ratio for shape, ratio in in_graph.items()}
    if in_graph:
        figures["entmax_vs_package_graph"] = min(in_graph.values())
    figures["entmax_memory_vs_package"] = max(memory.values())
    figures["entmax_vs_package"] = min(speeds.values())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.entmax", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    figures, targets = against_package(args.device), TARGETS[torch.device(args.device).type]
    show(figures, targets)
    if args.record is not None:
        write(args.record, figures, targets, device=args.device)


if __name__ == "__main__":
    main()
