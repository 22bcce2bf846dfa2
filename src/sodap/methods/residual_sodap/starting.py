"""Starting points from images: statistics of queries, slots of the memory, keys of new prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sodap.methods.base import Observations
    from sodap.methods.residual_sodap.method import ResidualSodap

ENOUGH = 1024
"""Images that are looked at; more would hardly change means, deviations and clusters."""


def start_from_images(method: ResidualSodap, train: Observations, *, new_prompts: bool) -> None:
    """Start what the options want started from the images of a domain, at the start of a stage.

    Standardisation and memory start in stage 1; the keys of `new_prompts` in every stage.
    """
    c, prompter = method.config, method.prompter
    device = method.head.weight.device
    generator = method.randomness.generator("start from images", method.stage, device=device)
    full_precision = torch.autocast(device.type, enabled=False)  # as in every pass of the prompter
    if method.stage == 1 and prompter.standardiser is not None:
        queries, context, features = _observe(method, train)
        prompter.standardiser.fit(
            torch.cat([queries, context.unsqueeze(1), features.unsqueeze(1)], 1)
        )
    if method.stage == 1 and c.memory_assignment == "nearest":
        queries, _, features = _observe(method, train)
        with full_precision:
            prompter.start_memory(queries, features, generator)
    if new_prompts and c.key_start == "clusters":
        queries, context, _ = _observe(method, train)
        with full_precision:
            prompter.start_keys(queries, context, generator)


def _observe(method: ResidualSodap, train: Observations) -> tuple[Tensor, Tensor, Tensor]:
    """Queries `[n, L, D]`, context `[n, D]` and features `[n, D]` of the first images."""

    def look(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, prompts = method.features(images)
        return torch.stack(prompts.queries, 1), prompts.context, features

    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for rows, _ in train.map(look):
        found.append(rows)
        if sum(len(features) for _, _, features in found) >= ENOUGH:
            break
    queries, context, features = zip(*found, strict=True)
    return torch.cat(queries), torch.cat(context), torch.cat(features)
