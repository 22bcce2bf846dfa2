"""The window forgets the oldest entry and survives a round trip at any moment."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from sodap.drift import DriftDetector, DriftSettings, UsageWindow
from sodap.errors import SodapError


def entry(number: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    used = np.zeros((2, 5), dtype=np.bool_)
    used[:, number % 5] = True
    return np.array([number, -number], dtype=np.float64), used


def test_the_newest_comes_last_and_the_oldest_goes() -> None:
    window = UsageWindow(layers=2, prompts=5, size=3)
    assert window.past_entropies.shape == (2, 0)
    for number in range(5):
        window.add(*entry(number))
    assert window.past_entropies.tolist() == [[2, 3, 4], [-2, -3, -4]]
    assert window.past_sets.argmax(axis=2).tolist() == [[2, 3, 4], [2, 3, 4]]
    assert window.filled == 3


def test_widening_keeps_the_past() -> None:
    window = UsageWindow(2, 5, 3)
    window.add(*entry(1))
    window.widen(8)
    assert window.prompts == 8
    assert window.past_sets[:, 0].tolist() == [[False, True] + [False] * 6] * 2
    with pytest.raises(SodapError, match="cannot shrink to 7"):
        window.widen(7)


@pytest.mark.parametrize("seen", [0, 1, 2, 7])
def test_the_state_survives_a_file(seen: int) -> None:
    settings = DriftSettings(window=4)
    usages = np.random.default_rng(0).dirichlet(np.ones(6), size=(seen + 5, 2))
    detector = DriftDetector(2, 6, settings)
    detector.scan(usages[:seen])
    state = detector.window.to_arrays()
    assert {name: array.shape for name, array in state.items()} == {
        "entropies": (2, 3),
        "sets": (2, 3, 6),
        "filled": (),
    }
    window = UsageWindow.from_arrays(load(save(state)))
    restored = DriftDetector(2, 6, settings, window)
    np.testing.assert_array_equal(
        restored.scan(usages[seen:]).scores, detector.scan(usages[seen:]).scores
    )
    np.testing.assert_array_equal(state["filled"], min(seen, 3))  # a copy, not a view


def test_a_state_or_window_that_does_not_fit_is_refused() -> None:
    state = UsageWindow(2, 5, 3).to_arrays()
    with pytest.raises(SodapError, match="not the state of a usage window"):
        UsageWindow.from_arrays({**state, "filled": np.array(4)})
    with pytest.raises(SodapError, match="not the state of a usage window"):
        UsageWindow.from_arrays({**state, "entropies": np.zeros((2, 4))})
    with pytest.raises(SodapError, match="3 entries of 2 layers"):
        DriftDetector(2, 5, DriftSettings(window=10), UsageWindow(2, 5, 3))
