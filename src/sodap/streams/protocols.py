"""Protocols: named recipes that make a stream from data sets (domains, images, splits).

A `Protocol` is a description; `sodap.streams.plans.plan_protocol` applies it to files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sodap.errors import SodapError
from sodap.streams.augmentation import PAPER_AUGMENTATION, Augmentation
from sodap.streams.catalogue import source_names
from sodap.streams.sources import core50, retinopathy, skin
from sodap.streams.splits import Fractions

Counts = Mapping[str, int]
"""Class -> number of images."""


@dataclass(frozen=True)
class DomainSpec:
    """Where the images of a domain come from."""

    name: str
    source: str
    part: str | None = None
    """Domain within the source, if the source holds several."""
    keep: Counts | Literal["balance"] | None = None
    """Images to draw of a class; "balance": as many of each as the rarest class has."""
    listed: str | None = None
    """The domain's name in the lists that the paper's authors published."""
    expected: Counts | None = None
    """Images of each class in the paper's tables."""


@dataclass(frozen=True)
class Protocol:
    """A named way to make a stream; only the seed of the random splits is left open."""

    name: str
    title: str
    classes: tuple[str, ...]
    domains: tuple[DomainSpec, ...]
    """Domains in the order of learning; unseen domains last."""
    fractions: Fractions
    grouped: bool
    """Whether all images of a patient, lesion or video get the same split."""
    augmentation: Augmentation
    note: str
    unseen: tuple[str, ...] = ()
    """Domains that are tested but never learned."""
    expected_split: str | None = None
    """The split that `DomainSpec.expected` counts; None: all images."""


_PROTOCOLS: dict[str, Protocol] = {}


def register_protocol(protocol: Protocol) -> Protocol:
    """Make a protocol available under its name, for example as `stream=NAME`."""
    if protocol.name in _PROTOCOLS:
        raise ValueError(f"a protocol named '{protocol.name}' is registered already")
    _PROTOCOLS[protocol.name] = protocol
    return protocol


def protocol_names() -> list[str]:
    source_names()  # loads the plugins, which may register protocols
    return list(_PROTOCOLS)


def find_protocol(name: str) -> Protocol:
    names = protocol_names()
    if name not in names:
        raise SodapError(f"no protocol is called '{name}'; there are: {', '.join(names)}")
    return _PROTOCOLS[name]


# ------------------------------------------------------------------ the protocols

EIGHT_ONE_ONE = (8, 1, 1)
OBJECT_AUGMENTATION = Augmentation(hflip=True)

DR = retinopathy.CLASSES
SKIN = skin.CLASSES
OBJECTS = core50.CLASSES

_PAPER_DR = (
    DomainSpec(
        "aptos", "aptos2019", listed="aptos", expected=dict(zip(DR, (1805, 1562, 295), strict=True))
    ),
    DomainSpec("ddr", "ddr", listed="ddr", expected=dict(zip(DR, (6266, 5343, 913), strict=True))),
    DomainSpec(
        "drd",
        "drd",
        listed="drd",
        keep={"Normal": 5000},
        expected=dict(zip(DR, (5000, 8608, 708), strict=True)),
    ),
)
_PAPER_SKIN = tuple(
    DomainSpec(name, name, keep="balance", expected=dict.fromkeys(SKIN, count))
    for name, count in (("isic2020", 584), ("ham10000", 1113), ("derm7pt", 252))
)

# Training images of each class (row) in each session (column), from the paper's table.
_CORE50_TRAINING = (
    (1064, 1066, 1066, 1064, 1066, 1064, 1066, 1064, 1066, 1066, 1066),
    (1048, 1052, 1052, 1052, 1052, 1051, 1049, 1050, 1052, 1052, 1047),
    (1070, 1067, 1067, 1069, 1064, 1070, 1070, 1066, 1067, 1067, 1070),
    (1041, 1042, 1040, 1039, 1033, 1039, 1039, 1040, 1043, 1041, 1041),
    (1039, 1038, 1040, 1041, 1041, 1038, 1040, 1040, 1039, 1039, 1038),
    (1064, 1059, 1065, 1065, 1058, 1064, 1065, 1062, 1066, 1065, 1064),
    (1047, 1046, 1045, 1045, 1049, 1048, 1045, 1047, 1046, 1044, 1048),
    (1002, 1009, 1002, 1011, 1014, 1002, 1020, 1001, 1017, 1007, 1004),
    (1060, 1057, 1060, 1062, 1052, 1059, 1054, 1060, 1053, 1057, 1072),
    (1057, 1054, 1057, 1048, 1047, 1057, 1047, 1058, 1046, 1052, 1043),
)


