"""False alarms and detection rates of drift tests on a stream: `python -m benchmarks.drift`.

Each repetition draws two halves of a domain at random. The first is the reference. New images come
from the second half (no drift: alarms are false), from the second half after a corruption, or from
another domain. Every test sees the same images. Of each group (patient) one image takes part,
because images of one patient are not independent.

The tests of features see mean and standard deviation of the patch tokens after a quarter of the
blocks. PUDD sees the prompt usage of a `residual-sodap` that has learned the reference's domain.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from benchmarks.corruptions import CORRUPTIONS, STRENGTHS, corrupted
from sodap.backbones import FrozenViT, build_backbone
from sodap.drift import DriftDetector, DriftSettings, MomentReference, drift_test, null_band
from sodap.learning import Learner
from sodap.methods.residual_experts.network import TrunkAndBranches
from sodap.randomness import Randomness
from sodap.runs.environment import environment
from sodap.storage import write_json
from sodap.streams import Domain, Stream, load_stream

ALPHAS = (0.01, 0.05)
COUNTS = (25, 50, 200)
BATCH = 100
PERMUTATIONS = 500
PUDD_BATCH = 25
PAPER_THRESHOLD = 0.7

Array = NDArray[np.float64]


# ------------------------------------------------------------------ images


def one_per_group(stream: Stream, domain: Domain) -> Tensor:
    """Images of all splits of a domain, the first of each group, `[N, 3, H, W]` (uint8)."""
    kept = []
    for name, split in domain.splits():
        rows = [row for row in stream.rows if row.domain == domain.name and row.split == name]
        if not rows:  # made in memory, without groups
            kept.append(split.images)
            continue
        if [row.label for row in rows] != [stream.classes[label] for label in split.labels]:
            raise ValueError(f"rows and images of {domain.name}, {name}, are not in the same order")
        first = {row.group or row.path: at for at, row in reversed([*enumerate(rows)])}
        kept.append(split.images[sorted(first.values())])
    return torch.cat(kept)


@dataclass(frozen=True)
class Rows:
    """What tests see of images: features `[N, F]` and prompt usage `[N, L, P]`."""

    features: Array
    usage: Array | None

    def take(self, index: NDArray[np.int64]) -> Rows:
        return Rows(self.features[index], None if self.usage is None else self.usage[index])


class Reader:
    """Computes what tests see of images."""

    def __init__(self, backbone: FrozenViT, learner: Learner | None) -> None:
        self.network = TrunkAndBranches(backbone, share=0.25, read_blocks=1)
        self.learner = learner
        self.device = next(backbone.parameters()).device

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Rows:
        features, usage = [], []
        for batch in torch.split(images, BATCH):
            prepared = self.network.backbone.prepare(batch.to(self.device))
            statistics = self.network.statistics(self.network.trunk(prepared))
            features.append(statistics.double().cpu().numpy())
            if self.learner is not None:
                routings = self.learner.method.routing(prepared) or []
                joined = torch.stack([routing.joined for routing in routings], 1)
                usage.append(joined.double().cpu().numpy())
        return Rows(np.concatenate(features), np.concatenate(usage) if usage else None)


# ------------------------------------------------------------------ tests


def moments(old: Rows, new: Rows, seed: int) -> float:
    """Ours: random Fourier features, from stored moments."""
    reference = MomentReference(old.features.shape[1]).update(torch.from_numpy(old.features))
    return drift_test(reference, torch.from_numpy(new.features)).p_value


def scaled_moments(old: Rows, new: Rows, seed: int) -> float:
    """Ours, in units of the standard deviation of each feature in the reference."""
    rows = torch.from_numpy(old.features)
    reference = MomentReference(rows.shape[1], scale=rows.std(0).clamp(min=1e-6)).update(rows)
    return drift_test(reference, torch.from_numpy(new.features)).p_value


def mmd(old: Rows, new: Rows, seed: int) -> float:
    """Gaussian kernel and permutations; keeps all old rows."""
    rows = torch.from_numpy(np.concatenate([old.features, new.features]))
    distances = torch.cdist(rows, rows)
    kernel = torch.exp(-(distances**2) / (2 * distances[distances > 0].median() ** 2)).numpy()
    sign = np.r_[np.full(len(old.features), 1 / len(old.features)), np.zeros(len(new.features))]
    sign[len(old.features) :] = -1 / len(new.features)
    random = np.random.default_rng(seed)
    signs = np.stack([sign, *(random.permutation(sign) for _ in range(PERMUTATIONS))])
    values = ((signs @ kernel) * signs).sum(1)
    return float((values >= values[0] - 1e-12).mean())


def kolmogorov_smirnov(old: Rows, new: Rows, seed: int) -> float:
    """One test per feature, with Bonferroni's correction; keeps all old rows."""
    p_values = stats.ks_2samp(old.features, new.features, axis=0, method="asymp").pvalue
    return float(min(1.0, p_values.min() * old.features.shape[1]))


def classifier(old: Rows, new: Rows, seed: int) -> float:
    """Logistic regression tells half of old and new rows apart; ranks of the others."""
    random = np.random.default_rng(seed)
    halves = [np.array_split(random.permutation(each.features), 2) for each in (old, new)]
    (old_fit, old_held), (new_fit, new_held) = halves
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, class_weight="balanced"))
    model.fit(np.concatenate([old_fit, new_fit]), np.repeat([0, 1], [len(old_fit), len(new_fit)]))
    scores = model.decision_function(new_held), model.decision_function(old_held)
    return float(stats.mannwhitneyu(*scores, alternative="greater").pvalue)


