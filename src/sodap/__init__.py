"""Image classifiers that keep learning, domain by domain, without keeping old images."""

from typing import TYPE_CHECKING

from sodap.errors import SodapError
from sodap.lazy import lazy_attributes
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

__getattr__ = lazy_attributes(
    __name__,
    {
        **dict.fromkeys(("Learner", "Prediction", "Scores", "Training", "load"), "learning"),
        **dict.fromkeys(("Domain", "Split", "Stream", "load_stream"), "streams"),
    },
)


def __dir__() -> list[str]:
    """All public names, for completion before they are imported."""
    return sorted({*globals(), *__all__})
