"""The loop in plain sight: stages, early stop, and a learner to hold it."""

from sodap.learning.forward import Answers
from sodap.learning.learner import Learner, Prediction, Scores, load
from sodap.learning.loop import end_stage, learn_stage
from sodap.learning.progress import StageProgress
from sodap.learning.training import Training

__all__ = [
    "Answers",
    "Learner",
    "Prediction",
    "Scores",
    "StageProgress",
    "Training",
    "end_stage",
    "learn_stage",
    "load",
]