def pudd_detector(old: Rows) -> DriftDetector:
    """A detector whose window holds the old batches."""
    assert old.usage is not None
    _, layers, prompts = old.usage.shape
    detector = DriftDetector(layers, prompts, DriftSettings())
    detector.scan(usage_batches(old))
    return detector


def usage_batches(rows: Rows) -> Iterator[Array]:
    """Mean usage `[L, P]` of each whole batch."""
    assert rows.usage is not None
    for at in range(0, len(rows.usage) - PUDD_BATCH + 1, PUDD_BATCH):
        yield rows.usage[at : at + PUDD_BATCH].mean(0)


def pudd(old: Rows, new: Rows, seed: int) -> float:
    """The paper's rule, the same at any level: the mean score reaches 0.7."""
    score = pudd_detector(old).scan(usage_batches(new)).mean
    return 0.0 if score >= PAPER_THRESHOLD else 1.0


def pudd_band(old: Rows, new: Rows, seed: int) -> float:
    """The smallest level at which the mean score is above the band of the old batches."""
    detector = pudd_detector(old)
    bands = {a: null_band(detector.window, detector.settings, quantile=1 - 2 * a) for a in ALPHAS}
    score = detector.scan(usage_batches(new)).mean
    return min((a for a, band in bands.items() if band and score > band.high), default=1.0)


TESTS: dict[str, Callable[[Rows, Rows, int], float]] = {
    "moments": moments,
    "scaled": scaled_moments,
    "mmd": mmd,
    "ks": kolmogorov_smirnov,
    "classifier": classifier,
}
USAGE_TESTS = {"pudd": pudd, "pudd band": pudd_band}


# ------------------------------------------------------------------ measurement


def cases(home: str, images: Mapping[str, Tensor], read: Reader) -> Iterator[tuple[str, str, Rows]]:
    """Kind, name and rows of all that new images are drawn from."""
    for name, each in images.items():
        yield ("no drift" if name == home else "transition"), name, read(each)
    for name in CORRUPTIONS:
        for strength in STRENGTHS:
            yield "corruption", f"{name} {strength}", read(corrupted(images[home], name, strength))


def measure(
    home: str, images: Mapping[str, Tensor], read: Reader, repetitions: int
) -> list[dict[str, Any]]:
    """Alarms of all tests with one domain as reference."""
    tests = TESTS | (USAGE_TESTS if read.learner is not None else {})
    old, size = read(images[home]), len(images[home])
    results = []
    for kind, name, rows in cases(home, images, read):
        for count in COUNTS:
            available = size - size // 2 if kind != "transition" else len(rows.features)
            if available < count:
                continue
            p_values = defaultdict(list)
            for repetition in range(repetitions):
                random = np.random.default_rng(Randomness(repetition).number(f"{home} {name}"))
                order = random.permutation(size)
                # The second half of the reference's domain, or all images of another one.
                free = order[size // 2 :] if kind != "transition" else np.arange(available)
                reference = old.take(order[: size // 2])
                new = rows.take(random.permutation(free)[:count])
                for test, function in tests.items():
                    p_values[test].append(function(reference, new, repetition))
            alarms = {
                test: {str(alpha): sum(p <= alpha for p in found) for alpha in ALPHAS}
                for test, found in p_values.items()
            }
            case = {"reference": home, "kind": kind, "new": name, "count": count}
            results.append({**case, "repetitions": repetitions, "alarms": alarms})
    return results


def summary(results: list[dict[str, Any]]) -> str:
    """Rates of alarms by kind of change, number of images and level, over all references."""
    rates: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for result in results:
        for test, by_level in result["alarms"].items():
            for alpha, alarms in by_level.items():
                line = rates.setdefault((result["kind"], result["count"], alpha), {})
                line.setdefault(test, []).append(alarms / result["repetitions"])
    tests = list(next(iter(rates.values())))
    lines = [f"{'':12}{'images':>7}{'level':>7}" + "".join(f"{test:>12}" for test in tests)]
    for (kind, count, alpha), line in sorted(rates.items()):
        shares = "".join(f"{np.mean(line[test]):12.3f}" for test in tests)
        lines.append(f"{kind:12}{count:>7}{alpha:>7}{shares}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--stream", default="digits", help="name or folder, digits by default")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--backbone", default="micro")
    parser.add_argument("--weights", default="pretrained")
    parser.add_argument("--repetitions", type=int, default=200, help="per case, 200 by default")
    parser.add_argument("--epochs", type=int, default=5, help="for PUDD's model; 0 = without PUDD")
    parser.add_argument("--domains", nargs="*", help="references, by default every domain")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    asked = parser.parse_args()
    backbone = build_backbone(asked.backbone, asked.weights).to(asked.device)
    stream = load_stream(asked.stream, image_size=backbone.image_size, data=asked.data)
    images = {domain.name: one_per_group(stream, domain) for domain in stream.domains}
    results = []
    for domain in stream.domains:
        if asked.domains and domain.name not in asked.domains:
            continue
        learner = None
        if asked.epochs:
            model = {"backbone": asked.backbone, "weights": asked.weights, "device": asked.device}
            learner = Learner(stream.classes, method="residual-sodap", epochs=asked.epochs, **model)
            learner.learn(domain, progress=False)
        results += measure(domain.name, images, Reader(backbone, learner), asked.repetitions)
        print(f"reference {domain.name}: done", flush=True)
    print(summary(results))
    if asked.record is not None:
        record = {
            "stream": asked.stream,
            "backbone": asked.backbone,
            "images": {name: len(each) for name, each in images.items()},
            "epochs of PUDD's model": asked.epochs,
            "results": results,
            "machine": environment().model_dump(mode="json"),
        }
        write_json(asked.record, record)


if __name__ == "__main__":
    main()
