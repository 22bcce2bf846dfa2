"""All weights trained: what may change, what may not, and the upper bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sodap.errors import SodapError
from sodap.learning import Learner, Training, load
from sodap.methods import find_method
from sodap.methods.finetune import Finetune
from sodap.runs import RunConfig, run
from sodap.streams import Stream
from tests.conftest import NO_IMAGES, make_batch

TRAINING = Training(epochs=1, batch_size=16)
HEAD = 128 * 3 + 3
# The micro ViT, by hand: width 128, six blocks, 4-pixel patches of 32-pixel images.
NETWORK = (
    128 * (3 * 4 * 4 + 1)  # patch embedding
    + 128 * (1 + 65)  # CLS token, positions
    + 6 * (2 * 2 * 128 + (128 + 1) * 3 * 128 + (128 + 1) * 128)  # norms, qkv, projection
    + 6 * ((128 + 1) * 4 * 128 + (4 * 128 + 1) * 128)  # MLP
    + 2 * 128  # last norm
)


def taught(method: str, stream: Stream, **options: Any) -> Learner:
    learner = Learner(
        stream.classes, method=method, options=options, training=TRAINING, device="cpu"
    )
    for domain in stream.domains:
        learner.learn(domain)
    return learner


def copy_of(learner: Learner) -> Finetune:
    assert isinstance(learner.method, Finetune)
    return learner.method


@pytest.mark.parametrize("method", ["finetune", "joint", "lwf", "der++", "online-ewc"])
def test_the_copy_learns_and_the_backbone_does_not(method: str, stripes: Stream) -> None:
    learner = Learner(stripes.classes, method=method, training=TRAINING, device="cpu")
    model = copy_of(learner)
    frozen, before = model.backbone.digest(), model.network
    assert before is not None
    assert before.digest() == frozen, "the copy starts from the pretrained weights"
    for domain in stripes.domains:
        learner.learn(domain)
    assert model.backbone.digest() == frozen
    assert before.digest() != frozen
    assert not any(p.requires_grad for p in model.backbone.parameters())
    assert model.trainable_count() == NETWORK + HEAD


def test_every_weight_gets_a_gradient(stripes: Stream) -> None:
    model = Learner(stripes.classes, method="finetune", device="cpu").method
    split = stripes.domains[0].train
    losses = model.losses(make_batch(model, model.backbone.prepare(split.images), split.labels))
    expected = F.cross_entropy(model(model.backbone.prepare(split.images)), split.labels)
    assert list(losses) == ["ce"]
    torch.testing.assert_close(losses["ce"], expected)
    losses["ce"].backward()  # type: ignore[no-untyped-call]
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == NETWORK + HEAD
    assert all(p.grad is not None and bool(p.grad.any()) for p in trained)


def test_the_network_takes_small_steps_and_never_decays(stripes: Stream) -> None:
    model = copy_of(Learner(stripes.classes, method="finetune", options={"network_lr": 0.25}))
    groups = model.parameter_groups(lr=0.1, weight_decay=0.5)
    rates = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert model.network is not None
    assert rates.pop(id(model.head.weight)) == (0.1, 0.5)
    assert rates.pop(id(model.head.bias)) == (0.1, 0.0)
    assert set(rates) == {id(p) for p in model.network.parameters()}
    assert set(rates.values()) == {(0.025, 0)}


def test_what_was_learned_survives_a_round_trip(stripes: Stream, tmp_path: Path) -> None:
    learner = taught("finetune", stripes)
    learner.save(tmp_path)
    images = stripes.domains[0].test.images
    again = load(tmp_path, device="cpu").predict(images).probabilities
    assert torch.equal(again, learner.predict(images).probabilities)


def test_a_head_alone_needs_no_copy(stripes: Stream) -> None:
    for method in ("joint", "lwf"):
        model = copy_of(taught(method, stripes, trained="head"))
        assert model.network is None
        assert model.trainable_count() == HEAD
        assert not any("vit" in name for name in model.state())
    with pytest.raises(SodapError, match="option 'trained' of joint"):
        taught("joint", stripes, trained="nothing")


# ------------------------------------------------------------------ the upper bound


def test_joint_gets_all_domains_and_says_so(stripes: Stream, tmp_path: Path) -> None:
    options = {"trained": "head"}
    config = RunConfig(method="joint", training=TRAINING, options=options, device="cpu")
    record = run(config, tmp_path / "run", stream=stripes)
    kept = [[asset.images for asset in stage.stored or ()] for stage in record.stages]
    assert kept == [[24, 12], [48, 24]]
    assert record.stages[1].stored is not None
    assert record.stages[1].stored[0].bytes == 48 * 3 * 32 * 32
    assert [stage.domain for stage in record.stages] == ["domain 0", "domain 1"]
    assert [name for name in ("joint", "finetune") if find_method(name).learns_all_domains] == [
        "joint"
    ]


def test_joint_starts_every_stage_anew(stripes: Stream) -> None:
    """Order leaves no trace: the last stage is the same whatever came before it."""
    learners = [
        Learner(stripes.classes, method="joint", training=TRAINING, device="cpu") for _ in range(2)
    ]
    learners[0].learn(stripes.domains[0])
    assert copy_of(learners[0]).network is not None
    for learner in learners:
        learner.method.begin_stage(2, NO_IMAGES)
    one, two = (learner.method.state() for learner in learners)
    assert all(torch.equal(one[key], two[key]) for key in one if key != "kept")
