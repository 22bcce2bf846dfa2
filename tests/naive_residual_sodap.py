"""Residual SODAP written from the paper alone, as plainly as possible: an oracle for the tests.

It shares nothing with `sodap` but the frozen ViT, the images and the random numbers: no padding, no
capacity, no cache, every gradient by autograd, all in float64. Where the text leaves a choice,
`literal` takes the reading of the recipe `paper`, else that of `default` (docs/paper.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Batches = list[tuple[Tensor, Tensor]]  # prepared images and their labels


def entmax(rows: Tensor, alpha: float = 1.5) -> Tensor:
    """(4) as printed: [((α-1)/α)(l - τ)]_+^(1/(α-1)), τ by bisection."""
    factor, power, fixed = (alpha - 1) / alpha, 1 / (alpha - 1), rows.detach()
    high = fixed.amax(-1, keepdim=True)
    low = high - 1 / factor
    for _ in range(80):
        tau = (low + high) / 2
        enough = (factor * (fixed - tau)).clamp(min=0).pow(power).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, tau, low), torch.where(enough, high, tau)
    # A Newton step at the root leaves its value and gives τ its derivative.
    slope: Tensor = factor * power * (factor * (fixed - low)).clamp(min=0).pow(power - 1)
    total: Tensor = (factor * (rows - low)).clamp(min=0).pow(power).sum(-1, keepdim=True)
    tau = low + (total - 1) / slope.sum(-1, keepdim=True)
    weights: Tensor = (factor * (rows - tau)).clamp(min=0).pow(power)
    return weights


def cosines(a: Tensor, b: Tensor) -> Tensor:
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T


def distillation(teacher: Tensor, student: Tensor, T: float = 2.0) -> Tensor:
    """(12), (14)"""
    p, q = (teacher.detach() / T).softmax(-1), (student / T).softmax(-1)
    return (p * (p.log() - q.log())).sum(-1).mean() * T**2


@dataclass
class Naive:
    """The model: trained tensors `p`, memory slots `m`, and what it keeps of past stages."""

    vit: Any
    p: dict[str, Tensor]
    m: dict[str, Tensor]  # keys, values [M, D]
    heads: int
    literal: bool
    min_growth: int
    group: int  # images of a usage vector
    tau_s: float = 0.01
    stage: int = 0
    frozen: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # keys and values by stage
    teacher: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
    n: dict[int, int] = field(default_factory=dict)  # of each class, as μ and Q below
    mu: dict[int, Tensor] = field(default_factory=dict)
    Q: dict[int, Tensor] = field(default_factory=dict)
    window: list[list[tuple[float, set[int]]]] = field(default_factory=list)  # (H, S) by layer

    def sets(self) -> list[tuple[Tensor, Tensor, float]]:
        """F, in one set or by stages, then A: keys, values, scale."""
        old = self.frozen
        if self.literal and old:
            old = [(torch.cat([k for k, _ in old]), torch.cat([v for _, v in old]))]
        active = (self.p["keys"], self.p["values"], 0.1 if old else 1.0)
        return [*((k, v, 1.0) for k, v in old), active]

    def normal(self, q: Tensor) -> Tensor:
        """What the memory is read and written with."""
        return q if self.literal else F.layer_norm(q, q.shape[1:])

    def layer(self, q: Tensor, g: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """CLS with its prompt `[B, D]`, weights in each set, attention `[B, M]`."""
        p, normal, reads, attentions = self.p, self.normal(q), [], []
        for rows in torch.arange(q.shape[1]).chunk(self.heads):
            ask = normal @ p["to_query.weight"][rows].T + p["to_query.bias"][rows]
            key = self.m["keys"].clone() @ p["to_key.weight"][rows].T + p["to_key.bias"][rows]
            value = (
                self.m["values"].clone() @ p["to_value.weight"][rows].T + p["to_value.bias"][rows]
            )
            attentions.append((ask @ key.T / math.sqrt(len(rows))).softmax(-1))
            reads.append(attentions[-1] @ value)
        r = torch.cat(reads, 1) @ p["to_output.weight"].T + p["to_output.bias"]  # (1)
        hidden = torch.cat([q, g, r], 1) @ p["W1"]  # (2)
        hidden = F.gelu(F.layer_norm(hidden, hidden.shape[1:], p["norm.weight"], p["norm.bias"]))
        z = (q + hidden @ p["W2"]) @ p["W_down"]  # (3)
        weights = [entmax(cosines(z, keys)) for keys, _, _ in self.sets()]  # (5)
        prompts = zip(weights, self.sets(), strict=True)
        p_out = torch.stack([scale * (w @ values) for w, (_, values, scale) in prompts]).sum(0)
        return q + p_out @ p["W_up"], weights, torch.stack(attentions).mean(0)  # (6), (7)

    def features(self, images: Tensor) -> tuple[Tensor, list[Any]]:
        """f `[B, D]`, and of every layer the query, the weights and the attention."""
        tokens = self.vit._pos_embed(self.vit.patch_embed(images))
        g, layers = tokens[:, 0] if self.literal else tokens[:, 1:].mean(1), []
        for block in self.vit.blocks:
            cls, weights, attention = self.layer(tokens[:, 0], g)
            layers.append((tokens[:, 0].detach(), weights, attention.detach()))
            tokens = block(torch.cat([cls[:, None], tokens[:, 1:]], 1))
        return tokens[:, 0] if self.literal else self.vit.norm(tokens[:, 0]), layers

    def head(self, f: Tensor) -> Tensor:
        return f @ self.p["head.weight"].T + self.p["head.bias"]

    def losses(self, images: Tensor, labels: Tensor, draw: Any) -> tuple[dict[str, Tensor], Any]:
        f, layers = self.features(images)
        values, others = self.p["values"], 1 - torch.eye(len(self.p["values"]))
        losses, div = {"ce": F.cross_entropy(self.head(f), labels)}, []
        for _, weights, _ in layers:
            u = weights[-1].mean(0)
            both = u[:, None] * u * others
            div.append((both * cosines(values, values).abs()).sum() / both.sum())
        losses["div"] = torch.stack(div).mean()  # (8)
        if self.stage > 1:
            losses["norm"] = values.norm(dim=1).mean() * bool(self.frozen or self.literal)  # (9)
            for name, x in {"real": f, "pseudo": self.sample(len(labels), draw)}.items():
                losses[name] = distillation(x @ self.teacher[0].T + self.teacher[1], self.head(x))
        return losses, layers

    def sample(self, count: int, draw: torch.Generator) -> Tensor:
        """(13)"""
        seen = sorted(self.n)
        chosen = torch.multinomial(torch.ones(len(seen)), count, True, generator=draw).tolist()
        noise = torch.randn(count, len(self.mu[seen[0]]), generator=draw)
        std = {c: (self.Q[c] / max(self.n[c] - 1, 1)).sqrt() for c in seen}
        rows = [self.mu[seen[k]] + e * std[seen[k]] for k, e in zip(chosen, noise, strict=True)]
        return torch.stack(rows)

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        values = torch.stack(list(losses.values()))
        return (
            values.sum() if self.stage == 1 else ((-self.p["s"]).exp() * values + self.p["s"]).sum()
        )

    def write(self, layers: list[Any]) -> None:
        """Move each slot towards the mean query that attends to it."""
        for slot in range(len(self.m["keys"])):
            targets = []
            for query, _, attention in layers[1:]:
                share, normal = attention[:, slot, None], self.normal(query)
                if share.mean() > 1e-4:
                    targets.append((share * normal).sum(0) / share.sum())
            for part in self.m.values() if targets else ():
                part[slot] = 0.99 * part[slot] + 0.01 * torch.stack(targets).mean(0)

    def observe(self, batches: Batches, statistics: bool = False) -> list[float]:
        """D_t of every layer and group of images, which join the window."""
        waiting: list[list[Any]] = [[] for _ in self.vit.blocks]
        self.window, scores = self.window or [[] for _ in self.vit.blocks], []
        for images, labels in batches:
            f, layers = self.features(images)
            for row, c in zip(f, labels.tolist(), strict=True) if statistics else ():
                self.n[c] = self.n.get(c, 0) + 1  # (10)
                delta = row - self.mu.get(c, 0)
                self.mu[c] = self.mu.get(c, 0) + delta / self.n[c]
                self.Q[c] = self.Q.get(c, 0) + delta * (row - self.mu[c])  # (11)
            for number, (_, weights, _) in enumerate(layers):
                waiting[number] += list(torch.cat(weights, 1))
                size = len(labels) if self.literal else self.group
                while len(waiting[number]) >= size:
                    usage = torch.stack(waiting[number][:size]).mean(0)
                    del waiting[number][:size]
                    scores.append(self.score(self.window[number], usage, len(weights)))
        return scores

    def score(self, window: list[tuple[float, set[int]]], usage: Tensor, sets: int) -> float:
        w = usage / sets  # (16)
        H, S = (
            -float((w * (w + 1e-10).log()).sum()),
            set(((w if self.literal else usage) > self.tau_s).nonzero().flatten().tolist()),
        )
        past, D = window[-99:], 0.0
        if past:
            before = set[int]().union(*(s for _, s in past))
            iou = len(S & before) / len(S | before) if S | before else 1.0  # (17)
            h = torch.tensor([h for h, _ in past])
            if len(past) >= (1 if self.literal else 10):
                std = max(
                    float(h.std(correction=0)), 0 if self.literal else 1e-5 * math.log(len(w))
                )
                D = abs(H - float(h.mean())) / (std + 1e-10)
            D += 0.5 * (1 / max(iou, 0.1) - 1)  # (18)
        window.append((H, S))
        return D

    def begin_stage(self, batches: Batches, new: Callable[[int], tuple[Tensor, Tensor]]) -> float:
        """D̄ of a new domain; the pool grows by it."""
        self.stage += 1
        self.p["s"].data.zero_()
        if self.stage == 1:
            return 0.0
        D = float(torch.tensor(self.observe(batches)).mean())  # (19)
        threshold = 0.7 if self.literal else 0.0
        if threshold <= D:
            E = min(max(math.floor(len(self.p["keys"]) * D / 5.0), self.min_growth), 80)  # (20)
            scale = 0.1 if self.frozen and not self.literal else 1.0
            self.frozen.append((self.p["keys"].detach(), scale * self.p["values"].detach()))
            self.p["keys"], self.p["values"] = (rows.requires_grad_() for rows in new(E))
        return D

    def end_stage(self, batches: Batches) -> None:
        self.window = []
        self.observe(batches, statistics=True)
        self.teacher = self.p["head.weight"].detach().clone(), self.p["head.bias"].detach().clone()
