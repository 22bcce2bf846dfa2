"""How a promise is judged: what is demanded, and what is said where it is broken."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from sodap.errors import SodapError
from sodap.testing.trial import BrokenPromise, Trial

Check = Callable[[Trial], None]


def promise(check: Check) -> Check:
    """Whatever goes wrong in a check names the method and the promise."""

    @functools.wraps(check)
    def judged(trial: Trial) -> None:
        said = (inspect.getdoc(check) or "").partition("\n")[0]
        verdict = f"method '{trial.method}' breaks the promise {check.__name__} ({said})"
        try:
            check(trial)
        except BrokenPromise as broken:
            raise BrokenPromise(f"{verdict}: {broken}") from None
        except Exception as error:
            kind = "" if isinstance(error, SodapError) else f"{type(error).__name__}: "
            raise BrokenPromise(f"{verdict}: {kind}{error}") from error

    return judged


def demand(kept: bool, otherwise: str) -> None:
    if not kept:
        raise BrokenPromise(otherwise)


def same_state(
    trial: Trial, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str
) -> None:
    demand(
        found.keys() == expected.keys(),
        f"{what} has or lacks {listed(found.keys() ^ expected.keys())}",
    )
    other = [name for name in expected if not trial.same(found[name], expected[name])]
    demand(not other, f"{what} differs in {listed(other)}")


def listed(names: Iterable[str]) -> str:
    """The first few of many."""
    shown = sorted(names)
    rest = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return ", ".join(f"'{name}'" for name in shown[:4]) + rest
