"""State of a stage between epochs, from which training can resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sodap.learning.trace import Trace


@dataclass
class StageProgress:
    """State of one stage at the end of an epoch."""

    stage: int
    epoch: int = 0
    """Number of finished epochs."""
    best_epoch: int = 0
    best_score: float = -1.0
    """Validation macro-F1 of the best epoch."""
    best_value: float | None = None
    """What `Method.selects_by` names, of the best epoch; larger is better."""
    finished: bool = False
    begun: dict[str, Any] = field(default_factory=dict)
    """What `Method.begin_stage` returned (drift, growth of the pool)."""
    ended: dict[str, Any] = field(default_factory=dict)
    """What `Method.end_stage` returned (pool, entropy)."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row per epoch."""
    trace: Trace = field(default_factory=Trace)
    """All training steps of the finished epochs."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """State of the method after the best epoch."""
    optimizer: dict[str, Any] = field(default_factory=dict)

    def metadata(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON values."""
        return {
            "stage": self.stage,
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "best_value": self.best_value,
            "finished": self.finished,
            "begun": self.begun,
            "ended": self.ended,
            "history": self.history,
            "optimizer_groups": [_plain(group) for group in self.optimizer.get("param_groups", [])],
        }

    def tensors(self) -> dict[str, Tensor]:
        """All tensors in one flat dictionary."""
        flat = {f"best.{key}": value for key, value in self.best.items()}
        flat |= {f"trace.{key}": value for key, value in self.trace.tensors().items()}
        for index, moments in self.optimizer.get("state", {}).items():
            flat |= {
                f"optimizer.{index}.{key}": value
                for key, value in moments.items()
                if value is not None  # SGD's momentum of a weight without a gradient
            }
        return flat

    @classmethod
    def restore(cls, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> StageProgress:
        """Inverse of `metadata` and `tensors`."""
        fields = dict(metadata)
        groups = fields.pop("optimizer_groups")
        fields.setdefault("best_value", fields["best_score"])  # as in earlier versions
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = value
        steps = {k.removeprefix("trace."): v for k, v in tensors.items() if k.startswith("trace.")}
        for group in groups:  # JSON has no tuples
            if "betas" in group:
                group["betas"] = tuple(group["betas"])
        return cls(
            **fields,
            # The trace is kept on the host. A checkpoint of an earlier version has none.
            trace=Trace.from_tensors({k: v.cpu() for k, v in steps.items()}) if steps else Trace(),
            best={k.removeprefix("best."): v for k, v in tensors.items() if k.startswith("best.")},
            optimizer={"state": state, "param_groups": groups} if groups else {},
        )


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group as JSON values; on a GPU its learning rate is a tensor."""
    return {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items()}


def snapshot(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy all tensors of a state."""
    with torch.no_grad():
        return {key: value.detach().clone() for key, value in state.items()}
