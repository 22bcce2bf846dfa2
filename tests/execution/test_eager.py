from __future__ import annotations

import threading

import pytest
import torch
from torch.backends import cuda

from sodap.execution.eager import compiled_only_if


def plans() -> bool:
    return bool(cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x**3


def compilations(worth_it: bool) -> int:
    """How often a function is compiled that is called for the first time."""
    torch._dynamo.reset()
    seen: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        seen.append(1)
        return module

    with compiled_only_if(worth_it):
        torch.compile(cubed, backend=backend)(torch.ones(3))
    return len(seen)


def test_only_what_is_worth_it_is_compiled_and_planned() -> None:
    assert plans()
    assert compilations(True) == 1
    assert compilations(False) == 0
    assert compilations(True) == 1
    with compiled_only_if(True):
        assert plans()
    with compiled_only_if(False):
        assert not plans()
        with compiled_only_if(False):
            assert not plans()
        assert not plans()
    assert plans()


def test_an_error_turns_everything_back() -> None:
    with pytest.raises(ZeroDivisionError), compiled_only_if(False):
        raise ZeroDivisionError
    assert plans()
    assert compilations(True) == 1


def test_what_others_have_chosen_is_kept() -> None:
    cuda.enable_flash_sdp(False)
    cuda.enable_cudnn_sdp(False)
    try:
        with compiled_only_if(False):
            assert not cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        assert not plans()
    finally:
        cuda.enable_flash_sdp(True)
        cuda.enable_cudnn_sdp(True)


def test_two_at_a_time() -> None:
    """One comes and goes while the other is still inside, and the other way round."""
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
        assert not plans()
    thread.join()
    assert plans()
    assert compilations(True) == 1
