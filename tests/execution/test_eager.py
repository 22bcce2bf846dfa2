from __future__ import annotations

import threading

import pytest
import torch
from torch.backends import cuda

from sodap.execution.eager import compiled_only_if


def cudnn_attention() -> bool:
    return bool(cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3


def compilations(worth_it: bool) -> int:
    """Number of compilations in the first call of a compiled function."""
    torch._dynamo.reset()
    seen: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        seen.append(1)
        return module

    with compiled_only_if(worth_it):
        torch.compile(cubed, backend=backend)(torch.ones(3))
    return len(seen)


def test_compilation_and_cudnn_attention_are_switched_off_and_on() -> None:
    assert cudnn_attention()
    assert compilations(True) == 1
    assert compilations(False) == 0
    assert compilations(True) == 1
    with compiled_only_if(True):
        assert cudnn_attention()
    with compiled_only_if(False):
        assert not cudnn_attention()
        with compiled_only_if(False):
            assert not cudnn_attention()
        assert not cudnn_attention()
    assert cudnn_attention()


def test_an_error_restores_the_flags() -> None:
    with pytest.raises(ZeroDivisionError), compiled_only_if(False):
        raise ZeroDivisionError
    assert cudnn_attention()
    assert compilations(True) == 1


def test_flags_that_were_off_stay_off() -> None:
    cuda.enable_flash_sdp(False)
    cuda.enable_cudnn_sdp(False)
    try:
        with compiled_only_if(False):
            assert not cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        assert not cudnn_attention()
    finally:
        cuda.enable_flash_sdp(True)
        cuda.enable_cudnn_sdp(True)


def test_overlapping_threads() -> None:
    """The flags stay set until the last of two overlapping threads leaves."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with compiled_only_if(False):
            first_is_in.set()
            assert second_is_in.wait(30)
        first_is_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert first_is_in.wait(30)
    with compiled_only_if(False):
        second_is_in.set()
        assert first_is_out.wait(30)
        assert not cudnn_attention()
    thread.join()
    assert cudnn_attention()
    assert compilations(True) == 1
