"""How many prompts a drift is worth (section 3.3.3)."""

from __future__ import annotations

import math

from sodap.drift.settings import DriftSettings
from sodap.errors import SodapError


def should_expand(score: float, settings: DriftSettings) -> bool:
    """Whether the mean drift score reaches θ; with θ = 0 every new domain does.

    Beware of θ as a detector: without any drift the score is about 0.8 (see `null_band`), and with
    one it can be lower, where the new domain's batches are more alike than the old one's were.
    """
    return score >= settings.threshold


def expansion(active: int, score: float, settings: DriftSettings) -> int:
    """E = clamp(⌊|A| · D̄ / D_max⌋, E_min, E_max) new prompts for `active` present ones."""
    if active < 0 or not 0 <= score < math.inf:
        raise SodapError(
            f"the pool grows by a count of active prompts and a finite drift score, "
            f"neither negative, got {active} and {score}"
        )
    wanted = math.floor(active * score / settings.max_score)
    return min(max(wanted, settings.min_growth), settings.max_growth)
