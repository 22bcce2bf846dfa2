"""Write docs/performance.md from the records: `python -m benchmarks.page`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.figures import reached

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "records"
PAGE = ROOT / "docs" / "performance.md"

INTRODUCTION = """\
# Performance

Written by `python -m benchmarks.page` from `benchmarks/records/`. Every ratio was measured within
one run on one machine; absolute rates hold for that machine only.

The limit of any prompt method on a frozen ViT is one forward pass and one backward pass through
the activations, with one trainable vector on CLS before every block (`benchmarks/limit.py`). It
runs through the same loop, recorded and compiled in the same way. What a method takes beyond it
is its own.

## How a step is kept short

- **One recording a stage.** Views, losses, gradients and the optimiser's move are recorded as one
  CUDA graph and replayed (`sodap.learning.step.Step`); predictions as well
  (`sodap.learning.forward.Forward`). Tests on a GPU hold that all methods learn the same with and
  without. `record_steps=false` learns
  without.
- **No wait.** Losses, loss weights, drift and metrics stay on the device until an epoch ends. A
  domain that takes less than a quarter of the GPU's free memory is copied there once
  (`sodap.streams.batches.at_hand`).
- **One shape.** The pool has a fixed capacity and routing one shape, whatever the number of
  stages (`sodap.prompting.segments.Segments`). A new stage compiles nothing.
- **Products formed once a pass.** Memory, context, prompts and projections are multiplied out
  before the first layer (`sodap.prompting.adapter.Way`): six small products a layer remain of
  thirteen.
- **Frozen weights in bf16**, once, instead of a cast at every step; bit for bit what autocast
  computes.
- **1.5-entmax as one kernel** a direction on a GPU, by Newton steps elsewhere.
- `compile=true` fuses each block with torch.compile; the blocks share one program. It takes some
  twenty seconds to start.

What is not here yet: a fused kernel for the rest of the router, backpropagation along the CLS row
only, features of frozen networks shared between runs, measured runs of the paper's full sizes.
"""


def load(name: str) -> dict[str, Any] | None:
    path = RECORDS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def machine(record: dict[str, Any]) -> str:
    where = record["machine"]
    torch = where["packages"]["torch"]
    return f"{where['gpu'] or where['processor']}, torch {torch}, commit {where['commit'][:7]}."


def figures(record: dict[str, Any]) -> list[str]:
    lines = ["| figure | value | target |", "|---|---|---|"]
    for name, value in record["figures"].items():
        target = record["targets"].get(name, "")
        if target:
            sign, bound = target.split()
            verdict = "reached" if reached(value, float(bound), sign) else "**missed**"
            target = f"{sign} {bound}: {verdict}"
        lines.append(f"| `{name}` | {value:,.3f} | {target} |")
    return lines


def section(title: str, command: str, name: str) -> list[str]:
    record = load(name)
    if record is None:
        return []
    lines = ["", f"## {title}", "", f"`{command}`; {machine(record)}"]
    if "note" in record:
        lines += ["", record["note"]]
    return [*lines, "", *figures(record)]


def data() -> list[str]:
    lines = ["", "## Images", "", "From the second epoch on, against a torchvision DataLoader that"]
    lines += ["decodes every file anew (`python -m benchmarks.data`)."]
    lines += [
        "",
        "| where | files | views | images/s | against the DataLoader |",
        "|---|---|---|---|---|",
    ]
    for name in ("data-cpu", "data-cpu-2048", "data-gpu"):
        record = load(name)
        if record is None:
            continue
        where = record["machine"]["gpu"] or record["machine"]["processor"]
        for views, ratio in record["ratios"].items():
            rate = record["images_per_second"][f"cache, {views}"]
            lines.append(
                f"| {where} | {record['side']} px | {views} | {rate:,.0f} | {ratio:.0f} x |"
            )
    return lines


def page() -> str:
    lines = [
        *section("On a GPU, ViT-B/16", "python -m benchmarks.gpu", "gpu"),
        *section("On two cores", "make bench", "cpu"),
        *section("1.5-entmax on a GPU", "python -m benchmarks.entmax --device cuda", "entmax-gpu"),
        *data(),
    ]
    return INTRODUCTION + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
