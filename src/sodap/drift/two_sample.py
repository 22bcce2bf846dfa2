"""A two-sample test with a stated false-alarm rate, from stored moments."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sodap.drift.moments import MomentReference
from sodap.drift.weighted_chi2 import weighted_chi2_quantile, weighted_chi2_sf
from sodap.errors import SodapError

POWER_QUANTILE = 0.8416
"""The standard normal quantile of 0.8, the detection rate that `smallest_visible` promises."""


class DriftTest(NamedTuple):
    """Result of comparing new rows with a reference."""

    p_value: float
    """Probability of a distance as large as this if both come from one distribution."""
    statistic: float
    """|mean of the new features - mean of the reference's|², the squared MMD with its noise."""
    effect_size: float
    """MMD without its noise, in units of the spread of single rows; 0 = nothing to see."""
    smallest_visible: float
    """Effect size that would be found in about four of five tests with this many rows."""
    alarm: bool
    """Whether the p-value is at most alpha."""
    rows: int
    """New rows, or groups if they were given."""


@torch.no_grad()
def drift_test(
    reference: MomentReference, rows: Tensor, *, alpha: float = 0.01, groups: Tensor | None = None
) -> DriftTest:
    """Test whether rows `[n, width]` come from the distribution of the reference.

    If they do, the alarm is raised with probability alpha. It is one test of one batch: to look
    again and again while rows arrive, use a `Monitor`. Rows of one patient are not independent:
    give their group numbers `[n]`, here and for the reference, and each group counts as its mean.
    """
    if not 0 < alpha < 1:
        raise SodapError(f"alpha is a probability between 0 and 1, got {alpha}")
    if not reference.count:
        raise SodapError("the reference has seen no row yet; call its update first")
    new = reference.empty_copy().update(rows, groups)
    old_count, new_count = int(reference.count), int(new.count)
    statistic = float((new.mean - reference.mean).square().sum())
    # Without drift old and new rows are one sample, so the covariance comes from both.
    spectrum = new.merge(reference).spectrum()
    weights = spectrum * (1 / old_count + 1 / new_count)
    noise, spread = float(weights.sum()), math.sqrt(float(spectrum.sum()))
    if spread == 0:  # all rows are the same
        return DriftTest(1.0, 0.0, 0.0, 0.0, False, new_count)
    p_value = weighted_chi2_sf(statistic, weights)
    # With a shift δ the statistic has the mean δ² + noise and a variance of at most
    # 2 Σ w² + 4 δ² max w. Solve δ² + noise - z · std = critical value.
    critical = weighted_chi2_quantile(alpha, weights)
    gap, z = max(critical - noise, 0.0), POWER_QUANTILE
    slope = 2 * z**2 * float(weights.max())
    rest = gap**2 - 2 * z**2 * float((weights**2).sum())
    visible = gap + slope + math.sqrt(max((gap + slope) ** 2 - rest, 0.0))
    return DriftTest(
        p_value=p_value,
        statistic=statistic,
        effect_size=math.sqrt(max(statistic - noise, 0.0)) / spread,
        smallest_visible=math.sqrt(visible) / spread,
        alarm=p_value <= alpha,
        rows=new_count,
    )
