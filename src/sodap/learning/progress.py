"""Where a stage stands: all that is needed to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sodap.learning.trace import Trace


@dataclass
class StageProgress:
    """The state of one stage at the end of an epoch."""

    stage: int
    epoch: int = 0
    """Epochs that are done."""
    best_epoch: int = 0
    best_score: float = -1.0
    """Validation macro-F1 of the best epoch."""
    finished: bool = False
    begun: dict[str, Any] = field(default_factory=dict)
    """What the method said of the stage's beginning (drift, expansion)."""
    ended: dict[str, Any] = field(default_factory=dict)
    """What the method said of the stage's end (pool, support)."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row an epoch."""
    trace: Trace = field(default_factory=Trace)
    """Every step of these epochs."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The method's state at its best epoch."""
    optimizer: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """All but the tensors, in JSON's types."""
        return {
            "stage": self.stage,
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "finished": self.finished,
            "begun": self.begun,
            "ended": self.ended,
            "history": self.history,
            "optimizer_groups": [_plain(group) for group in self.optimizer.get("param_groups", [])],
        }

    def tensors(self) -> dict[str, Tensor]:
        flat = {f"best.{key}": value for key, value in self.best.items()}
        flat |= {f"trace.{key}": value for key, value in self.trace.tensors().items()}
        for index, moments in self.optimizer.get("state", {}).items():
            flat |= {f"optimizer.{index}.{key}": value for key, value in moments.items()}
        return flat

    @classmethod
    def restore(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> StageProgress:
        fields = dict(facts)
        groups = fields.pop("optimizer_groups")
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = value
        steps = {k.removeprefix("trace."): v for k, v in tensors.items() if k.startswith("trace.")}
        for group in groups:  # JSON knows no tuples
            group["betas"] = tuple(group["betas"])
        return cls(
            **fields,
            # A checkpoint of an earlier version has none. It is the host that adds to them.
            trace=Trace.from_tensors({k: v.cpu() for k, v in steps.items()}) if steps else Trace(),
            best={k.removeprefix("best."): v for k, v in tensors.items() if k.startswith("best.")},
            optimizer={"state": state, "param_groups": groups} if groups else {},
        )


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group in JSON's types: on a GPU its learning rate is a tensor."""
    return {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items()}


def snapshot(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy that training does not touch."""
    with torch.no_grad():
        return {key: value.detach().clone() for key, value in state.items()}
