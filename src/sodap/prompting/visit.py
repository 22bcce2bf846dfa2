"""A layer's visit to the pool as one step of autograd: `Way` and `Router`, written out both ways.

Autograd would take the gradient of every map at every layer, from the few rows of one batch. But
the layers share their maps, so here each layer only keeps what its gradient follows from, and when
the last one is heard, one product over the rows of all layers gives the gradient of a map. The two
directions are functions of tensors and nothing else, which a compiler may fuse.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._C import _current_graph_task_id

from sodap.prompting.segments import Segments, entmax_gradient, segmented_entmax

STANDARD_EPS = 1e-5
"""What `layer_norm` adds to a variance unless told otherwise."""
UNIT_EPS = 1e-6
"""The least length that `unit` divides by."""


class Maps(NamedTuple):
    """What a pass multiplies by at every layer; the same for all of them."""

    ask: Tensor  # [D, H·M + 2d]: questions of the memory, W_down, and W1's part for the query
    totals: Tensor  # [H·M], what a question makes of a query of ones
    offsets: Tensor  # [H·M]
    start: Tensor  # [B, d], what the context and the memory's base add to LN's input
    told: Tensor  # [H·M, d], what each slot adds to it
    gain: Tensor  # [d], of the LayerNorm
    shift: Tensor  # [d]
    keys: Tensor  # [N, d], of length one
    up: Tensor  # [N, D], each prompt as it is added to CLS
    inner: Tensor  # W2 W_down [d, d], or W2 [d, D] ...
    outer: Tensor | None = None  # ... and W_down [D, d]

    def detached(self) -> "Maps":
        return Maps._make(None if each is None else each.detach() for each in self)


class Seen(NamedTuple):
    """What the way back needs of the way there; B rows each."""

    mean: Tensor  # [B, 1], of the query
    scale: Tensor  # [B, 1], one over its standard deviation
    asked: Tensor  # [B, H·M], what each slot is asked by it, without the offset
    attention: Tensor  # [B, H·M]
    hidden: Tensor  # [B, d], LN's input
    hidden_mean: Tensor  # [B, 1]
    hidden_scale: Tensor  # [B, 1]
    normal: Tensor  # [B, d], LN's output
    fired: Tensor  # [B, d], GELU's
    turned: Tensor  # [B, d], or [B, D] before W_down
    length: Tensor  # [B, 1], of z
    aim: Tensor  # [B, d], z at length one


class Pulled(NamedTuple):
    """What the gradients of the maps follow from, beside what was seen; B rows each."""

    raw: Tensor  # [B, H·M + 2d], on q @ ask
    normal: Tensor  # [B, d], on LN's output
    turned: Tensor  # [B, d] or [B, D]


def look(query: Tensor, maps: Maps, heads: int) -> tuple[Tensor, Seen]:
    """The logits ``[B, N]`` of a query ``[B, D]``, before the temperature, and what was seen."""
    slots, bottleneck = maps.told.shape
    # LN(q) @ questions, from q @ questions: the mean and the scale of a query are taken out of it.
    variance, mean = torch.var_mean(query, -1, correction=0, keepdim=True)
    scale = (variance + STANDARD_EPS).rsqrt()
    raw = query @ maps.ask
    asked, direct, hidden = raw[:, :slots], raw[:, slots:-bottleneck], raw[:, -bottleneck:]
    asked = torch.addcmul(asked, mean, maps.totals, value=-1) * scale
    attention = (asked + maps.offsets).view(len(query), heads, -1).softmax(-1).flatten(1)
    hidden = torch.addmm(hidden + maps.start, attention, maps.told)
    normal, hidden_mean, hidden_scale = torch.native_layer_norm(
        hidden, (bottleneck,), maps.gain, maps.shift, STANDARD_EPS
    )
    fired = torch.nn.functional.gelu(normal)
    turned = fired if maps.outer is None else fired @ maps.inner
    z = torch.addmm(direct, turned, maps.inner if maps.outer is None else maps.outer)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp(min=UNIT_EPS)
    aim = z / length
    seen = Seen(
        mean,
        scale,
        asked,
        attention,
        hidden,
        hidden_mean,
        hidden_scale,
        normal,
        fired,
        turned,
        length,
        aim,
    )
    return aim @ maps.keys.mT, seen


def look_back(
    pull: Tensor, logits_pull: Tensor, query: Tensor, seen: Seen, maps: Maps, heads: int
) -> tuple[Tensor, Pulled]:
    """The gradient of the query ``[B, D]``, from those of the output ``[B, D]`` and the logits."""
    bottleneck, width = maps.told.shape[-1], query.shape[-1]
    aim_pull = logits_pull @ maps.keys
    # Along z itself nothing changes.
    across = aim_pull - seen.aim * (seen.aim * aim_pull).sum(-1, keepdim=True)
    z_pull = torch.where(seen.length > UNIT_EPS, across, aim_pull) / seen.length
    turned_pull = z_pull @ (maps.inner if maps.outer is None else maps.outer).mT
    fired_pull = turned_pull if maps.outer is None else turned_pull @ maps.inner.mT
    normal_pull = torch.ops.aten.gelu_backward(fired_pull, seen.normal)
    hidden_pull, _, _ = torch.ops.aten.native_layer_norm_backward(
        normal_pull,
        seen.hidden,
        (bottleneck,),
        seen.hidden_mean,
        seen.hidden_scale,
        maps.gain,
        maps.shift,
        (True, False, False),
    )
    attention_pull = seen.attention * (hidden_pull @ maps.told.mT)
    by_head = attention_pull.view(len(query), heads, -1).sum(-1, keepdim=True)
    held = seen.attention.view(len(query), heads, -1) * by_head
    asked_pull = attention_pull - held.flatten(1)
    scaled = asked_pull * seen.scale
    raw = torch.cat([scaled, z_pull, hidden_pull], dim=-1)
    # What the mean and the scale of a query did to the questions.
    mean_pull = (scaled * maps.totals).sum(-1, keepdim=True)
    spread = (asked_pull * seen.asked).sum(-1, keepdim=True) * seen.scale.square()
    found = torch.addmm(pull, raw, maps.ask.mT)
    found = found - (mean_pull + spread * (query - seen.mean)) / width
    return found, Pulled(raw, normal_pull, turned_pull)


class Kept(NamedTuple):
    """A visit that the way back has come past."""

    query: Tensor
    seen: Seen
    pulled: Pulled
    weights: Tensor  # [B, N]
    logits_pull: Tensor  # [B, N]
    pull: Tensor  # [B, D]
    way_back: int  # which one: a pass may be gone back through in parts, or again


Look = Callable[[Tensor, Maps, int], tuple[Tensor, Seen]]
LookBack = Callable[[Tensor, Tensor, Tensor, Seen, Maps, int], tuple[Tensor, Pulled]]


class Rules(NamedTuple):
    """How a visit goes, whatever the maps."""

    heads: int
    segments: Segments
    alpha: float
    temperature: float
    look: Look = look
    look_back: LookBack = look_back  # both may be what a compiler made of them

    def visit(self, query: Tensor, maps: Maps) -> tuple[Tensor, Tensor, Seen]:
        """The query with its prompt ``[B, D]``, the weights ``[B, N]``, and what was seen."""
        logits, seen = self.look(query, maps, self.heads)
        weights = segmented_entmax(logits, self.segments, self.alpha, temperature=self.temperature)
        return torch.addmm(query, weights, maps.up), weights, seen


class Visits:
    """The visits of one pass, layer by layer, through maps that they share."""

    # A compiler goes step by step, but torch 2.11 would still look in here.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __init__(self, maps: Maps, rules: Rules) -> None:
        self.rules = rules
        self.learns = torch.is_grad_enabled()
        self.kept: dict[int, Kept] = {}  # by layer
        self.maps = maps.detached()
        # For autograd alone: where the gradients of the maps are asked for.
        self.gates = _Gate.apply(self.kept, *maps) if self.learns else ()

    def __call__(self, layer: int, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Rules.visit`, with the attention to the memory ``[B, H, M]``, which is detached."""
        if self.learns:
            found = _Visit.apply(self.rules, self.maps, self.kept, layer, query, *self.gates)
            prompted, weights, attention = cast(tuple[Tensor, Tensor, Tensor], found)
        else:
            prompted, weights, seen = self.rules.visit(query, self.maps)
            attention = seen.attention
        return prompted, weights, attention.view(len(query), self.rules.heads, -1)


