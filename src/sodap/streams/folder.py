"""A user's own folders as a stream: ROOT/DOMAIN/CLASS/image, or with {train,val,test} in between.

Domains are learned in the order of their folders' names, so number them: 01-clinic, 02-van, ...
Without split folders, images are dealt to train, val and test 8 : 1 : 1 within each class.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sodap.errors import SodapError
from sodap.randomness import Randomness
from sodap.streams.images import SUFFIXES, read_images
from sodap.streams.stream import Domain, Split, Stream

SPLITS = ("train", "val", "test")

Files = dict[str, list[Path]]  # class name -> image files


def folder_stream(root: Path, image_size: int, *, seed: int = 0) -> Stream:
    """Read every image under `root`; classes are the class folders of all domains, sorted."""
    listing = {folder.name: _splits(folder, seed) for folder in _folders(root)}
    if not listing:
        raise SodapError(f"{root} holds no domain folders (DOMAIN/CLASS/image)")
    classes = tuple(sorted({c for splits in listing.values() for s in splits.values() for c in s}))
    domains = [
        Domain(name, **{kind: _read(splits[kind], classes, image_size) for kind in SPLITS})
        for name, splits in listing.items()
    ]
    return Stream(root.name, classes, tuple(domains))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def _files(root: Path) -> Files:
    return {
        folder.name: sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
        for folder in _folders(root)
    }


def _splits(domain: Path, seed: int) -> dict[str, Files]:
    inside = {folder.name for folder in _folders(domain)}
    if inside & set(SPLITS):
        if inside != set(SPLITS):
            wrong = sorted(inside ^ set(SPLITS))
            raise SodapError(
                f"{domain} has some split folders but not exactly train, val and test: "
                f"look at {', '.join(wrong)}"
            )
        return {kind: _files(domain / kind) for kind in SPLITS}
    dealt: dict[str, Files] = {kind: {} for kind in SPLITS}
    for name, files in _files(domain).items():
        # The deal depends on file names alone: it survives a move and a re-run.
        random.Random(Randomness(seed).number(f"split {domain.name} {name}")).shuffle(files)
        tenth = max(1, round(len(files) / 10)) if len(files) >= 3 else 0
        dealt["test"][name] = files[:tenth]
        dealt["val"][name] = files[tenth : 2 * tenth]
        dealt["train"][name] = files[2 * tenth :]
    return dealt


def _read(files: Files, classes: tuple[str, ...], image_size: int) -> Split:
    pairs = [(path, classes.index(name)) for name, paths in files.items() for path in paths]
    images = read_images([path for path, _ in pairs], image_size)
    return Split(images, torch.tensor([label for _, label in pairs], dtype=torch.int64))
