"""The parts of residual experts, each taken away in turn, and other ways to do them."""

from __future__ import annotations

from sodap.methods.variants import Variant

ANSWER = "answer"
LEARNING = "learning"
NETWORK = "network"

REMOVALS = (
    Variant("base", "without the base: the most probable expert alone", ANSWER, ("fast=true",)),
    Variant("experts", "without experts: the base alone", ANSWER, ("experts=false",)),
    Variant("adapt", "without adaptation in stage 1", LEARNING, ("adapt=false",)),
    Variant("calibrate", "experts at the temperature they learned", ANSWER, ("calibrate=false",)),
    Variant("last-blocks", "heads read the last block only", NETWORK, ("read_blocks=1",)),
    Variant("trunk", "without a trunk: residuals in all blocks", NETWORK, ("trunk=0",)),
)

OTHER_WAYS = (
    Variant("half-trunk", "trunk of half the blocks", NETWORK, ("trunk=0.5",)),
    Variant("rank-4", "residuals of rank 4", NETWORK, ("rank=4",)),
    Variant("rank-16", "residuals of rank 16", NETWORK, ("rank=16",)),
    Variant("shown-to-2", "images shown to two experts", ANSWER, ("shown_to=2",)),
    Variant("shown-to-all", "images shown to all experts", ANSWER, ("shown_to=1000",)),
    Variant("head-lr-1", "head at the full learning rate", LEARNING, ("head_lr=1",)),
)
