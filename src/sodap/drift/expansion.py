"""Growth of the prompt pool in proportion to the drift score (section 3.3.3)."""

from __future__ import annotations

import math

from sodap.drift.settings import DriftSettings
from sodap.errors import SodapError


def should_expand(score: float, settings: DriftSettings) -> bool:
    """Return whether the mean drift score reaches θ; with θ = 0 it always does.

    θ is not a reliable detector: without any drift the score is about 0.8 (see `null_band`), and
    with drift it can be lower, if the batches of the new domain vary less than those of the old.
    """
    return score >= settings.threshold


def expansion(active: int, score: float, settings: DriftSettings) -> int:
    """Number of prompts to add, E = clamp(⌊|A| · D̄ / D_max⌋, E_min, E_max), equation (20)."""
    if active < 0 or not 0 <= score < math.inf:
        raise SodapError(
            f"expansion needs a number of active prompts and a finite drift score, both not "
            f"negative, but got {active} and {score}"
        )
    wanted = math.floor(active * score / settings.max_score)
    return min(max(wanted, settings.min_growth), settings.max_growth)
