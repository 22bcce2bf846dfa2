"""The prompter's layers as one autograd function each, with a hand-written backward pass.

Autograd would compute the gradient of every weight at every layer, from the few rows of one batch.
But the layers share their weights. So each layer only saves what the gradients follow from, and
after the last one a single product over the rows of all layers gives the gradient of each weight.
`logits_forward` and `logits_backward` are pure functions of tensors, which torch.compile can fuse.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._C import _current_graph_task_id

from sodap.prompting.fast.folding import FoldedWeights
from sodap.prompting.fast.segments import (
    Competition,
    Segments,
    entmax_gradient,
    segmented_entmax,
)

NORM_EPS = 1e-5
"""Default epsilon of LayerNorm."""
UNIT_EPS = 1e-6
"""Epsilon of `sodap.prompting.routing.unit`."""


class Saved(NamedTuple):
    """What the backward pass of a layer needs of its forward pass; B rows each."""

    mean: Tensor  # [B, 1], mean of the query; 0 where queries are not standardised
    scale: Tensor  # [B, 1], one over its standard deviation; else 1
    scores: Tensor  # [B, H·M], of the memory's slots, without bias
    attention: Tensor  # [B, H·M]
    hidden: Tensor  # [B, d], before LayerNorm
    hidden_mean: Tensor  # [B, 1]
    hidden_scale: Tensor  # [B, 1]
    normal: Tensor  # [B, d], after LayerNorm
    activation: Tensor  # [B, d], after GELU
    enhancement: Tensor  # [B, D], after W2; where W2 W_down is one product, the activation
    length: Tensor  # [B, 1], of z
    direction: Tensor  # [B, d], z at length one


class Grads(NamedTuple):
    """Gradients inside a layer that those of the weights follow from; B rows each."""

    product: Tensor  # [B, H·M + 2d], of q @ weights.query
    normal: Tensor  # [B, d]
    enhancement: Tensor  # [B, d] or [B, D]


def logits_forward(query: Tensor, weights: FoldedWeights, heads: int) -> tuple[Tensor, Saved]:
    """Cosine logits ``[B, N]`` of queries ``[B, D]``, and what the backward pass needs."""
    slots, bottleneck = weights.memory.shape
    if weights.key_sums is None:
        mean, scale = query.new_zeros(len(query), 1), query.new_ones(len(query), 1)
    else:
        variance, mean = torch.var_mean(query, -1, correction=0, keepdim=True)
        scale = (variance + NORM_EPS).rsqrt()
    product = query @ weights.query
    scores, direct = product[:, :slots], product[:, slots:-bottleneck]
    hidden = product[:, -bottleneck:]
    if weights.key_sums is not None:
        # LN(q) @ keys from q @ keys: the mean and the scale of a query are factored out.
        scores = torch.addcmul(scores, mean, weights.key_sums, value=-1) * scale
    attention = (scores + weights.memory_bias).view(len(query), heads, -1).softmax(-1).flatten(1)
    hidden = torch.addmm(hidden + weights.hidden_bias, attention, weights.memory)
    normal, hidden_mean, hidden_scale = torch.native_layer_norm(
        hidden, (bottleneck,), weights.norm_weight, weights.norm_bias, NORM_EPS
    )
    activation = torch.nn.functional.gelu(normal)
    enhancement = activation if weights.outer is None else activation @ weights.inner
    z = torch.addmm(direct, enhancement, weights.inner if weights.outer is None else weights.outer)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True).clamp(min=UNIT_EPS)
    direction = z / length
    saved = Saved(
        mean,
        scale,
        scores,
        attention,
        hidden,
        hidden_mean,
        hidden_scale,
        normal,
        activation,
        enhancement,
        length,
        direction,
    )
    return direction @ weights.keys.mT, saved


def logits_backward(
    grad: Tensor,
    logits_grad: Tensor,
    query: Tensor,
    saved: Saved,
    weights: FoldedWeights,
    heads: int,
) -> tuple[Tensor, Grads]:
    """Gradient of the query ``[B, D]`` from those of the output ``[B, D]`` and the logits."""
    bottleneck, width = weights.memory.shape[-1], query.shape[-1]
    direction_grad = logits_grad @ weights.keys
    # The length of z has no effect: the gradient along z itself is removed.
    along = saved.direction * (saved.direction * direction_grad).sum(-1, keepdim=True)
    across = direction_grad - along
    z_grad = torch.where(saved.length > UNIT_EPS, across, direction_grad) / saved.length
    enhancement_grad = z_grad @ (weights.inner if weights.outer is None else weights.outer).mT
    activation_grad = (
        enhancement_grad if weights.outer is None else enhancement_grad @ weights.inner.mT
    )
    normal_grad = torch.ops.aten.gelu_backward(activation_grad, saved.normal)
    hidden_grad, _, _ = torch.ops.aten.native_layer_norm_backward(
        normal_grad,
        saved.hidden,
        (bottleneck,),
        saved.hidden_mean,
        saved.hidden_scale,
        weights.norm_weight,
        weights.norm_bias,
        (True, False, False),
    )
    attention_grad = saved.attention * (hidden_grad @ weights.memory.mT)
    by_head = attention_grad.view(len(query), heads, -1).sum(-1, keepdim=True)
    held = saved.attention.view(len(query), heads, -1) * by_head
    scores_grad = attention_grad - held.flatten(1)
    scaled = scores_grad * saved.scale
    product = torch.cat([scaled, z_grad, hidden_grad], dim=-1)
    found = torch.addmm(grad, product, weights.query.mT)
    if weights.key_sums is not None:  # through the mean and the scale of the query
        mean_grad = (scaled * weights.key_sums).sum(-1, keepdim=True)
        spread = (scores_grad * saved.scores).sum(-1, keepdim=True) * saved.scale.square()
        found = found - (mean_grad + spread * (query - saved.mean)) / width
    return found, Grads(product, normal_grad, enhancement_grad)


class LayerGrads(NamedTuple):
    """All that the gradients of the weights need of one layer."""

    query: Tensor
    saved: Saved
    grads: Grads
    routing: Tensor  # [B, N], routing weights
    logits_grad: Tensor  # [B, N]
    grad: Tensor  # [B, D]
    backward_pass: int  # number of the backward pass: there may be several through one forward pass


LogitsForward = Callable[[Tensor, FoldedWeights, int], tuple[Tensor, Saved]]
LogitsBackward = Callable[[Tensor, Tensor, Tensor, Saved, FoldedWeights, int], tuple[Tensor, Grads]]


class FusedLayer(NamedTuple):
    """The equations of one layer, for any weights."""

    heads: int
    sets: Segments | Competition
    alpha: float  # 1 for softmax
    temperature: float
    logits_forward: LogitsForward = logits_forward
    logits_backward: LogitsBackward = logits_backward

    def forward(
        self, query: Tensor, weights: FoldedWeights
    ) -> tuple[Tensor, Tensor, Tensor, Saved]:
        """Prompted CLS ``[B, D]``, routing weights ``[B, N]``, and what backward needs."""
        logits, saved = self.logits_forward(query, weights, self.heads)
        routing, selected = self.route(logits)
        return torch.addmm(query, routing, weights.up), routing, selected, saved

    def route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Routing weights ``[B, N]``, and the distributions that they are part of."""
        if isinstance(self.sets, Segments):
            routing = segmented_entmax(logits, self.sets, self.alpha, temperature=self.temperature)
            return routing, routing
        copies = segmented_entmax(
            self.sets.spread(logits), self.sets.segments, self.alpha, temperature=self.temperature
        )
        return self.sets.kept(copies), copies

    def logits_grad(self, selected: Tensor, grad: Tensor) -> Tensor:
        """Gradient of the logits ``[B, N]`` from that of the routing weights."""
        if isinstance(self.sets, Segments):
            return entmax_gradient(selected, grad, self.sets, self.alpha, self.temperature)
        return self.sets.gradient(selected, grad, self.alpha, self.temperature)


