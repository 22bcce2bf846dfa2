"""Train the embedded micro ViT on painted glyphs: `python -m tools.train_micro --device cuda`.

Writes the weights without the heads as `micro.safetensors`, in half precision, and their
description as `micro.json`. Needs torch, timm and matplotlib's fonts, but not the package itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from tools.glyphs import CLASSES, STYLES, Painter, build_bank

ARCHITECTURE: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 128,
    "depth": 6,
    "num_heads": 4,
    "mlp_ratio": 4,
    "num_classes": 0,
    "class_token": True,
    "global_pool": "token",
}
PEAK_RATE = 1.5e-3
WARMUP = 0.05  # of all steps
WEIGHT_DECAY = 0.05
SMOOTHING = 0.1
STYLE_WEIGHT = 0.3


class Pretraining(nn.Module):
    """The ViT with two heads that only pretraining needs.

    `glyph` classifies what is drawn. `style` predicts the style (colours, grain, coarse pixels):
    features without the style could not tell domains apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.vit = VisionTransformer(**ARCHITECTURE)
        self.glyph = nn.Linear(ARCHITECTURE["embed_dim"], len(CLASSES))
        self.style = nn.Linear(ARCHITECTURE["embed_dim"], STYLES)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images `[B, 3, 32, 32]` -> glyph logits `[B, C]` and style `[B, 8]`."""
        cls = self.vit(images)
        return self.glyph(cls), self.style(cls)


def rate(step: int, steps: int) -> float:
    """Learning rate relative to its peak: linear warm-up, then a cosine to zero."""
    warmup = max(1, int(WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def train(model: Pretraining, painter: Painter, steps: int, batch: int) -> None:
    device = painter.device
    decayed = [p for p in model.parameters() if p.ndim > 1]
    free = [p for p in model.parameters() if p.ndim <= 1]  # norms and biases
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": free, "weight_decay": 0.0}],
        lr=PEAK_RATE,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    start = time.monotonic()
    for step in range(1, steps + 1):
        images, classes, styles = painter.batch(batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits, style = model(images)
            loss = F.cross_entropy(logits, classes, label_smoothing=SMOOTHING)
            loss = loss + STYLE_WEIGHT * F.mse_loss(style, styles)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps:
            right = (logits.argmax(1) == classes).float().mean().item()
            seconds = time.monotonic() - start
            print(
                f"step {step}  loss {loss.item():.3f}  right {right:.3f}  {seconds:.0f} s",
                flush=True,
            )


@torch.no_grad()
def accuracy(model: Pretraining, painter: Painter, batches: int) -> float:
    right = torch.stack(
        [
            (model(images)[0].argmax(1) == classes).float().mean()
            for images, classes, _ in (painter.batch(512) for _ in range(batches))
        ]
    )
    return right.mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8500)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("src/sodap/backbones"))
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    model = Pretraining().to(options.device)
    bank = build_bank()

    def painter(*, held_out: bool) -> Painter:
        generator = torch.Generator(options.device).manual_seed(options.seed)
        return Painter(bank, held_out=held_out, generator=generator)

    train(model, painter(held_out=False), options.steps, options.batch)

    model.eval()
    weights = {name: value.cpu().half() for name, value in model.vit.state_dict().items()}
    model.vit.load_state_dict(weights)  # validate what is stored, rounded to half precision
    validation = accuracy(model, painter(held_out=True), batches=20)
    print(f"validation accuracy {validation:.4f}")

    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "micro.safetensors"
    save_file({name: value.contiguous() for name, value in weights.items()}, str(file))
    card = {
        "architecture": ARCHITECTURE,
        "image_size": ARCHITECTURE["img_size"],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "licence": "Apache-2.0",
        "training": {
            "command": (
                f"python -m tools.train_micro --steps {options.steps} --batch {options.batch} "
                f"--seed {options.seed} --device {options.device}"
            ),
            "seed": options.seed,
            "steps": options.steps,
            "batch": options.batch,
            "data": (
                f"{len(CLASSES)} classes of letters, symbols and line drawings without any digit, "
                "from the fonts that come with matplotlib, painted anew for every batch"
            ),
            "validation": "the same classes in four fonts and two pens that were never trained on",
            "validation_accuracy": round(validation, 4),
        },
    }
    text = json.dumps(card, indent=2, ensure_ascii=False)
    (options.out / "micro.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
