"""The Triton kernels: their arithmetic anywhere, by Triton's interpreter, and the rest on a GPU."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sodap.prompting import Prompter, entmax
from sodap.prompting.entmax import kernels
from sodap.prompting.segments import Segments, segmented_entmax

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def check_kernels(device: str, rows: int, sizes: tuple[int, ...]) -> None:
    """Weights and gradients against float64 on the CPU, whole rows and segments."""
    from sodap.prompting import entmax_triton

    draw = torch.Generator().manual_seed(0)
    for size in sizes:
        ids = torch.randint(-1, min(size, 4), (size,), generator=draw)
        segments = Segments.of(ids)
        there = (segments.slot.to(device), segments.leads.to(device))
        for scale in (0.1, 1.0, 30.0):
            scores = scale * torch.randn(rows, size, generator=draw)
            signal = torch.randn(rows, size, generator=draw)
            exact = scores.double().requires_grad_()
            expected = [
                entmax(exact, temperature=1.5),
                segmented_entmax(exact, segments, 1.5, temperature=1.5),
            ]
            for weights, where in zip(expected, ((), there), strict=True):
                (grad,) = torch.autograd.grad(weights, exact, signal.double())
                found = entmax_triton.forward(scores.to(device), 1.5, *where)
                torch.testing.assert_close(found.cpu().double(), weights, atol=1e-6, rtol=0)
                # From the same weights: the gradient jumps where a score enters the support.
                back = entmax_triton.backward(
                    weights.detach().float().to(device), signal.to(device), 1.5, *where
                )
                torch.testing.assert_close(back.cpu().double(), grad, atol=3e-6, rtol=1e-5)
    broken = torch.randn(2, 5, generator=draw)
    broken[0, 2] = torch.nan
    found = entmax_triton.forward(broken.to(device), 1.0).cpu()
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1], entmax(broken[1]))
    spread = torch.tensor([[2.0], [3.0]], device=device).expand(2, 5)  # a gradient without strides
    weights = entmax(torch.randn(2, 5, generator=draw)).to(device)
    assert entmax_triton.backward(weights, spread, 1.0).abs().max() < 1e-6


def test_the_interpreted_kernels() -> None:
    pytest.importorskip("triton")
    # Triton decides on its import whether it interprets, so this needs a process of its own.
    seen = subprocess.run(
        [sys.executable, str(Path(__file__))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert seen.returncode == 0, seen.stderr


class Function:
    """Stands in for a Triton kernel: `it[grid](*arguments)` compiles, launches and returns it."""

    function, packed_metadata = 17, (1, 2)

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def compile_and_launch(*arguments: Any, **_: Any) -> "Function":
            self.compiled.append(arguments)
            return self

        return compile_and_launch

    def run(self, *arguments: Any) -> None:
        self.launched.append(arguments)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 23, raising=False)
    return 23


@pytest.mark.usefixtures("stream")
def test_a_kernel_is_compiled_once_for_the_same() -> None:
    triton = pytest.importorskip("sodap.prompting.entmax_triton")
    function, rows = Function(), torch.zeros(2, 8)
    kernel = triton._Kernel(function)
    for numbers in ((8, 8, 64), (8, 8, 64), (7, 8, 64), (8, 9, 64), (8, 8, 128), (8, 8, 64)):
        kernel((2, 1), (rows, rows), 0.5, *numbers)
    kernel((5, 1), (rows, rows), 0.7, 8, 8, 64)  # no code depends on these
    assert len(function.compiled) == 4
    assert len(function.launched) == 3


@pytest.mark.usefixtures("stream")
def test_tensors_that_lie_askew_are_left_to_triton() -> None:
    triton = pytest.importorskip("sodap.prompting.entmax_triton")
    function, rows = Function(), torch.zeros(3, 8)
    kernel, askew = triton._Kernel(function), torch.zeros(25)[1:].view(3, 8)
    for tensors in ((rows, askew), (askew, rows), (rows, rows), (rows, askew), (rows[1:], rows)):
        kernel((2, 1), tensors, 0.5, 8, 8, 64)
    assert len(function.launched) == 1
    assert function.launched[0][9:11] == (rows[1:].data_ptr(), rows.data_ptr())


def test_a_launch_hands_over_what_triton_would(stream: int) -> None:
    ours = pytest.importorskip("sodap.prompting.entmax_triton")
    from triton.compiler.compiler import CompiledKernel

    function, rows = Function(), torch.zeros(2, 8)
    kernel = ours._Kernel(function)
    for _ in range(2):
        kernel((5, 3), (rows, rows), 0.5, 8, 64)
    theirs: list[tuple[Any, ...]] = []
    program = CompiledKernel.__new__(CompiledKernel)
    program.module, program._module_pid = object(), None  # as if it were loaded
    program._run = lambda *arguments: theirs.append(arguments)
    program.function, program.packed_metadata = function.function, function.packed_metadata
    program.launch_metadata = lambda *_: None
    try:
        program[5, 3, 1](rows.data_ptr(), rows.data_ptr(), 0.5, 8, 64, stream=stream)
    finally:
        program.module = None  # there is nothing to unload
    assert function.launched[0][:7] == theirs[0][:7]
    assert function.launched[0][7:9] == (None, None)  # Triton's own hooks stand here
    assert function.launched[0][9:] == theirs[0][9:]


def test_blocks_hold_their_rows() -> None:
    triton = pytest.importorskip("sodap.prompting.entmax_triton")
    assert [triton._block(size) for size in (1, 2, 3, 60, 64, 65, 1024)] == [
        *(1, 2, 4, 64, 64, 128, 1024)
    ]


def test_a_cpu_gets_no_kernels() -> None:
    assert kernels(torch.zeros(2, 3), 1.5) is None


@on_gpu
def test_kernels_on_a_gpu() -> None:
    check_kernels("cuda", 67, (1, 5, 60, 256, 300, 1024))


@on_gpu
@pytest.mark.parametrize("gap", [0.5, 1.0, 1.9])
def test_small_weights_on_a_gpu(gap: float) -> None:
    logits = 0.01 * torch.randn(8, 1024) - gap
    logits[:, 0] = 0
    assert kernels(logits.cuda(), 1.5) is not None
    found = entmax(logits.cuda()).cpu()
    torch.testing.assert_close(found, entmax(logits.double()).float(), atol=5e-7, rtol=0)


@on_gpu
def test_shapes_masks_and_strides_on_a_gpu() -> None:
    logits, mask = torch.randn(3, 4, 7, 50), torch.arange(50) % 5 > 0
    for view in (logits, logits.transpose(1, 2), logits[..., ::2], logits[:, :0]):
        keep = mask[: view.shape[-1]]
        expected = entmax(view, mask=keep)
        leaf = view.cuda().requires_grad_()
        found = entmax(leaf, mask=keep.cuda())
        torch.testing.assert_close(found.cpu(), expected)
        torch.autograd.backward(found.sum())  # its gradient is one number, expanded
        assert leaf.grad is not None
        assert leaf.grad.abs().amax(-1).sum() < 1e-3
    torch.testing.assert_close(entmax(logits.cuda(), dim=1).cpu(), entmax(logits, dim=1))
    large = torch.randn(4, 2000)
    assert kernels(large.cuda(), 1.5) is None
    torch.testing.assert_close(entmax(large.cuda()).cpu(), entmax(large))


@on_gpu
def test_derivatives_of_derivatives_on_a_gpu() -> None:
    logits = torch.randn(3, 7, dtype=torch.float64, device="cuda", requires_grad=True)
    segments = Segments.of(torch.tensor([0, 0, 1, -1, 1, 1, 0], device="cuda"))
    for function in (entmax, lambda x: segmented_entmax(x, segments, 1.5)):
        assert gradcheck(function, (logits,))
        assert gradgradcheck(function, (logits,))
    single = logits.detach().float().requires_grad_()
    (grad,) = torch.autograd.grad(entmax(single).square().sum(), single, create_graph=True)
    (twice,) = torch.autograd.grad(grad.square().sum(), single)
    (grad,) = torch.autograd.grad(entmax(logits).square().sum(), logits, create_graph=True)
    (expected,) = torch.autograd.grad(grad.square().sum(), logits)
    torch.testing.assert_close(twice.double(), expected, atol=1e-5, rtol=1e-4)


@on_gpu
def test_one_recording_serves_all_stages() -> None:
    """The prompts of a CUDA graph follow a pool that grew after it was recorded."""
    prompter = Prompter(
        24, 3, 4, pool_size=6, capacity=16, bottleneck=8, memory_slots=3, merge="rescale"
    ).cuda()
    torch.nn.init.normal_(prompter.adapter(0).W_up, std=0.5)
    tokens = torch.randn(4, 7, 24, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        prompts = prompter.start()
        seen = prompts(1, prompts(0, tokens).tanh())
        keys = prompter.pool.trained_keys
        (grad,) = torch.autograd.grad(seen[:, 0].square().sum(), keys)
        return seen.detach(), grad  # the way back is of one stream, and ends with the step

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    for _ in range(3):
        prompter.expand(3)
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(recorded, step(), atol=1e-5, rtol=1e-4)


if __name__ == "__main__":
    check_kernels("cpu", 2, (1, 5, 60))