class FusedLayers:
    """The layers of one pass that share the same folded weights."""

    def __init__(self, weights: FoldedWeights, layer: FusedLayer) -> None:
        self.layer = layer
        self.needs_grad = torch.is_grad_enabled()
        self.finished: dict[int, LayerGrads] = {}  # by layer, filled by the backward pass
        self.weights = weights.detach()
        # Autograd sees the weights only here; their gradients are computed behind all layers.
        self.inputs = _SharedWeights.apply(self.finished, *weights) if self.needs_grad else ()

    def __call__(self, layer: int, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prompted CLS ``[B, D]``, routing weights ``[B, N]``, memory attention ``[B, H, M]``.

        The attention is detached.
        """
        if self.needs_grad:
            found = _Layer.apply(
                self.layer, self.weights, self.finished, layer, query, *self.inputs
            )
            prompted, routing, attention = cast(tuple[Tensor, Tensor, Tensor], found)
        else:
            prompted, routing, _, saved = self.layer.forward(query, self.weights)
            attention = saved.attention
        return prompted, routing, attention.view(len(query), self.layer.heads, -1)


class _SharedWeights(torch.autograd.Function):
    """Identity on the weights, whose backward pass computes their gradients for all layers.

    Layers return no gradient for a weight. Autograd still runs this node after all layers, and it
    finds what they have left in ``finished``.
    """

    @staticmethod
    def forward(
        ctx: Any, finished: dict[int, LayerGrads], *weights: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.finished = finished
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*weights)
        return tuple(None if each is None else each.view_as(each) for each in weights)

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        weights, wanted = FoldedWeights(*ctx.saved_tensors), ctx.needs_input_grad[1:]
        _refuse_second_derivative()
        now = _current_graph_task_id()
        layers = [layer for _, layer in sorted(ctx.finished.items()) if layer.backward_pass == now]
        ctx.finished.clear()
        return None, *(weight_grads(layers, weights, wanted) if layers else [None] * len(wanted))


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layer: FusedLayer,
        weights: FoldedWeights,
        finished: dict[int, LayerGrads],
        number: int,
        query: Tensor,
        *inputs: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        prompted, routing, selected, saved = layer.forward(query.detach(), weights)
        ctx.layer, ctx.weights, ctx.finished, ctx.number = layer, weights, finished, number
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, routing, selected, *saved)
        ctx.mark_non_differentiable(saved.attention)
        return prompted, routing, saved.attention

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, routing_grad: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        layer: FusedLayer = ctx.layer
        weights: FoldedWeights = ctx.weights
        query, routing, selected, *rest = (each.detach() for each in ctx.saved_tensors)
        saved = Saved(*rest)
        if grad is None:
            grad = torch.zeros_like(query)
        if routing_grad is None:
            routing_grad = grad @ weights.up.mT
        else:
            routing_grad = torch.addmm(routing_grad, grad, weights.up.mT)
        logits_grad = layer.logits_grad(selected, routing_grad)
        found, grads = layer.logits_backward(grad, logits_grad, query, saved, weights, layer.heads)
        if any(ctx.needs_input_grad[5:]):
            ctx.finished[ctx.number] = LayerGrads(
                query, saved, grads, routing, logits_grad, grad, _current_graph_task_id()
            )
        return None, None, None, None, found, *(None,) * len(weights)


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():  # by create_graph=True
        raise RuntimeError(
            "the fast prompter has no second derivative; use fast=false to differentiate twice"
        )


def weight_grads(
    layers: Sequence[LayerGrads], weights: FoldedWeights, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of the wanted weights, from the rows of all layers at once."""

    def stacked(part: Callable[[LayerGrads], Tensor]) -> Tensor:
        return torch.cat([part(layer) for layer in layers])  # [L·B, ...]

    def standardised() -> Tensor:
        """Input of LayerNorm's weight."""
        hidden, mean = stacked(lambda x: x.saved.hidden), stacked(lambda x: x.saved.hidden_mean)
        return (hidden - mean) * stacked(lambda x: x.saved.hidden_scale)

    slots, bottleneck = weights.memory.shape
    product = stacked(lambda x: x.grads.product)  # [L·B, H·M + 2d]
    scaled, z_grad = product[:, :slots], product[:, slots:-bottleneck]
    hidden_grad = product[:, -bottleneck:]
    normal_grad = stacked(lambda x: x.grads.normal)
    found: dict[str, Callable[[], Tensor]] = {
        "query": lambda: stacked(lambda x: x.query).mT @ product,
        "key_sums": lambda: -(scaled * stacked(lambda x: x.saved.mean)).sum(0),
        "memory_bias": lambda: (scaled / stacked(lambda x: x.saved.scale)).sum(0),
        "hidden_bias": lambda: hidden_grad.view(len(layers), -1, bottleneck).sum(0),
        "memory": lambda: stacked(lambda x: x.saved.attention).mT @ hidden_grad,
        "norm_weight": lambda: (normal_grad * standardised()).sum(0),
        "norm_bias": lambda: normal_grad.sum(0),
        "keys": lambda: stacked(lambda x: x.logits_grad).mT @ stacked(lambda x: x.saved.direction),
        "up": lambda: stacked(lambda x: x.routing).mT @ stacked(lambda x: x.grad),
        "inner": lambda: (
            stacked(lambda x: x.saved.activation).mT
            @ (z_grad if weights.outer is None else stacked(lambda x: x.grads.enhancement))
        ),
        "outer": lambda: stacked(lambda x: x.saved.enhancement).mT @ z_grad,
    }
    return [
        found[name]() if want else None
        for name, want in zip(FoldedWeights._fields, wanted, strict=True)
    ]
