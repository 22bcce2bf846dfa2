"""Images per second that reach the model: `python -m benchmarks.data`.

Compares torchvision's transforms in a DataLoader, which decodes every file in every epoch, with the
cache of sodap, which is decoded once, memory-mapped, and augmented in batches. Figures are those of
the fastest of a few epochs after the first, with the same files and cores.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.steps import CLASSES, make, seconds
from sodap.backbones.vit import FrozenViT
from sodap.runs.environment import environment
from sodap.storage import write_json
from sodap.streams import Augmentation, BatchLoader, Split, to_gpu_if_fits
from sodap.streams.augmentation import PAPER_AUGMENTATION
from sodap.streams.cache import cache_bytes, cached_images
from sodap.streams.images import SUFFIXES

BATCH = 64
EPOCHS = 3
SECONDS = 3
ROUNDS = 5
WORKERS = (0, 2)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLIPS = Augmentation(hflip=True, vflip=True)
TARGET = 20


class Files(Dataset[Tensor]):
    """Decode a file whenever it is asked for."""

    def __init__(
        self, paths: list[Path], size: int, views: list[Callable[[object], object]]
    ) -> None:
        self.paths = paths
        self.transform = transforms.Compose(
            [
                transforms.Resize(round(size * 256 / 224)),
                transforms.CenterCrop(size),
                *views,
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as file:
            image: Tensor = self.transform(file.convert("RGB"))
        return image


def make_images(folder: Path, count: int, side: int) -> list[Path]:
    """Write square JPEGs of soft shapes and noise, as costly to decode as photographs."""
    random = np.random.default_rng(0)
    paths = []
    for index in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
        soft = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        noisy = soft + random.normal(0, 12, soft.shape)
        paths.append(folder / f"{index:05}.jpg")
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def images_per_second(count: int, epoch: Callable[[], Iterable[object]]) -> float:
    """Rate of the fastest epoch after the first.

    Short epochs are repeated for some seconds, so that a busy moment of the machine does not affect
    them more than long ones.
    """
    taken: list[float] = []
    while len(taken) < 1 + EPOCHS or sum(taken) < SECONDS:
        start = time.perf_counter()
        for _batch in epoch():
            pass
        taken.append(time.perf_counter() - start)
    return count / min(taken[1:])


FLIP_TRANSFORMS = [transforms.RandomHorizontalFlip(), transforms.RandomVerticalFlip()]
TRANSFORMS = {
    "flips": FLIP_TRANSFORMS,
    "flips and rotation": [
        *FLIP_TRANSFORMS,
        transforms.RandomRotation(8, transforms.InterpolationMode.BILINEAR),
    ],
}


def dataloader_rates(paths: list[Path], size: int) -> dict[str, float]:
    """Rate of a DataLoader for each augmentation, with the best number of workers."""
    rates = {}
    for name, views in TRANSFORMS.items():
        files = Files(paths, size, views)
        found = []
        for workers in WORKERS:
            loader = DataLoader(
                files, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            )
            found.append(images_per_second(len(paths), lambda: loader))  # noqa: B023
        rates[f"DataLoader, {name}"] = max(found)
    return rates


def normaliser(size: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The `prepare` of a backbone that is as small as possible."""
    vit = VisionTransformer(
        img_size=size, patch_size=size, embed_dim=8, depth=1, num_heads=1, num_classes=0
    )
    return FrozenViT(vit, name="benchmark", mean=MEAN, std=STD).to(device).prepare


