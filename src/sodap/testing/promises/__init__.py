"""Promises of the contract, one check each.

A check takes a `Trial` and raises `BrokenPromise` with the reason. The first line of its docstring
is the promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sodap.testing.promises.checks import Check
from sodap.testing.promises.describing import describes_itself
from sodap.testing.promises.devices import a_compiled_forward_agrees, a_gpu_agrees_with_the_cpu
from sodap.testing.promises.edge_cases import (
    a_class_may_be_missing,
    a_stage_may_be_one_batch,
    a_stage_may_be_one_image,
    any_number_of_classes,
)
from sodap.testing.promises.predicting import (
    bf16_changes_little,
    predictions_are_independent_of_the_batch,
)
from sodap.testing.promises.resuming import (
    a_saved_learner_continues,
    a_stage_resumes_after_an_epoch,
)
from sodap.testing.promises.storing import all_tensors_are_in_the_state, stored_data_is_declared
from sodap.testing.promises.training import (
    frozen_stays_frozen,
    losses_are_finite,
    the_seed_determines_everything,
    trainable_count_is_right,
)
from sodap.testing.trial import Trial

__all__ = ["CHECKS", "NEEDS_GPU", "SLOW", "check_method"]

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        describes_itself,
        losses_are_finite,
        frozen_stays_frozen,
        trainable_count_is_right,
        the_seed_determines_everything,
        predictions_are_independent_of_the_batch,
        bf16_changes_little,
        all_tensors_are_in_the_state,
        stored_data_is_declared,
        a_saved_learner_continues,
        a_stage_resumes_after_an_epoch,
        any_number_of_classes,
        a_class_may_be_missing,
        a_stage_may_be_one_batch,
        a_stage_may_be_one_image,
        a_compiled_forward_agrees,
        a_gpu_agrees_with_the_cpu,
    )
}
"""All checks by name, simple ones first."""

SLOW = {"a_compiled_forward_agrees"}
"""Checks that take more than a second or two."""

NEEDS_GPU = {"a_gpu_agrees_with_the_cpu"}
"""Checks that need a GPU."""


def check_method(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
    slow: bool = False,
) -> None:
    """Train a registered method on tiny streams and raise `BrokenPromise` if a check fails.

    Args:
        device: where to compute; if there is a GPU, one check uses it in any case.
        slow: also run the checks that compile.
    """
    trial = Trial(name, options or {}, device)
    trial.learner()  # wrong options are an error of the caller and break no promise
    for key, check in CHECKS.items():
        if (slow or key not in SLOW) and (torch.cuda.is_available() or key not in NEEDS_GPU):
            check(trial)
