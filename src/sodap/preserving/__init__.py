"""Statistical knowledge preservation (section 3.2): keep class statistics, never an image.

At the end of a stage `ClassStatistics` are absorbed by a `FeatureMemory`; in the next one the
student head is held to the frozen teacher head on real features and on features drawn from memory.
"""

from sodap.preserving.distillation import distillation_loss
from sodap.preserving.replay import FeatureMemory
from sodap.preserving.statistics import ClassStatistics

__all__ = [
    "ClassStatistics",
    "FeatureMemory",
    "distillation_loss",
]