class _Gate(torch.autograd.Function):
    """All maps pass here before the first visit, and their gradients after the last.

    Visits hand back no gradient for a map. Autograd still comes here when it is through with all
    of them, and finds what they kept.
    """

    @staticmethod
    def forward(ctx: Any, kept: dict[int, Kept], *maps: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.kept = kept
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*maps)
        return tuple(None if each is None else each.view_as(each) for each in maps)

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        maps, wanted = Maps(*ctx.saved_tensors), ctx.needs_input_grad[1:]
        _expect_first_derivative()
        now = _current_graph_task_id()
        rows = [row for _, row in sorted(ctx.kept.items()) if row.way_back == now]
        ctx.kept.clear()
        return None, *(gradients(rows, maps, wanted) if rows else [None] * len(wanted))


class _Visit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rules: Rules,
        maps: Maps,
        kept: dict[int, Kept],
        layer: int,
        query: Tensor,
        *gates: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        prompted, weights, seen = rules.visit(query.detach(), maps)
        ctx.rules, ctx.maps, ctx.kept, ctx.layer = rules, maps, kept, layer
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, weights, *seen)
        ctx.mark_non_differentiable(seen.attention)
        return prompted, weights, seen.attention

    @staticmethod
    def backward(
        ctx: Any, pull: Tensor | None, weights_pull: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        _expect_first_derivative()
        rules: Rules = ctx.rules
        maps: Maps = ctx.maps
        query, weights, *rest = (each.detach() for each in ctx.saved_tensors)
        seen = Seen(*rest)
        if pull is None:
            pull = torch.zeros_like(query)
        if weights_pull is None:
            weights_pull = pull @ maps.up.mT
        else:
            weights_pull = torch.addmm(weights_pull, pull, maps.up.mT)
        logits_pull = entmax_gradient(
            weights, weights_pull, rules.segments, rules.alpha, rules.temperature
        )
        found, pulled = rules.look_back(pull, logits_pull, query, seen, maps, rules.heads)
        if any(ctx.needs_input_grad[5:]):
            ctx.kept[ctx.layer] = Kept(
                query, seen, pulled, weights, logits_pull, pull, _current_graph_task_id()
            )
        return None, None, None, None, found, *(None,) * len(maps)


def _expect_first_derivative() -> None:
    if torch.is_grad_enabled():  # by create_graph=True
        raise RuntimeError("a visit to the prompt pool has no second derivative")


def gradients(rows: Sequence[Kept], maps: Maps, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Of every map that is wanted, from the rows of all layers at once."""

    def all_of(part: Callable[[Kept], Tensor]) -> Tensor:
        return torch.cat([part(row) for row in rows])

    def standard() -> Tensor:
        """What LN's gain was multiplied by."""
        hidden, mean = all_of(lambda row: row.seen.hidden), all_of(lambda row: row.seen.hidden_mean)
        return (hidden - mean) * all_of(lambda row: row.seen.hidden_scale)

    slots, bottleneck = maps.told.shape
    raw = all_of(lambda row: row.pulled.raw)  # [L·B, H·M + 2d]
    scaled, z_pull = raw[:, :slots], raw[:, slots:-bottleneck]
    hidden_pull = raw[:, -bottleneck:]
    normal_pull = all_of(lambda row: row.pulled.normal)
    found: dict[str, Callable[[], Tensor]] = {
        "ask": lambda: all_of(lambda row: row.query).mT @ raw,
        "totals": lambda: -(scaled * all_of(lambda row: row.seen.mean)).sum(0),
        "offsets": lambda: (scaled / all_of(lambda row: row.seen.scale)).sum(0),
        "start": lambda: hidden_pull.view(len(rows), -1, bottleneck).sum(0),
        "told": lambda: all_of(lambda row: row.seen.attention).mT @ hidden_pull,
        "gain": lambda: (normal_pull * standard()).sum(0),
        "shift": lambda: normal_pull.sum(0),
        "keys": lambda: all_of(lambda row: row.logits_pull).mT @ all_of(lambda row: row.seen.aim),
        "up": lambda: all_of(lambda row: row.weights).mT @ all_of(lambda row: row.pull),
        "inner": lambda: (
            all_of(lambda row: row.seen.fired).mT
            @ (z_pull if maps.outer is None else all_of(lambda row: row.pulled.turned))
        ),
        "outer": lambda: all_of(lambda row: row.seen.turned).mT @ z_pull,
    }
    return [
        found[name]() if want else None for name, want in zip(Maps._fields, wanted, strict=True)
    ]
