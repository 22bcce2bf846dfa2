"""The training loop of a stage, and the learner that users hold."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_MODULES = {
    **dict.fromkeys(("Learner", "Prediction", "Scores", "load"), "learner"),
    **dict.fromkeys(("end_stage", "learn_stage"), "loop"),
    "StageProgress": "progress",
    "Training": "training",
}


def __getattr__(name: str) -> Any:
    """Import torch only when it is needed: the training settings are read without it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'sodap.learning' has no attribute '{name}'")
    return getattr(import_module(f"sodap.learning.{_MODULES[name]}"), name)
