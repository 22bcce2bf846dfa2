"""Image classifiers that keep learning, domain by domain, without keeping old images."""

from typing import TYPE_CHECKING, Any

from sodap.errors import SodapError
from sodap.version import __version__

if TYPE_CHECKING:
    from sodap.learning import Learner, Prediction, Scores, Training, load
    from sodap.streams import Domain, Split, Stream, load_stream

__all__ = [
    "Domain",
    "Learner",
    "Prediction",
    "Scores",
    "SodapError",
    "Split",
    "Stream",
    "Training",
    "__version__",
    "load",
    "load_stream",
]

_HOMES = {
    **dict.fromkeys(("Learner", "Prediction", "Scores", "Training", "load"), "sodap.learning"),
    **dict.fromkeys(("Domain", "Split", "Stream", "load_stream"), "sodap.streams"),
}


def __dir__() -> list[str]:
    """For whoever completes a name: all of them, before they are imported."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import torch only when it is needed: `sodap --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sodap' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
