"""The loop in plain sight: stages, early stop, and a learner to hold it."""

from sodap.learning.learner import Learner, Prediction, Scores, load
from sodap.learning.loop import end_stage, evaluate, learn_stage
from sodap.learning.progress import StageProgress
from sodap.learning.training import Training

__all__ = [
    "Learner",
    "Prediction",
    "Scores",
    "StageProgress",
    "Training",
    "end_stage",
    "evaluate",
    "learn_stage",
    "load",
]