def cache_rates(images: Tensor, device: torch.device) -> dict[str, float]:
    split = Split(images, torch.zeros(len(images), dtype=torch.int64))
    normalise = normaliser(images.shape[-1], device)
    order = torch.Generator().manual_seed(0)

    def batches(prepare: Callable[[Tensor], Tensor]) -> Callable[[], Iterator[object]]:
        def epoch() -> Iterator[object]:
            yield from BatchLoader(split, BATCH, device, prepare, order)
            if device.type == "cuda":
                torch.cuda.synchronize()

        return epoch

    def augmented(augmentation: Augmentation) -> Callable[[Tensor], Tensor]:
        views = torch.Generator(device).manual_seed(0)
        return lambda batch: augmentation(batch, views, normalise)

    def alone(step: Callable[[Tensor], Tensor]) -> Callable[[], Iterator[object]]:
        """Repeat one step on a batch that is already on the device."""
        ready = images[:BATCH].clone().to(device)
        return lambda: (step(ready) for _ in range(-(-len(images) // len(ready))))

    views = torch.Generator(device).manual_seed(0)
    stages = {
        "cache, flips": batches(augmented(FLIPS)),
        "cache, flips and rotation": batches(augmented(PAPER_AUGMENTATION)),
        "gather alone": batches(lambda batch: batch),
        "flips alone": alone(lambda batch: FLIPS(batch, views)),
        "flips and rotation alone": alone(lambda batch: PAPER_AUGMENTATION(batch, views)),
        "normalise alone": alone(normalise),
    }
    return {name: images_per_second(len(images), epoch) for name, epoch in stages.items()}


def loading_shares(images: Tensor, device: torch.device) -> dict[str, float]:
    """Share of a training step that is spent on loading its images, by where they are stored.

    Compares steps that load their images from the memory-mapped cache or from the GPU's memory with
    steps on one batch that is already there. Augmentation is part of the step; its share is
    measured with a step without it.
    """
    contender = make("residual-sodap", "deit_tiny", BATCH, device.type, image_size=images.shape[-1])
    contender.begin(PAPER_AUGMENTATION)
    step = contender.step
    mapped = Split(images, torch.arange(len(images)) % len(CLASSES))
    homes = {"mapped": mapped}
    if device.type == "cuda":
        (homes["on the GPU"],) = to_gpu_if_fits([mapped], device)
    order = torch.Generator().manual_seed(0)

    def full_batches(split: Split) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            batches = BatchLoader(split, BATCH, device, order=order)
            yield from itertools.islice(batches, len(split) // BATCH)

    sources = {name: full_batches(split) for name, split in homes.items()}
    sources["ready"] = itertools.repeat((contender.images, contender.labels))
    times = 40 if device.type == "cuda" else 2
    for _ in range(6 if device.type == "cuda" else 1):
        step(contender.images, contender.labels)
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(ROUNDS):
        for name, source in sources.items():
            # The first steps after a change of source fill its queue, so they do not count.
            seconds(lambda: step(*next(source)), device, 3)  # noqa: B023
            taken[name].append(seconds(lambda: step(*next(source)), device, times))  # noqa: B023
    ready = statistics.median(taken.pop("ready"))
    shares = {name: 1 - ready / statistics.median(each) for name, each in taken.items()}

    plain = make("residual-sodap", "deit_tiny", BATCH, device.type, image_size=images.shape[-1])
    for _ in range(6 if device.type == "cuda" else 1):
        plain.learn()
    bare = statistics.median(seconds(plain.learn, device, times) for _ in range(ROUNDS))
    return {name: max(0.0, share) for name, share in shares.items()} | {
        "random views": max(0.0, 1 - bare / ready)
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--images", type=int, default=600, help="number of images, 600 by default")
    parser.add_argument(
        "--side", type=int, default=1024, help="side of the files in pixels, 1024 by default"
    )
    parser.add_argument(
        "--size", type=int, default=224, help="side of the images in the cache, 224 by default"
    )
    parser.add_argument("--folder", type=Path, help="use the images in this folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--record", type=Path, help="write the numbers to this JSON file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sodap-benchmark-") as name:
        work = Path(name)
        if asked.folder is None:
            paths = make_images(work, asked.images, asked.side)
        else:
            found = sorted(p for p in asked.folder.rglob("*") if p.suffix.lower() in SUFFIXES)
            paths = found[: asked.images]
            if not paths:
                parser.error(f"there are no images below {asked.folder}")
        start = time.perf_counter()
        images = cached_images(paths, asked.size, folder=work / "cache")
        rates = {"build the cache, once": len(paths) / (time.perf_counter() - start)}
        rates |= dataloader_rates(paths, asked.size)
        rates |= cache_rates(images, torch.device(asked.device))
        # On a CPU a step takes seconds, and the share of loading is too small to measure.
        on_gpu = asked.device != "cpu"
        waits = loading_shares(images, torch.device(asked.device)) if on_gpu else {}
    ratios = {name: rates[f"cache, {name}"] / rates[f"DataLoader, {name}"] for name in TRANSFORMS}
    megabytes = cache_bytes(len(paths), asked.size) / 1e6
    print(f"{len(paths)} images, {asked.size} px, cache {megabytes:.0f} MB, on {asked.device}")
    for home, share in waits.items():
        print(f"share of a training step (DeiT-Tiny, {BATCH} images), {home}: {share:.1%}")
    for name, rate in rates.items():
        print(f"{name:28}{rate:10.0f} images/s")
    for name, ratio in ratios.items():
        reached = "reached" if ratio >= TARGET else "missed"
        print(f"{name:28}{ratio:10.1f} x the DataLoader (target {TARGET}: {reached})")
    if asked.record is not None:
        record = {
            "images": len(paths),
            "side": asked.side if asked.folder is None else None,
            "size": asked.size,
            "waiting": waits,
            "device": asked.device,
            "images_per_second": rates,
            "ratios": ratios,
            "machine": environment().model_dump(mode="json"),
        }
        write_json(asked.record, record)


if __name__ == "__main__":
    main()
