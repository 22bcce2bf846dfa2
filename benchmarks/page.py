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

This page is written by `python -m benchmarks.page` from the files in `benchmarks/records/`. Except
for ratios to published rates (`vs_...`), every ratio compares two measurements of one run on one
machine. Absolute rates hold for that machine only. Each table names the commit it was measured at.

A prompt method on a frozen ViT needs at least one forward pass, and one backward pass through the
activations. `benchmarks/limit.py` is a method that does only this, with one trainable vector that
is added to CLS before every block. It uses the same training loop, CUDA graphs and compilation, so
the difference to it is the cost of a method's own work. There are two limits. The plain one runs
timm's ViT as timm does, with compiled embedding and blocks. The sharp one uses the shortcuts
through the ViT that all methods here use (patches, sums, last block; see below). A ratio to the
plain limit may therefore exceed 1; the ratio to the sharp limit is the cost of the prompts.

## How a step is made fast

- **CUDA graphs.** Augmentation, losses, gradients and the optimiser's update are captured as one
  CUDA graph and replayed (`sodap.execution.TrainStep`): one graph for full batches, one for the
  last batch of an epoch. So are predictions (`sodap.execution.Forward`) and the passes over a
  domain before and after a stage, whose last batches are padded. Tests on a GPU check that all
  methods learn the same without them (`cuda_graphs=false`).
- **No synchronisation.** Losses, loss weights, drift and metrics stay on the device until an epoch
  ends. The host waits once per epoch, for the predictions on the validation images. Graphs are
  captured while the GPU executes earlier work. A domain is copied to the GPU once if it fits into a
  quarter of the free memory, and so are all test images if they fit into a tenth
  (`sodap.streams.batches.to_gpu_if_fits`).
- **Fixed shapes.** The pool has a fixed capacity, and routing has the same shapes in every stage
  (`sodap.prompting.fast.segments.Segments`), so a new stage compiles nothing.
- **Products computed once per pass.** Memory, context, prompts and projections are multiplied out
  before the first layer (`sodap.prompting.fast.folding.FoldedWeights`). Of thirteen small products
  per layer, five remain.
- **One gradient for all layers.** The layers share their weights. A layer of the prompter is one
  autograd function with its own backward pass (`sodap.prompting.fast.layers.FusedLayers`). It
  saves the inputs of the weights' gradients, and one product over the rows of all layers gives
  each of them. Tests compare values and gradients with the plain form.
- **CLS only in the last block** (`sodap.backbones.PortedViT.tokens`), because no other token is
  read. Values and gradients are the same; only the order of sums differs.
- **Patch embedding as a matrix product** on a GPU (`sodap.backbones.patches`). timm's convolution
  takes several times as long there.
- **Delayed sums.** A block leaves the sum with its MLP's output to the next block
  (`sodap.backbones.block.block_without_last_sum`). When compiled, this saves one pass over memory
  per block.
- **TF32 where the network runs in bf16** (`sodap.execution.Runtime.tf32`). The prompter's products
  are in float32 and may be rounded to 10 bits, which is finer than their bf16 inputs. Nothing is
  rounded with `precision=fp32`.
- **Frozen weights in bf16.** They are converted once instead of in every step. Results are those
  of autocast to the bit.
- **1.5-entmax as one kernel** per direction on a GPU, and by Newton's method on a CPU. In a CUDA
  graph it is an order of magnitude faster than the public package, without one four times. In that
  case most of the time is Python's and autograd's, so a kernel that has run before is launched
  without Triton's checks (`sodap.prompting.fast.entmax_triton`).
- **torch.compile** with `compile=true`: each block and each layer of the prompter is compiled, and
  all blocks share one compiled function. It takes half a minute to start. Only full batches are
  compiled (`sodap.execution.eager`), because other shapes would take longer to compile than to
  compute. cuDNN attention, which plans for every batch size, is switched off for them as well.
- **Files are written in a thread** while training goes on (`sodap.runs.writer.Writer`):
  checkpoints, log, record, evidence, and the model of each stage.
- **Freed memory stays with the process** on a CPU (`sodap.allocator.keep_freed_memory`).
- **Waiting threads** spin only briefly, or not at all on a busy machine
  (`sodap.threads.configure_threads`).
- **`backprop=cls_row`**, an option of `residual-sodap`, passes gradients along the CLS token only
  (`sodap.backbones.PortedViT.along_cls`). Losses are the same (with timm's fused attention, to the
  bit), but the gradient leaves out that patches attend to earlier prompts. Of the activations, one
  row in 197 and a small matrix per head are stored, and the backward pass costs almost nothing. It
  is not the default, because it is another gradient; [methods](methods.md) shows its effect.
"""

WAITING = {
    "mapped": "from the memory-mapped cache, read during the step before",
    "on the GPU": "in the GPU's memory, where domains are kept that fit",
    "random views": "random augmentation, in either case",
}

WATCHED = """\
The duration of a step was measured without the profiler. The kinds of work are from a profiled
step, which takes longer where Python launches every kernel."""


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
    """Pictures and tables of the time of a step by kind of work."""
    lines: list[str] = []
    for name, where in (("profile-gpu", "GPU"), ("profile-cpu", "CPU")):
        record = load(name)
        if record is None:
            continue
        title = f"One training step on a {where}"
        made = f"`python -m benchmarks.profile`, {record['backbone']}, batch {record['batch']}"
        lines += ["", f"## {title}", "", f"{made}; {machine(record)}"]
        lines += ["", f"![{title}, by kind of work](img/{name}.svg)", ""]
        lines += ["| milliseconds | step | " + " | ".join(profile.KINDS) + " |"]
        lines += ["|---" * (2 + len(profile.KINDS)) + "|"]
        for step, found in record["steps"].items():
            sums = " | ".join(f"{found['sums'][kind]:.2f}" for kind in profile.KINDS)
            lines.append(f"| {step} | {found['milliseconds']:.2f} | {sums} |")
        lines += ["", WATCHED]
    return lines


def missing() -> str:
    """One sentence about what has not been done or measured."""
    things = [
        "one kernel for a whole layer of the prompter",
        "features of frozen networks shared between runs",
    ]
    if load("paper-sized") is None:
        things.append("measured runs of the paper's full sizes")
    return textwrap.fill(f"Not done yet: {', '.join(things)}.", 100) + "\n"


def data() -> list[str]:
    lines = ["", "## Images", "", "From the second epoch on, against a torchvision DataLoader that"]
    lines += ["decodes every file in every epoch (`python -m benchmarks.data`)."]
    lines += [
        "",
        "| machine | files | augmentation | images/s | ratio to the DataLoader |",
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
        "Share of a training step (DeiT-Tiny, 64 images, on a GPU) that is spent on its images:",
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
