"""The training loop of a stage, and the learner that users hold."""

from typing import TYPE_CHECKING

from sodap.lazy import lazy_attributes

if TYPE_CHECKING:
    from sodap.learning.learner import Learner, RepeatedDomainWarning
    from sodap.learning.loading import load
    from sodap.learning.loop import end_stage, learn_stage
    from sodap.learning.progress import StageProgress
    from sodap.learning.results import Prediction, Scores
    from sodap.learning.training import Training

__all__ = [
    "Learner",
    "Prediction",
    "RepeatedDomainWarning",
    "Scores",
    "StageProgress",
    "Training",
    "end_stage",
    "learn_stage",
    "load",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        **dict.fromkeys(("Learner", "RepeatedDomainWarning"), "learner"),
        **dict.fromkeys(("Prediction", "Scores"), "results"),
        **dict.fromkeys(("end_stage", "learn_stage"), "loop"),
        "StageProgress": "progress",
        "load": "loading",
        "Training": "training",
    },
)
