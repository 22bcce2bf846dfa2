"""Keep runs as results, and write the tables of docs/results.md from what was kept.

python -m tools.results keep sodap-demo/*/record.json    # into results/STREAM/METHOD-sSEED.json
python -m tools.results write                            # docs/results.md from results/
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from sodap.evaluation import summary

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "results.md"

METRICS = {
    "average_accuracy": "AvgACC",
    "average_forgetting": "AvgF",
    "final_average": "final",
    "backward_transfer": "BWT",
}


def kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record makes it a result: where it comes from, and what was measured."""
    if record["status"] != "finished":
        raise SystemExit(f"a run that is {record['status']} is no result")
    command = [Path(record["command"][0]).name, *record["command"][1:]]
    return {
        "command": command,
        "config": record["config"],
        "environment": record["environment"],
        "backbone": {k: record["backbone"][k] for k in ("name", "image_size", "sha256")},
        "stream": record["stream"],
        "R": {name: record["R"][name] for name in ("accuracy", "macro_f1")},
        "stages": [
            {
                "domain": stage["domain"],
                "epochs": stage["epochs"],
                "pool": stage["ended"].get("pool"),
                "drift": stage["begun"].get("drift", {}).get("score"),
                "seconds": round(stage["seconds"], 1),
                "trainable_parameters": stage["trainable_parameters"],
                "stored_bytes": sum(asset["bytes"] for asset in stage["stored"]),
            }
            for stage in record["stages"]
        ],
    }


def keep(paths: Iterable[str]) -> None:
    for path in paths:
        result = kept(json.loads(Path(path).read_text("utf-8")))
        config = result["config"]
        file = RESULTS / config["stream"] / f"{config['method']}-s{config['seed']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        print(file.relative_to(ROOT))


def measured() -> list[Path]:
    """The files that hold a run's result; those of a search hold comparisons of settings."""
    return sorted(file for file in RESULTS.glob("*/*.json") if file.parent.name != "search")


def load() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Stream -> method -> results in the order of their seeds."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for file in measured():
        result = json.loads(file.read_text("utf-8"))
        config = result["config"]
        found.setdefault(config["stream"], {}).setdefault(config["method"], []).append(result)
    for methods in found.values():
        for results in methods.values():
            results.sort(key=lambda result: result["config"]["seed"])
    return found


def values(results: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [float(summary(result["R"]["accuracy"])[metric] or 0.0) for result in results]


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Mean and the half width of its 95 % interval (Student's t over seeds)."""
    spread = float(np.std(numbers, ddof=1)) / len(numbers) ** 0.5
    return float(np.mean(numbers)), float(stats.t.ppf(0.975, len(numbers) - 1)) * spread


def table(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    lines = [
        f"| method | seeds | {' | '.join(METRICS.values())} | macro-F1 (final) |",
        f"|---|---|{'---|' * (len(METRICS) + 1)}",
    ]
    for method, results in methods.items():
        cells = []
        for metric in METRICS:
            numbers = values(results, metric)
            cells.append(f"{np.mean(numbers):.3f} ± {np.std(numbers, ddof=1):.3f}")
        final = [float(np.mean(result["R"]["macro_f1"][-1])) for result in results]
        cells.append(f"{np.mean(final):.3f} ± {np.std(final, ddof=1):.3f}")
        lines.append(f"| `{method}` | {len(results)} | {' | '.join(cells)} |")
    return lines


def differences(methods: Mapping[str, Sequence[Mapping[str, Any]]], first: str) -> list[str]:
    """`first` minus every other method, paired by seed."""
    lines = [
        f"| `{first}` minus | {' | '.join(METRICS.values())} |",
        f"|---|{'---|' * len(METRICS)}",
    ]
    for other, results in methods.items():
        if other == first:
            continue
        cells = []
        for metric in METRICS:
            pairs = zip(values(methods[first], metric), values(results, metric), strict=True)
            mean, half = interval([a - b for a, b in pairs])
            cells.append(f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})")
        lines.append(f"| `{other}` | {' | '.join(cells)} |")
    return lines


def searched() -> list[str]:
    """What was compared on validation images, and what it showed."""
    lines = [
        "",
        "## Settings compared on validation images",
        "",
        "How the defaults were chosen (`python -m tools.search`, records in `results/search/`).",
        "Each domain's validation images stand in for its test images here. Two or three seeds are",
        "few: differences below about 0.01 are noise.",
    ]
    for file in sorted((RESULTS / "search").glob("*.json")):
        content = json.loads(file.read_text("utf-8"))
        rows = [row for search in content["searches"] for row in search["runs"]]
        lines += [
            "",
            f"### {file.stem}",
            "",
            content["note"],
            "",
            "| settings | seeds | AvgACC | AvgF | final |",
            "|---|---|---|---|---|",
        ]
        for variant in dict.fromkeys(row["variant"] for row in rows):
            mine = [row for row in rows if row["variant"] == variant]
            cells = []
            for metric in ("average_accuracy", "average_forgetting", "final_average"):
                numbers = [row[metric] for row in mine]
                cells.append(f"{np.mean(numbers):.3f} ± {np.std(numbers, ddof=1):.3f}")
            shown = variant.replace(",", " ")
            lines.append(f"| `{shown}` | {len(mine)} | {' | '.join(cells)} |")
    return lines


def page() -> str:
    lines = [
        "# Results",
        "",
        "Written by `python -m tools.results write` from the records under `results/`. Each record",
        "holds the command, the settings, the seed, the commit and the machine of its run.",
        "Accuracy on the test splits, mean ± standard deviation over seeds. No setting was chosen",
        "on a test split; the embedded digits themselves were drawn harder once, after a first",
        "score on them (see [their model card](micro-vit.md)).",
    ]
    for stream, methods in load().items():
        some = next(iter(methods.values()))[0]
        config, environment = some["config"], some["environment"]
        training = config["training"]
        domains = " → ".join(domain["name"] for domain in some["stream"]["domains"])
        lines += [
            "",
            f"## {stream}",
            "",
            f"{len(some['stream']['classes'])} classes, {domains}. "
            f"Backbone `{config['backbone']}`, at most {training['epochs']} epochs a stage, "
            f"batch {training['batch_size']}, learning rate {training['lr']:g}; "
            f"{environment['gpu'] or environment['processor']}.",
            "",
            *table(methods),
            "",
            "Commands, for the first seed:",
            "",
            *(f"- `{' '.join(found[0]['command'])}` ({name})" for name, found in methods.items()),
            "",
            "Differences, paired by seed, with 95 % intervals (Student's t):",
            "",
            *differences(methods, "residual-sodap"),
        ]
    return "\n".join([*lines, *searched()]) + "\n"


def main() -> None:
    match sys.argv[1:]:
        case ["keep", *paths] if paths:
            keep(paths)
        case ["write"]:
            PAGE.write_text(page(), "utf-8")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
