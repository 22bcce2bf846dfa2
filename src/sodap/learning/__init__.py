"""The training loop of a stage, and the learner that users hold."""

from sodap.learning.learner import Learner, Prediction, Scores, load
from sodap.learning.loop import end_stage, learn_stage
from sodap.learning.progress import StageProgress
from sodap.learning.training import Training

__all__ = [
    "Learner",
    "Prediction",
    "Scores",
    "StageProgress",
    "Training",
    "end_stage",
    "learn_stage",
    "load",
]
