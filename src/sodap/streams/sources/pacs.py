"""`pacs`: seven classes as photographs, paintings, cartoons and sketches."""

from __future__ import annotations

from pathlib import Path

from sodap.streams.catalogue import register_source
from sodap.streams.items import Item, Source
from sodap.streams.sources.listing import first_existing, list_folder

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")


def read(root: Path) -> list[Item]:
    """Read kfold/DOMAIN/CLASS/image as in the archive, or DOMAIN/CLASS/image."""
    home = root / "kfold" if (root / "kfold").is_dir() else root
    return [
        Item(home / domain / label / name, label, original=label, domain=domain)
        for domain in DOMAINS
        for label in CLASSES
        for name in list_folder(first_existing(home / domain, label)).images
    ]


register_source(
    Source(
        name="pacs",
        title="PACS",
        classes=CLASSES,
        licence="none stated by the authors",
        citation="Li et al., Deeper, broader and artier domain generalization, ICCV, 2017",
        advice="get it from https://dali-dl.github.io/project_iccv2017.html and unpack it so "
        "that pacs/kfold/photo/dog (or pacs/photo/dog) exists, and the same for art_painting, "
        "cartoon and sketch",
        read=read,
        totals={
            "dog": 1729,
            "elephant": 1654,
            "giraffe": 1566,
            "guitar": 1113,
            "horse": 1540,
            "house": 943,
            "person": 1446,
        },
    )
)
