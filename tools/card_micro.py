"""Measure the embedded backbone: `python -m tools.card_micro [--deit FILE]`.

Fits one ridge regression per domain of the `digits` stream to frozen features, and tests it on all
four domains: for the micro ViT, for the same architecture with random weights, and for DeiT-Tiny if
its weights are given. Writes `docs/micro-vit.json` and the tables of `docs/micro-vit.md`.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sodap.backbones import FrozenViT, build_backbone
from sodap.streams import Split, Stream, load_stream

NUMBERS, CARD = Path("docs/micro-vit.json"), Path("docs/micro-vit.md")
RANDOM_SEEDS = (0, 1, 2)
PENALTIES = [10.0**power for power in range(-2, 5)]

Features = list[dict[str, Tensor]]
"""Features `[N, D]` in double precision, per domain and split."""


@torch.no_grad()
def features(backbone: FrozenViT, stream: Stream) -> Features:
    def encode(split: Split) -> Tensor:
        chunks = split.images.chunk(max(1, len(split) // 100))
        return torch.cat([backbone(backbone.prepare(chunk)) for chunk in chunks]).double()

    return [{name: encode(split) for name, split in domain.splits()} for domain in stream.domains]


def ridge(x: Tensor, labels: Tensor, classes: int, penalty: float) -> Tensor:
    """Weights `[D + 1, C]` of a regression from `x` `[N, D]` to one-hot labels, bias last."""
    x = _with_one(x)
    penalties = penalty * torch.eye(x.shape[1]).double()
    penalties[-1, -1] = 0
    targets = torch.eye(classes).double()[labels]
    weights: Tensor = torch.linalg.solve(x.T @ x + penalties, x.T @ targets)
    return weights


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1).double()], dim=1)


def right(weights: Tensor, x: Tensor, labels: Tensor) -> float:
    return ((_with_one(x) @ weights).argmax(1) == labels).double().mean().item()


def transfer(stream: Stream, encoded: Features) -> list[list[float]]:
    """Test accuracy in per cent, `[learned on, tested on]`; the penalty is chosen on val."""
    table = []
    for domain, own in zip(stream.domains, encoded, strict=True):
        fits = [ridge(own["train"], domain.train.labels, 10, penalty) for penalty in PENALTIES]
        best = max(fits, key=lambda fit: right(fit, own["val"], domain.val.labels))
        table.append(
            [
                100 * right(best, there["test"], other.test.labels)
                for other, there in zip(stream.domains, encoded, strict=True)
            ]
        )
    return table


def domain_telling(encoded: Features) -> float:
    """Test accuracy in per cent of telling the four domains apart."""

    def pooled(split: str) -> tuple[Tensor, Tensor]:
        labels = [torch.full((len(own[split]),), index) for index, own in enumerate(encoded)]
        return torch.cat([own[split] for own in encoded]), torch.cat(labels)

    fits = [ridge(*pooled("train"), len(encoded), penalty) for penalty in PENALTIES]
    best = max(fits, key=lambda fit: right(fit, *pooled("val")))
    return 100 * right(best, *pooled("test"))


def measure(backbones: list[FrozenViT], stream: Stream) -> dict[str, Any]:
    """Means over the backbones (one, or several random ones), and deviations if several."""
    encoded = [features(backbone, stream) for backbone in backbones]
    tables = torch.tensor([transfer(stream, each) for each in encoded])
    telling = torch.tensor([domain_telling(each) for each in encoded])
    return {
        "runs": len(backbones),
        "accuracy": _rounded(tables.mean(0)),
        "deviation": _rounded(tables.std(0)) if len(backbones) > 1 else None,
        "domain_accuracy": _rounded(telling.mean()),
    }


def _rounded(values: Tensor) -> Any:
    return (values.double() * 10).round().div(10).tolist()


def tables(numbers: dict[str, Any]) -> str:
    """The two Markdown tables of the card."""
    names: list[str] = numbers["domains"]
    lines = [
        f"| learned and tested on | {' | '.join(names)} | domain told |",
        "| --- " * (len(names) + 2) + "|",
    ]
    for backbone, result in numbers["backbones"].items():
        own = [f"{result['accuracy'][i][i]:.1f}" for i in range(len(names))]
        if result["deviation"] is not None:
            own = [f"{mean} ± {result['deviation'][i][i]:.1f}" for i, mean in enumerate(own)]
        lines.append(f"| {backbone} | {' | '.join(own)} | {result['domain_accuracy']:.1f} |")
    lines += [
        "",
        f"| micro, learned on ↓ and tested on → | {' | '.join(names)} |",
        "| --- " * (len(names) + 1) + "|",
    ]
    for name, row in zip(names, numbers["backbones"]["micro"]["accuracy"], strict=True):
        lines.append(f"| {name} | {' | '.join(f'{value:.1f}' for value in row)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deit", type=Path, help="weights of deit_tiny_patch16_224")
    options = parser.parse_args()
    stream = load_stream("digits")
    backbones = {
        "micro": [build_backbone("micro")],
        "random micro": [build_backbone("micro", "random", seed=seed) for seed in RANDOM_SEEDS],
    }
    if options.deit is not None:
        backbones["DeiT-Tiny"] = [build_backbone("deit_tiny", str(options.deit))]
    numbers = {
        "stream": stream.name,
        "domains": [domain.name for domain in stream.domains],
        "probe": "ridge regression on the CLS feature, penalty chosen on val, accuracy on test, %",
        "backbones": {name: measure(group, stream) for name, group in backbones.items()},
    }
    NUMBERS.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    between = re.compile(r"(?<=<!-- tables -->\n).*?(?=\n<!-- end -->)", re.DOTALL)
    card = between.sub(lambda _: tables(numbers), CARD.read_text(encoding="utf-8"))
    CARD.write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
