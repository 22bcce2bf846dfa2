"""The Triton kernels: their arithmetic in Triton's interpreter, launches on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sodap.prompting.fast import entmax
from sodap.prompting.fast.entmax import kernels
from sodap.prompting.fast.segments import Segments, segmented_entmax

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def check_kernels(device: str, rows: int, sizes: tuple[int, ...]) -> None:
    """Weights and gradients against float64 on the CPU, whole rows and segments."""
    from sodap.prompting.fast import entmax_triton

    draw = torch.Generator().manual_seed(0)
    for size in sizes:
        parts = torch.randint(0, 5, (size,), generator=draw).bincount()[1:].tolist()
        segments = Segments.of([part for part in parts if part], size, torch.device("cpu"))
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


def test_blocks_hold_their_rows() -> None:
    triton = pytest.importorskip("sodap.prompting.fast.entmax_triton")
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
    segments = Segments.of([3, 3], 7, torch.device("cuda"))
    for function in (entmax, lambda x: segmented_entmax(x, segments, 1.5)):
        assert gradcheck(function, (logits,))
        assert gradgradcheck(function, (logits,))
    single = logits.detach().float().requires_grad_()
    (grad,) = torch.autograd.grad(entmax(single).square().sum(), single, create_graph=True)
    (twice,) = torch.autograd.grad(grad.square().sum(), single)
    (grad,) = torch.autograd.grad(entmax(logits).square().sum(), logits, create_graph=True)
    (expected,) = torch.autograd.grad(grad.square().sum(), logits)
    torch.testing.assert_close(twice.double(), expected, atol=1e-5, rtol=1e-4)


if __name__ == "__main__":
    check_kernels("cpu", 2, (1, 5, 60))
