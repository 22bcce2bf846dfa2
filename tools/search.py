"""Compare settings on validation images alone: the test split of every domain stays unseen.

    python -m tools.search --stream digits --seeds 3 --jobs 2 --out search.json VARIANT...

A variant is a recipe and its changes in one word: `default`, `default,context=cls,lr=3e-3`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np


def validation_twin(name: str) -> Any:
    """The stream with its validation images in the place of its test images."""
    from sodap.streams import load_stream

    stream = load_stream(name)
    return replace(stream, domains=tuple(replace(d, test=d.val) for d in stream.domains))


def one(variant: str, stream: str, seed: int, threads: int) -> dict[str, Any]:
    import torch

    from sodap.runs import load_config, run

    torch.set_num_threads(threads)
    recipe, *changes = variant.split(",")
    config = load_config(recipe, [*changes, f"stream={stream}", f"seed={seed}"])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        record = run(config, Path(folder) / "run", stream=validation_twin(stream))
    row = {
        "variant": variant,
        "seed": seed,
        **record["metrics"]["accuracy"],
        "R": record["R"]["accuracy"],
        "epochs": [stage["epochs"] for stage in record["stages"]],
        "pool": [stage["ended"].get("pool") for stage in record["stages"]],
        "drift": [stage["begun"].get("drift", {}).get("score") for stage in record["stages"]],
        "seconds": time.perf_counter() - began,
    }
    print(json.dumps(row), flush=True)
    return row | {"environment": record["environment"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--stream", default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        waiting = [
            pool.submit(one, variant, given.stream, seed, given.threads)
            for seed in range(given.seeds)
            for variant in given.variants
        ]
        rows = [job.result() for job in waiting]
    environment = rows[0]["environment"]
    for row in rows:
        row.pop("environment")
    record = {"command": sys.argv, "split": "validation", "environment": environment, "runs": rows}
    given.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    for variant in given.variants:
        mine = [row for row in rows if row["variant"] == variant]
        names = ("average_accuracy", "average_forgetting", "final_average")
        values = [[row[name] for row in mine] for name in names]
        cells = [f"{np.mean(v):.3f}±{np.std(v, ddof=1) if len(v) > 1 else 0:.3f}" for v in values]
        print(f"{variant:60s} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
