"""Segmented entmax against one problem for each segment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sodap.prompting.fast import entmax
from sodap.prompting.fast.segments import FEW, Segments, entmax_gradient, segmented_entmax

ALPHAS = [1.0, 1.3, 1.5, 2.0, 3.0]
CPU = torch.device("cpu")


def separately(scores: Tensor, sizes: list[int], alpha: float, temperature: float) -> Tensor:
    """Solve each segment by itself; the columns behind the last one get zero."""
    parts = [*scores.split([*sizes, scores.shape[1] - sum(sizes)], -1)]  # type: ignore[no-untyped-call]
    solved = [
        (part / temperature).softmax(-1)
        if alpha == 1
        else entmax(part, alpha, temperature=temperature)
        for part in parts[:-1]
    ]
    return torch.cat([*solved, torch.zeros_like(parts[-1])], -1)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, list[int]]:
    """Draw scores ``[3, N]`` in float64, with ties, dense or sparse, and sizes of segments."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    width = sum(sizes) + draw(st.integers(0, 5))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 1e4]))
    digits = draw(st.sampled_from([1, 15]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    scores = scale * torch.randn(3, width, generator=generator, dtype=torch.float64)
    return scores.round(decimals=digits), sizes


alphas, temperatures = st.sampled_from(ALPHAS), st.sampled_from([0.3, 1.0, 1.5])


@settings(max_examples=80)
@given(
    problems(),
    alphas,
    temperatures,
    st.sampled_from([torch.float64, torch.float32]),
    st.booleans(),
)
def test_equals_one_problem_for_each_segment(
    problem: tuple[Tensor, list[int]],
    alpha: float,
    temperature: float,
    dtype: torch.dtype,
    one_by_one: bool,
) -> None:
    scores, sizes = problem[0].to(dtype).requires_grad_(), problem[1]
    signal = torch.randn_like(scores)
    segments = Segments.of(sizes, scores.shape[1], CPU)
    if not one_by_one:
        segments = segments._replace(spans=None)
    weights = segmented_entmax(scores, segments, alpha, temperature=temperature)
    (grad,) = torch.autograd.grad(weights, scores, signal)
    with torch.no_grad():
        again = segmented_entmax(scores, segments, alpha, temperature=temperature)
        pulled = entmax_gradient(weights, signal, segments, alpha, temperature)
    assert torch.equal(again, weights.detach())
    torch.testing.assert_close(pulled, grad)
    # The gradient jumps where a score enters the support: the oracle needs the same scores.
    exact = scores.detach().double().requires_grad_()
    expected = separately(exact, sizes, alpha, temperature)
    (expected_grad,) = torch.autograd.grad(expected, exact, signal.double())
    assert weights.dtype == dtype
    # Above α = 2 a weight near 0 is a root of its distance to the threshold: half the digits.
    exact_digits, rough_digits = (1e-7, 1e-3) if alpha > 2 else (1e-9, 1e-6)
    precision = exact_digits if dtype == torch.float64 else rough_digits
    torch.testing.assert_close(weights.double(), expected, atol=precision, rtol=precision)
    assert (weights[:, sum(sizes) :] == 0).all()
    assert (grad[:, sum(sizes) :] == 0).all()
    steep = alpha > 2  # a weight p has the slope p^(2-α), which is unbounded at the edge
    at_the_edge = ((expected > 0) != (weights > 0)) | ((expected > 0) & (expected < 1e-6))
    if dtype == torch.float64 and not (steep and at_the_edge.any()):
        torch.testing.assert_close(
            grad, expected_grad, atol=1e-4 if steep else 1e-6, rtol=1e-3 if steep else 1e-6
        )


@settings(max_examples=30)
@given(problems(), alphas)
def test_a_row_does_not_depend_on_the_others(
    problem: tuple[Tensor, list[int]], alpha: float
) -> None:
    scores, sizes = problem
    segments = Segments.of(sizes, scores.shape[1], CPU)
    together = segmented_entmax(scores, segments, alpha)
    alone = segmented_entmax(scores[1:2], segments, alpha)
    torch.testing.assert_close(alone, together[1:2], atol=1e-12, rtol=1e-9)


def test_few_segments_are_solved_one_by_one() -> None:
    assert Segments.of([2, 3], 7, CPU).spans == (slice(0, 2), slice(2, 5))
    assert Segments.of([1] * FEW, 9, CPU).spans is not None
    assert Segments.of([1] * (FEW + 1), 9, CPU).spans is None


def test_columns_of_segments() -> None:
    segments = Segments.of([2, 1, 3], 8, CPU)
    assert segments.slot.tolist() == [0, 0, 1, 2, 2, 2, 8, 8]
    assert segments.first.tolist() == [0, 0, 2, 3, 3, 3, 6, 6]
    assert segments.end.tolist() == [2, 2, 3, 6, 6, 6, 8, 8]
    assert segments.leads.tolist() == [True, False, True, True, False, False, False, False]
    assert segments.members.tolist() == [True] * 6 + [False] * 2
    rows = torch.randn(4, 8)
    expected = rows.double() @ (segments.slot[:, None] == segments.slot).double()
    torch.testing.assert_close(segments.sums(rows), expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients(alpha: float) -> None:
    torch.manual_seed(1)
    scores = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    segments = Segments.of([3, 3, 1], 8, CPU)._replace(spans=None)

    def weights(scores: Tensor) -> Tensor:
        return segmented_entmax(scores, segments, alpha, temperature=0.7)

    assert gradcheck(weights, (scores,))
    assert gradgradcheck(weights, (scores,))


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_columns_in_no_segment_may_hold_anything(alpha: float, one_by_one: bool) -> None:
    scores = torch.randn(2, 6)
    segments = Segments.of([2, 2], 6, CPU)
    if not one_by_one:
        segments = segments._replace(spans=None)
    expected = segmented_entmax(scores, segments, alpha)
    for strange in (torch.inf, -torch.inf, torch.nan):
        scores[:, 4:] = strange
        leaf = scores.clone().requires_grad_()
        weights = segmented_entmax(leaf, segments, alpha)
        torch.testing.assert_close(weights, expected)
        (grad,) = torch.autograd.grad(weights.square().sum(), leaf)
        assert grad.isfinite().all()
        assert (grad[:, 4:] == 0).all()


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_huge_scores_do_not_reach_other_segments(alpha: float, one_by_one: bool) -> None:
    scores = torch.tensor([[1e30, -1e30, 0.3, 0.2, -1e4, -1e4]])
    segments = Segments.of([2, 2, 2], 6, CPU)
    if not one_by_one:
        segments = segments._replace(spans=None)
    weights = segmented_entmax(scores, segments, alpha)
    expected = separately(scores[:, 2:4].double(), [2], alpha, 1.0)
    torch.testing.assert_close(weights[:, [0, 1, 4, 5]], torch.tensor([[1.0, 0.0, 0.5, 0.5]]))
    torch.testing.assert_close(weights[:, 2:4].double(), expected, atol=1e-6, rtol=0)