def _session(number: int, *, expected: bool = False) -> DomainSpec:
    column = {name: row[number - 1] for name, row in zip(OBJECTS, _CORE50_TRAINING, strict=True)}
    return DomainSpec(
        f"s{number}", "core50", part=f"s{number}", expected=column if expected else None
    )


register_protocol(
    Protocol(
        "paper-dr",
        "Diabetic retinopathy as in the paper: APTOS 2019, DDR, DRD",
        DR,
        _PAPER_DR,
        EIGHT_ONE_ONE,
        grouped=False,
        augmentation=PAPER_AUGMENTATION,
        note="Split by image: the eyes of one patient can be in different splits. "
        "Give the authors' lists to use their splits.",
    )
)
register_protocol(
    Protocol(
        "grouped-dr",
        "The same three data sets, split by patient",
        DR,
        _PAPER_DR,
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=PAPER_AUGMENTATION,
        note="Patients are known only for DRD; in the other two, each image is its own group.",
    )
)
register_protocol(
    Protocol(
        "paper-skin",
        "Melanoma as in the paper: ISIC 2020, HAM10000, Derm7pt",
        SKIN,
        _PAPER_SKIN,
        EIGHT_ONE_ONE,
        grouped=False,
        augmentation=PAPER_AUGMENTATION,
        note="Split by image: photographs of one lesion can be in different splits. "
        "The paper does not say which benign images it drew; here they depend on the seed.",
    )
)
register_protocol(
    Protocol(
        "grouped-skin",
        "The same three data sets, split by patient or lesion",
        SKIN,
        _PAPER_SKIN,
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=PAPER_AUGMENTATION,
        note="No patient (ISIC 2020) and no lesion (HAM10000) is in two splits.",
    )
)
register_protocol(
    Protocol(
        "paper-core50",
        "CORe50 as in the paper: eleven sessions, split by frame",
        OBJECTS,
        tuple(_session(number, expected=True) for number in range(1, 12)),
        (70, 15, 15),
        grouped=False,
        augmentation=OBJECT_AUGMENTATION,
        note="Split by frame: neighbouring frames of one video are in different splits.",
        expected_split="train",
    )
)
register_protocol(
    Protocol(
        "core50-sequences",
        "CORe50: eleven sessions, split by video",
        OBJECTS,
        tuple(_session(number) for number in range(1, 12)),
        (70, 15, 15),
        grouped=True,
        augmentation=OBJECT_AUGMENTATION,
        note="A class has five videos per session: three for train, one for val, one for test.",
    )
)
register_protocol(
    Protocol(
        "core50-ni",
        "CORe50: eight sessions to learn, three unseen",
        OBJECTS,
        tuple(_session(number) for number in (1, 2, 4, 5, 6, 8, 9, 11, 3, 7, 10)),
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=OBJECT_AUGMENTATION,
        note="Sessions 3, 7 and 10 are used for test only. In the others, one video of each class "
        "is for val and one for test, so that forgetting can be measured.",
        unseen=("s3", "s7", "s10"),
    )
)
register_protocol(
    Protocol(
        "open-dr",
        "Diabetic retinopathy from open data: DeepDRiD, IDRiD, DeepDRiD ultra-wide-field",
        DR,
        tuple(DomainSpec(name, name) for name in ("deepdrid", "idrid", "deepdrid_uwf")),
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=PAPER_AUGMENTATION,
        note="Split by patient; IDRiD publishes no patients, so each image is its own group.",
    )
)
register_protocol(
    Protocol(
        "open-skin",
        "Melanoma from open data: ISIC 2020, HAM10000, ISIC 2017",
        SKIN,
        tuple(
            DomainSpec(name, name, keep="balance") for name in ("isic2020", "ham10000", "isic2017")
        ),
        EIGHT_ONE_ONE,
        grouped=True,
        augmentation=PAPER_AUGMENTATION,
        note="Split by patient (ISIC 2020) or lesion (HAM10000); ISIC 2017 publishes neither.",
    )
)
