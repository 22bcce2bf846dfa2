"""Segments against the obvious way: one masked problem for each segment, `[B, G, N]`."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sodap.prompting import entmax
from sodap.prompting.segments import FEW, Segments, entmax_gradient, segmented_entmax

ALPHAS = [1.0, 1.3, 1.5, 2.0, 3.0]


def obvious(scores: Tensor, ids: Tensor, alpha: float, temperature: float) -> Tensor:
    """The sum over groups ``[B, G, N]``, each with everything else masked out."""
    groups = ids == torch.arange(len(ids)).unsqueeze(-1)  # [G, N]
    if alpha > 1:
        return entmax(scores.unsqueeze(1), alpha, temperature=temperature, mask=groups).sum(1)
    floor = torch.finfo(scores.dtype).min
    masked = torch.where(groups, scores.unsqueeze(1) / temperature, floor)
    return torch.where(groups, masked.softmax(-1), 0.0).sum(1)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Scores ``[3, N]`` in float64, with ties, dense or sparse, and ids ``[N]`` in any order."""
    size = draw(st.integers(1, 40))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 1e4]))
    digits = draw(st.sampled_from([1, 15]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    scores = scale * torch.randn(3, size, generator=generator, dtype=torch.float64)
    ids = torch.randint(-1, draw(st.integers(1, size)), (size,), generator=generator)
    return scores.round(decimals=digits), ids


alphas, temperatures = st.sampled_from(ALPHAS), st.sampled_from([0.3, 1.0, 1.5])


@settings(max_examples=60, deadline=None)
@given(problems(), alphas, temperatures, st.sampled_from([torch.float64, torch.float32]))
def test_equals_a_masked_problem_for_each_segment(
    problem: tuple[Tensor, Tensor], alpha: float, temperature: float, dtype: torch.dtype
) -> None:
    scores, ids = problem[0].to(dtype).requires_grad_(), problem[1]
    signal = torch.randn_like(scores)
    weights = segmented_entmax(scores, Segments.of(ids), alpha, temperature=temperature)
    (grad,) = torch.autograd.grad(weights, scores, signal)
    # The gradient jumps where a score enters the support: the oracle needs the same scores.
    exact = scores.detach().double().requires_grad_()
    expected = obvious(exact, ids, alpha, temperature)
    (expected_grad,) = torch.autograd.grad(expected, exact, signal.double())
    assert weights.dtype == dtype
    # Above α = 2 a weight near 0 is a root of its distance to the threshold: half the digits.
    exact_digits, rough_digits = (1e-7, 1e-3) if alpha > 2 else (1e-9, 1e-6)
    precision = exact_digits if dtype == torch.float64 else rough_digits
    torch.testing.assert_close(weights.double(), expected, atol=precision, rtol=precision)
    assert (weights[:, ids < 0] == 0).all()
    assert (grad[:, ids < 0] == 0).all()
    steep = alpha > 2  # weights of p have slopes of p^(2-α), and at the edge of the support none
    at_the_edge = ((expected > 0) != (weights > 0)) | ((expected > 0) & (expected < 1e-6))
    if dtype == torch.float64 and not (steep and at_the_edge.any()):
        torch.testing.assert_close(
            grad, expected_grad, atol=1e-4 if steep else 1e-6, rtol=1e-3 if steep else 1e-6
        )


@settings(max_examples=30, deadline=None)
@given(problems(), alphas, st.randoms(use_true_random=False))
def test_order_names_and_neighbours_do_not_matter(
    problem: tuple[Tensor, Tensor], alpha: float, random: Random
) -> None:
    scores, ids = problem
    weights = segmented_entmax(scores, Segments.of(ids), alpha)
    order = list(range(len(ids)))
    random.shuffle(order)
    names = torch.randperm(len(ids))
    other = Segments.of(torch.where(ids >= 0, names[ids], -1)[order])
    permuted = segmented_entmax(scores[:, order], other, alpha)
    torch.testing.assert_close(permuted, weights[:, order], atol=1e-9, rtol=1e-7)
    alone = segmented_entmax(scores[1:2], Segments.of(ids), alpha)
    torch.testing.assert_close(alone, weights[1:2], atol=1e-12, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems(), alphas, temperatures)
def test_few_spans_one_by_one_are_all_at_once(
    problem: tuple[Tensor, Tensor], alpha: float, temperature: float
) -> None:
    scores, ids = problem[0].requires_grad_(), problem[1].clamp(max=3).sort().values
    spans = Segments.of(ids)
    assert (spans.spans is not None) == bool((ids >= 0).any())
    signal = torch.randn_like(scores)
    found = []
    for segments in (spans, spans._replace(spans=None)):
        weights = segmented_entmax(scores, segments, alpha, temperature=temperature)
        (grad,) = torch.autograd.grad(weights, scores, signal)
        with torch.no_grad():
            again = segmented_entmax(scores, segments, alpha, temperature=temperature)
            pulled = entmax_gradient(weights, signal, segments, alpha, temperature)
        assert torch.equal(again, weights.detach())
        torch.testing.assert_close(pulled, grad)
        found.append((weights.detach(), grad))
    digits = 1e-7 if alpha > 2 else 1e-9
    torch.testing.assert_close(found[0][0], found[1][0], atol=digits, rtol=digits)
    at_the_edge = ((found[0][0] > 0) & (found[0][0] < 1e-6)).any()
    if not (alpha > 2 and at_the_edge):
        torch.testing.assert_close(found[0][1], found[1][1], atol=1e-4, rtol=1e-3)


def test_spans_are_few_and_in_one_piece() -> None:
    assert Segments.of(torch.tensor([0, 0, 2, 2, -1])).spans == (slice(0, 2), slice(2, 4))
    assert Segments.of(torch.tensor([-1, -1])).spans is None
    assert Segments.of(torch.tensor([0, 1, 0])).spans is None
    assert Segments.of(torch.arange(FEW)).spans is not None
    assert Segments.of(torch.arange(FEW + 1)).spans is None


def test_one_segment_is_entmax() -> None:
    scores = torch.randn(16, 256)
    segments = Segments.of(torch.zeros(256, dtype=torch.int64))
    for alpha in ALPHAS[1:]:
        found = segmented_entmax(scores, segments, alpha, temperature=1.5)
        torch.testing.assert_close(found, entmax(scores, alpha, temperature=1.5))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients(alpha: float) -> None:
    torch.manual_seed(1)
    scores = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    segments = Segments.of(torch.tensor([0, 0, 2, -1, 2, 2, 5, 0]))

    def weights(scores: Tensor) -> Tensor:
        return segmented_entmax(scores, segments, alpha, temperature=0.7)

    assert gradcheck(weights, (scores,))
    assert gradgradcheck(weights, (scores,))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_row_in_no_segment_may_hold_anything(alpha: float) -> None:
    scores = torch.randn(2, 6)
    segments = Segments.of(torch.tensor([0, 0, 1, 1, -1, -1]))
    expected = segmented_entmax(scores, segments, alpha)
    for strange in (torch.inf, -torch.inf, torch.nan):
        scores[:, 4:] = strange
        leaf = scores.clone().requires_grad_()
        weights = segmented_entmax(leaf, segments, alpha)
        torch.testing.assert_close(weights, expected)
        (grad,) = torch.autograd.grad(weights.square().sum(), leaf)
        assert grad.isfinite().all()
        assert (grad[:, 4:] == 0).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_nothing_is_in_a_segment(alpha: float) -> None:
    scores = torch.randn(2, 6, requires_grad=True)
    weights = segmented_entmax(scores, Segments.of(torch.full((6,), -1)), alpha)
    (grad,) = torch.autograd.grad(weights.sum(), scores)
    assert not weights.any()
    assert not grad.any()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_huge_scores_stay_with_their_segment(alpha: float) -> None:
    scores = torch.tensor([[1e30, -1e30, 0.3, 0.2, -1e4, -1e4]])
    weights = segmented_entmax(scores, Segments.of(torch.tensor([0, 0, 1, 1, 2, 2])), alpha)
    expected = obvious(scores[:, 2:4].double(), torch.zeros(2, dtype=torch.int64), alpha, 1.0)
    torch.testing.assert_close(weights[:, [0, 1, 4, 5]], torch.tensor([[1.0, 0.0, 0.5, 0.5]]))
    torch.testing.assert_close(weights[:, 2:4].double(), expected, atol=1e-6, rtol=0)


def test_sums_and_sizes() -> None:
    ids = torch.tensor([3, 0, 0, -1, 3, 1])
    segments = Segments.of(ids)
    rows = torch.randn(4, 6)
    expected = rows.double() @ (ids[:, None] == ids).double()
    torch.testing.assert_close(segments.sums(rows), expected)
    assert segments.sizes.tolist() == [2, 2, 2, 1, 2, 1]
    assert segments.members.tolist() == [True, True, True, False, True, True]
    assert segments.leads.tolist() == [True, True, False, False, False, True]


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_one_graph_for_any_number_of_segments(alpha: float) -> None:
    def loss(scores: Tensor, ids: Tensor) -> Tensor:
        weights = segmented_entmax(scores, Segments.of(ids), alpha, temperature=1.5)
        return weights @ torch.arange(12.0)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    scores = torch.randn(8, 12, requires_grad=True)
    compiled(scores, torch.zeros(12, dtype=torch.int64))
    with torch.compiler.set_stance("fail_on_recompile"):
        for groups in (1, 2, 5, 12):
            ids = torch.arange(12) % groups
            found, expected = compiled(scores, ids), loss(scores, ids)
            torch.testing.assert_close(found, expected)
            (grad,) = torch.autograd.grad(found.sum(), scores)
            (expected_grad,) = torch.autograd.grad(expected.sum(), scores)
            torch.testing.assert_close(grad, expected_grad)
