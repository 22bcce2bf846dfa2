"""Ports: functions through which a method intervenes in every block of a ViT."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sodap.backbones.low_rank import BlockLora

Port = Callable[[int, Tensor], Tensor]
"""`(layer, tokens [B, P+S, D]) -> tokens`, called before block `layer`.

Token 0 is CLS, P is `prefix_tokens` (CLS and registers), and S patches follow. The result may have
more tokens, which then pass through all later blocks."""

ClsPort = Callable[[int, Tensor], Tensor]
"""`(layer, tokens) -> CLS token [B, D]` that block `layer` gets instead of its own.

Before the first block it is called with all tokens `[B, P+S, D]`, later with CLS alone,
`[B, 1, D]`."""

Prefix = Callable[[int, Tensor], tuple[Tensor, Tensor] | None]
"""`(layer, tokens) -> (keys, values)`, each `[B, m, D]`, or None.

Block `layer` attends to them besides its own. They are neither projected nor normalised, and add no
tokens."""

ParallelAdapter = Callable[[int, Tensor], Tensor | None]
"""`(layer, tokens after attention [B, N, D]) -> tensor` that is added in parallel to the MLP."""

Lora = Callable[[int], BlockLora | None]
"""`(layer) -> how the linear layers of block `layer` differ from the network's own`, or None."""
