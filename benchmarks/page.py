"""Write docs/performance.md from the records: `python -m benchmarks.page`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from benchmarks import profile
from benchmarks.figures import reached

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "records"
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "img"

INTRODUCTION = """\
# Performance

Written by `python -m benchmarks.page` from `benchmarks/records/`. Every ratio was measured within
one run on one machine, but for those to published rates (`vs_...`); absolute rates hold for that
machine only. Tables name the commit that they were measured at.

The limit of any prompt method on a frozen ViT is one forward pass and one backward pass through
the activations, with one trainable vector on CLS before every block (`benchmarks/limit.py`). It
runs through the same loop, recorded and compiled in the same way. What a method takes beyond it
is its own. The limit is timm's ViT, whole and as timm runs it, its embedding and its blocks
compiled. The sharp limit goes the shorter way that all methods here go through the same ViT
(patches, additions, the last block: see below); so a ratio to the plain limit may exceed 1, and
the ratio to the sharp one says what the prompts themselves cost.

## How a step is kept short

- **CUDA graphs.** Augmentation, losses, gradients and the optimiser's update are captured as one
  CUDA graph and replayed (`sodap.execution.TrainStep`): one graph for full batches, one for the
  last batch of an epoch. So are predictions (`sodap.execution.Forward`) and the passes over a
  domain before and after a stage, whose last batches are padded. Tests on a GPU check that all
  methods learn the same without them (`cuda_graphs=false`).
- **No wait.** Losses, loss weights, drift and metrics stay on the device until an epoch ends, and
  the host waits once an epoch, for the answers to the validation images. Work is recorded while
  the GPU goes on with what it was given before. A domain that takes less than a quarter of the
  GPU's free memory is copied there once, the test images of all domains if they take less than a
  tenth (`sodap.streams.batches.to_gpu_if_fits`).
- **One shape.** The pool has a fixed capacity and routing one shape, whatever the number of
  stages (`sodap.prompting.fast.segments.Segments`). A new stage compiles nothing.
- **Products computed once a pass.** Memory, context, prompts and projections are multiplied out
  before the first layer (`sodap.prompting.fast.folding.FoldedWeights`): five small products a layer
  remain of thirteen.
- **One gradient for all layers.** The layers share their weights. A layer of the prompter is one
  autograd function with its own backward pass (`sodap.prompting.fast.layers.FusedLayers`); it
  saves what the gradients follow from, and one product over the rows of all layers gives each of
  them. Tests compare values and gradients with the plain form.
- **The last block computes the CLS row alone** (`sodap.backbones.PortedViT.tokens`): nobody reads
  the others. The same value and gradients, in another order of sums.
- **Patches by a product** on a GPU (`sodap.backbones.patches`): as a convolution, which timm has,
  they take several times as long there.
- **Additions that wait.** A block hands on what its MLP adds, and the next block adds it
  (`sodap.backbones.block.through`). Compiled, that is one way less through memory a block.
- **TF32 where the network is in bf16** (`sodap.execution.Runtime.tf32`): the prompter's
  products stay in float32 and may be rounded to 10 bits, which is finer than what they are fed
  with. Runs in fp32 are not rounded.
- **Frozen weights in bf16**, once, instead of a cast at every step; bit for bit what autocast
  computes.
- **1.5-entmax as one kernel** a direction on a GPU, by Newton steps elsewhere. Recorded, it is an
  order of magnitude faster than the public package. Launched one by one it is four times as fast:
  there, Python takes longer to call it and to come back through autograd than the GPU takes to
  compute it, so a kernel that has run before is launched without asking Triton
  (`sodap.prompting.fast.entmax_triton`).
- `compile=true` fuses each whole block and each visit with torch.compile; the blocks share one
  program. It takes half a minute to start. Only full batches are compiled
  (`sodap.execution.eager`): every other shape would take longer to compile than to compute. Nor
  does cuDNN plan its attention for them, as it does for every new size of a batch.
- **Files are written while the run goes on** (`sodap.runs.writer.Writer`): checkpoints, the
  log, the record, evidence, and the model of each stage.
- **Freed memory stays with the process** on a CPU (`sodap.allocator.keep_freed_memory`).
- **Waiting threads** spin only briefly, or not at all on a busy machine
  (`sodap.threads.configure_threads`).
- `backprop=cls_row`, an option of `residual-sodap`, goes back along the CLS row only
  (`sodap.backbones.PortedViT.along_cls`). Losses are the same (with timm's fused attention, to the
  last bit); that patches have seen earlier prompts is left out of the gradient. Of the activations,
  one row in 197 and a small matrix a head are kept, and the backward pass costs next to nothing. It
  is not the default, because it is another gradient: [methods](methods.md) has its effect.
"""

WAITING = {
    "mapped": "from the mapped cache, collected while the step before is computed",
    "on the GPU": "in the GPU's memory, where domains live that fit",
    "random views": "their random views, wherever they lie",
}

WATCHED = """\
The step was timed unwatched; the kinds are of a step that was watched, which takes longer where
Python launches every kernel."""


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


def profiles() -> list[str]:
    """Before and after, as pictures and in milliseconds a kind."""
    lines: list[str] = []
    for name, where in (("profile-gpu", "GPU"), ("profile-cpu", "processor")):
        record = load(name)
        if record is None:
            continue
        title = f"One training step on a {where}"
        made = f"`python -m benchmarks.profile`, {record['backbone']}, batch {record['batch']}"
        lines += ["", f"## {title}", "", f"{made}; {machine(record)}"]
        lines += ["", f"![{title}, by kind of work](img/{name}.svg)", ""]
        lines += ["| milliseconds | a step | " + " | ".join(profile.KINDS) + " |"]
        lines += ["|---" * (2 + len(profile.KINDS)) + "|"]
        for step, found in record["steps"].items():
            sums = " | ".join(f"{found['sums'][kind]:.2f}" for kind in profile.KINDS)
            lines.append(f"| {step} | {found['milliseconds']:.2f} | {sums} |")
        lines += ["", WATCHED]
    return lines


def missing() -> str:
    """What is not here yet, in one sentence."""
    things = [
        "one kernel for a whole visit",
        "features of frozen networks shared between runs",
    ]
    if load("paper-sized") is None:
        things.append("measured runs of the paper's full sizes")
    return textwrap.fill(f"What is not here yet: {', '.join(things)}.", 100) + "\n"


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
    lines += [
        "",
        "The share of a training step (DeiT-Tiny, 64 images, a GPU) that goes to its images:",
    ]
    lines += ["", "| images | share |", "|---|---|"]
    for home, share in (load("data-gpu") or {"waiting": {}})["waiting"].items():
        lines.append(f"| {WAITING[home]} | {share:.1%} |")
    return lines


def page() -> str:
    lines = [
        *section("On a GPU, ViT-B/16", "python -m benchmarks.gpu", "gpu"),
        *section("On two cores", "make bench", "cpu"),
        *section("A table of methods", "sodap bench table1", "table1"),
        *section("Two tables and their search", "sodap bench table1", "table1-search"),
        *section("Runs of the paper's sizes", "python -m benchmarks.paper_sized", "paper-sized"),
        *section(
            "The shortest of them again",
            "python -m benchmarks.paper_sized skin skin skin",
            "paper-sized-skin",
        ),
        *profiles(),
        *data(),
    ]
    return INTRODUCTION + "\n" + missing() + "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page(), "utf-8")
    for name in ("profile-gpu", "profile-cpu"):
        record = load(name)
        if record is not None:
            profile.draw(record, PICTURES / f"{name}.svg")


if __name__ == "__main__":
    main()
