"""The paper's ablation: eight removals, and the other readings of what the paper leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sodap.methods.variants import Variant

PROMPTING = "prompting and drift"
PRESERVING = "preserving the classifier"
OBJECTIVE = "objective and balance"
READINGS = "other readings"


REMOVALS = (
    Variant("qe", "without query enhancer (QE)", PROMPTING, ("query_enhancer=false",)),
    Variant("pudd", "without PUDD", PROMPTING, ("pudd=false",)),
    Variant("sodap", "without residual SODAP", PROMPTING, ("sodap=false",)),
    Variant("pseudo", "without pseudo replay", PRESERVING, ("pseudo=false",)),
    Variant("distill", "without distillation", PRESERVING, ("distill=false",)),
    Variant("div", "without L_div", OBJECTIVE, ("l_div=false",)),
    Variant("norm", "without L_norm", OBJECTIVE, ("l_norm=false",)),
    Variant("uw", "without uncertainty weighting (UW)", OBJECTIVE, ("uw=false",)),
)
"""Removals of one part each, in the order and the groups of the paper's table."""


def _other_reading(title: str, *changes: str) -> Variant:
    name = "-".join(changes[0].replace("drift.", "").split("="))
    return Variant(name.replace("_", "-"), title, READINGS, changes)


OTHER_READINGS = (
    _other_reading("softmax, with the residual", "selection=softmax"),
    _other_reading("entmax over one set, without the residual", "combination=joint"),
    _other_reading("context: CLS", "context=cls"),
    _other_reading("context: mean patch", "context=patch_mean"),
    _other_reading("temperature 1.5", "temperature=1.5"),
    _other_reading("temperature 1", "temperature=1.0"),
    _other_reading("temperature 0.5", "temperature=0.5"),
    _other_reading("temperature 0.25", "temperature=0.25"),
    _other_reading("shared parts frozen after stage 1", "shared_after_stage1=frozen"),
    _other_reading("shared parts trained in all stages", "shared_after_stage1=trainable"),
    _other_reading("shared parts trained slowly after stage 1", "shared_after_stage1=low_lr"),
    _other_reading("prompts frozen without rescaling", "merge=paper"),
    _other_reading("prompts rescaled when frozen", "merge=rescale"),
    _other_reading("memory written in stage 1", "memory_write=stage1"),
    _other_reading("memory written in all stages", "memory_write=always"),
    _other_reading("memory learned", "memory_write=learned"),
    _other_reading("memory read with LayerNorm", "memory_norm=true"),
    _other_reading("memory read without LayerNorm", "memory_norm=false"),
    _other_reading("memory written by attention", "memory_assignment=attention"),
    _other_reading("memory written to the nearest slot", "memory_assignment=nearest"),
    _other_reading("queries as they are", "queries=raw"),
    _other_reading("queries standardised", "queries=standardised"),
    _other_reading("random initial keys", "key_start=noise"),
    _other_reading("clusters of queries as initial keys", "key_start=clusters"),
    _other_reading("new prompts compete with frozen ones", "combination=competing"),
    _other_reading("frozen and new prompts routed separately", "combination=residual"),
    _other_reading("pool and adapters shared by all layers", "per_layer=none"),
    _other_reading("adapters per layer", "per_layer=adapters"),
    _other_reading("pool and adapters per layer", "per_layer=all"),
    _other_reading("drift within the new domain only", "drift_prefill=false"),
    _other_reading("used prompts by the weights of their own set", "drift_sets=own"),
    _other_reading("used prompts by the joined weights", "drift_sets=joined"),
    _other_reading("L_norm only beside frozen prompts", "l_norm_base=false"),
    _other_reading("L_norm in every later stage", "l_norm_base=true"),
    _other_reading("growth from a score of 0.7", "drift.threshold=0.7"),
    _other_reading("growth in every stage", "drift.threshold=0.0"),
    _other_reading(
        "usage threshold in units of 1/N",
        "drift.relative_threshold=true",
        "drift.usage_threshold=0.6",
    ),
    _other_reading("growth always 24", "drift.min_growth=24", "drift.max_growth=24"),
    _other_reading("features before the last norm", "feature_norm=false"),
    _other_reading("features after the last norm", "feature_norm=true"),
    _other_reading("one Gaussian per class", "stats=merged"),
    _other_reading("one Gaussian per class and stage", "stats=per_stage"),
)
"""Both sides of every choice; an ablation leaves out the side that the full method is on."""


def active_parts(options: Mapping[str, Any]) -> dict[str, bool]:
    """Which of the paper's eight parts are on; some depend on another."""
    return {
        "SODAP": options["sodap"],
        "PUDD": options["pudd"],
        "Distill": options["distill"],
        "Pseudo": options["distill"] and options["pseudo"],
        "L_div": options["l_div"],
        "L_norm": options["pudd"] and options["l_norm"],
        "UW": options["uw"],
        "QE": options["query_enhancer"],
    }
