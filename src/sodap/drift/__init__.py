"""Drift: the paper's score, a two-sample test from stored moments, and a live monitor.

A test with a stated false-alarm rate, for rows of numbers such as features of images:

    reference = MomentReference(width=384).update(old_rows)  # moments, no row is kept
    drift_test(reference, new_rows, alpha=0.01).alarm  # one look at one batch
    monitor = Monitor(reference.score(held_out_rows), alpha=0.01)
    monitor.update(reference.score(rows_of_a_patient)).alarm  # one look after each patient

PUDD, prompt-usage-based drift detection, is section 3.3 of the paper. Its score decides how much a
pool grows; it has no false-alarm rate. Its only input is usage, the batch mean of the routing
weights, so it works with any router:

    detector = DriftDetector(layers=12, prompts=60)
    detector.scan(usage_of_the_old_domain)  # [T, 12, 60]; each row sums to 1; fills the window
    without_drift = null_band(detector.window, detector.settings)
    drift = detector.scan(usage_of_the_new_domain).mean
    if should_expand(drift, detector.settings):
        new_prompts = expansion(active=60, score=drift, settings=detector.settings)
"""

from sodap.drift.expansion import expansion, should_expand
from sodap.drift.moments import MomentReference
from sodap.drift.monitor import Monitor, MonitorState
from sodap.drift.null import NullBand, null_band
from sodap.drift.reference import UsageReference
from sodap.drift.score import DriftDetector, DriftScores
from sodap.drift.settings import DriftSettings
from sodap.drift.signals import iou, selection_entropy, usage_set
from sodap.drift.two_sample import DriftTest, drift_test
from sodap.drift.window import UsageWindow

__all__ = [
    "DriftDetector",
    "DriftScores",
    "DriftSettings",
    "DriftTest",
    "MomentReference",
    "Monitor",
    "MonitorState",
    "NullBand",
    "UsageReference",
    "UsageWindow",
    "drift_test",
    "expansion",
    "iou",
    "null_band",
    "selection_entropy",
    "should_expand",
    "usage_set",
]
