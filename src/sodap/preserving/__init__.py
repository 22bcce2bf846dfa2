"""Statistical knowledge preservation, section 3.2 of the paper.

At the end of a stage its `ClassStatistics` are added to a `PseudoReplay`. In the next stage
`distillation_loss` keeps the student head close to the frozen teacher head, on real features and on
features that are sampled from the statistics.
"""

from sodap.preserving.distillation import distillation_loss
from sodap.preserving.replay import PseudoReplay
from sodap.preserving.statistics import ClassStatistics

__all__ = [
    "ClassStatistics",
    "PseudoReplay",
    "distillation_loss",
]
