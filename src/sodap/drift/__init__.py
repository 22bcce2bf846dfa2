"""PUDD, prompt-usage-based drift detection, section 3.3 of the paper.

Its only input is usage, the batch mean of the routing weights, so it works with any router:

    detector = DriftDetector(layers=12, prompts=60)
    detector.scan(usage_of_the_old_domain)  # [T, 12, 60]; each row sums to 1; fills the window
    without_drift = null_band(detector.window, detector.settings)
    drift = detector.scan(usage_of_the_new_domain).mean
    if should_expand(drift, detector.settings):
        new_prompts = expansion(active=60, score=drift, settings=detector.settings)
"""

from sodap.drift.expansion import expansion, should_expand
from sodap.drift.null import NullBand, null_band
from sodap.drift.reference import UsageReference
from sodap.drift.score import DriftDetector, DriftScores
from sodap.drift.settings import DriftSettings
from sodap.drift.signals import iou, selection_entropy, usage_set
from sodap.drift.window import UsageWindow

__all__ = [
    "DriftDetector",
    "DriftScores",
    "DriftSettings",
    "NullBand",
    "UsageReference",
    "UsageWindow",
    "expansion",
    "iou",
    "null_band",
    "selection_entropy",
    "should_expand",
    "usage_set",
]
