"""What a method promises, one function a promise.

Each takes a `Trial` and raises `BrokenPromise` with the reason. Their first line is the promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sodap.testing.promises.computing import a_compiled_forward_agrees, a_gpu_agrees_with_the_cpu
from sodap.testing.promises.going_on import a_saved_learner_goes_on, a_stage_goes_on_after_an_epoch
from sodap.testing.promises.judging import Check
from sodap.testing.promises.keeping import nothing_is_hidden, what_is_kept_is_declared
from sodap.testing.promises.odd_streams import (
    a_class_may_be_missing,
    a_stage_may_be_one_batch,
    a_stage_may_be_one_image,
    any_number_of_classes,
)
from sodap.testing.promises.predicting import each_image_counts_alone, precision_changes_little
from sodap.testing.promises.saying import says_what_it_is
from sodap.testing.promises.training import (
    a_seed_decides_everything,
    frozen_stays_frozen,
    losses_are_finite,
    trainable_count_is_true,
)
from sodap.testing.trial import Trial

__all__ = ["CHECKS", "NEEDS_GPU", "SLOW", "check_method"]

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        says_what_it_is,
        losses_are_finite,
        frozen_stays_frozen,
        trainable_count_is_true,
        a_seed_decides_everything,
        each_image_counts_alone,
        precision_changes_little,
        nothing_is_hidden,
        what_is_kept_is_declared,
        a_saved_learner_goes_on,
        a_stage_goes_on_after_an_epoch,
        any_number_of_classes,
        a_class_may_be_missing,
        a_stage_may_be_one_batch,
        a_stage_may_be_one_image,
        a_compiled_forward_agrees,
        a_gpu_agrees_with_the_cpu,
    )
}
"""All promises by name, the simple ones first."""

SLOW = {"a_compiled_forward_agrees"}
"""Those that take more than a second or two."""

NEEDS_GPU = {"a_gpu_agrees_with_the_cpu"}
"""Those that say something only where there is a GPU."""


def check_method(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    slow: bool = False,
) -> None:
    """Teach a registered method tiny streams and raise at the first promise that it breaks.

    `slow` adds the checks that compile. Where there is a GPU it is used in any case; `device`
    says where everything else is computed.
    """
    trial = Trial(name, options or {}, device)
    trial.learner()  # options that do not fit are the caller's mistake and break no promise
    for key, check in CHECKS.items():
        if (slow or key not in SLOW) and (torch.cuda.is_available() or key not in NEEDS_GPU):
            check(trial)
