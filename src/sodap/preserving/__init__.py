"""Statistical knowledge preservation (section 3.2): keep class statistics, never an image.

At the end of a stage `ClassStatistics` are absorbed by a `FeatureMemory`; in the next one the
student head is held to the frozen teacher head on real features and on features drawn from memory.
`RidgeStatistics` keep second moments instead and solve for a head in closed form.
A `Reservoir` keeps images, for the baselines that do.
"""

from sodap.preserving.distillation import distillation_loss
from sodap.preserving.replay import FeatureMemory
from sodap.preserving.reservoir import Reservoir
from sodap.preserving.ridge import RidgeStatistics, with_constant
from sodap.preserving.selector import DomainSelector
from sodap.preserving.statistics import ClassStatistics

__all__ = [
    "ClassStatistics",
    "DomainSelector",
    "FeatureMemory",
    "Reservoir",
    "RidgeStatistics",
    "distillation_loss",
    "with_constant",
]
