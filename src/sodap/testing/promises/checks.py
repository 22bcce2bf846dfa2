"""Helpers of the checks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from sodap.errors import SodapError
from sodap.testing.trial import BrokenPromise, Trial

Check = Callable[[Trial], None]


def promise(check: Check) -> Check:
    """Raise every failure of a check as a `BrokenPromise` with the method and the promise."""

    @functools.wraps(check)
    def checked(trial: Trial) -> None:
        promised = (inspect.getdoc(check) or "").partition("\n")[0]
        verdict = f"method '{trial.method}' breaks the promise {check.__name__} ({promised})"
        try:
            check(trial)
        except BrokenPromise as broken:
            raise BrokenPromise(f"{verdict}: {broken}") from None
        except Exception as error:
            kind = "" if isinstance(error, SodapError) else f"{type(error).__name__}: "
            raise BrokenPromise(f"{verdict}: {kind}{error}") from error

    return checked


def require(kept: bool, otherwise: str) -> None:
    """Raise `BrokenPromise` with a reason unless `kept`."""
    if not kept:
        raise BrokenPromise(otherwise)


def require_equal_states(
    trial: Trial, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str
) -> None:
    """Require the same names and tensors; `what` describes `found` in the message."""
    require(
        found.keys() == expected.keys(),
        f"{what} has or lacks {quoted(found.keys() ^ expected.keys())}",
    )
    other = [name for name in expected if not trial.equal(found[name], expected[name])]
    require(not other, f"{what} differs in {quoted(other)}")


def quoted(names: Iterable[str]) -> str:
    """The first four names, quoted, and the number of further ones."""
    shown = sorted(names)
    rest = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return ", ".join(f"'{name}'" for name in shown[:4]) + rest
