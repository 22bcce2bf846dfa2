"""Methods that train a copy of the backbone: what changes, and joint training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from sodap.backbones import FrozenViT
from sodap.errors import SodapError
from sodap.methods.der import Der
from sodap.methods.ewc import OnlineEwc
from sodap.methods.finetune import Finetune
from sodap.methods.joint import Joint
from sodap.methods.lwf import Lwf
from sodap.runs import RunConfig, run
from sodap.streams import Stream
from tests.conftest import NO_IMAGES
from tests.methods.common import (
    CLASSES,
    HEAD,
    TRAINING,
    build,
    images_of,
    learner_of,
    losses_of,
)

# The micro ViT, by hand: width 128, six blocks, 4-pixel patches of 32-pixel images.
NETWORK = (
    128 * (3 * 4 * 4 + 1)  # patch embedding
    + 128 * (1 + 65)  # CLS token, positions
    + 6 * (2 * 2 * 128 + (128 + 1) * 3 * 128 + (128 + 1) * 128)  # norms, qkv, projection
    + 6 * ((128 + 1) * 4 * 128 + (4 * 128 + 1) * 128)  # MLP
    + 2 * 128  # last norm
)


@pytest.mark.parametrize("method", [Finetune, Joint, Lwf, Der, OnlineEwc])
def test_the_copy_learns_and_the_backbone_does_not(method: type[Finetune], stripes: Stream) -> None:
    options = {"fisher_images": 4} if method is OnlineEwc else {}
    learner, model = learner_of(method, **options)
    frozen, network = model.backbone.digest(), model.network
    assert network is not None
    assert network.digest() == frozen, "the copy starts from the pretrained weights"
    learner.learn(stripes.domains[0])
    assert model.backbone.digest() == frozen
    assert network.digest() != frozen
    assert not any(p.requires_grad for p in model.backbone.parameters())
    assert model.trainable_count() == NETWORK + HEAD


def test_every_weight_gets_a_gradient(micro: FrozenViT) -> None:
    model, images = build(Finetune, micro), images_of(micro, 6)
    losses = losses_of(model, images)
    assert list(losses) == ["ce"]
    torch.testing.assert_close(
        losses["ce"], F.cross_entropy(model(images), torch.arange(6) % CLASSES)
    )
    torch.autograd.backward(losses["ce"])
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == NETWORK + HEAD
    assert all(p.grad is not None and bool(p.grad.any()) for p in trained)


def test_the_network_has_a_small_learning_rate_and_no_decay(micro: FrozenViT) -> None:
    model = build(Finetune, micro, network_lr=0.25)
    groups = model.parameter_groups(lr=0.1, weight_decay=0.5)
    rates = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert model.network is not None
    assert rates.pop(id(model.head.weight)) == (0.1, 0.5)
    assert rates.pop(id(model.head.bias)) == (0.1, 0.0)
    assert set(rates) == {id(p) for p in model.network.parameters()}
    assert set(rates.values()) == {(0.025, 0)}


@pytest.mark.parametrize("method", [Joint, Lwf])
def test_a_head_alone_needs_no_copy(method: type[Finetune], stripes: Stream) -> None:
    learner, model = learner_of(method, trained="head")
    learner.learn(stripes.domains[0])
    assert model.network is None
    assert model.trainable_count() == HEAD
    assert not any("vit" in name for name in model.state())
    with pytest.raises(SodapError, match=f"option 'trained' of {method.name}"):
        learner_of(method, trained="nothing")


# ------------------------------------------------------------------ joint training


def test_joint_gets_all_domains_and_says_so(stripes: Stream, tmp_path: Path) -> None:
    options = {"trained": "head"}
    config = RunConfig(method="joint", training=TRAINING, options=options, device="cpu")
    record = run(config, tmp_path / "run", stream=stripes)
    kept = [[asset.images for asset in stage.stored or ()] for stage in record.stages]
    assert kept == [[24, 12], [48, 24]]
    assert record.stages[1].stored is not None
    assert record.stages[1].stored[0].bytes == 48 * 3 * 32 * 32
    assert [stage.domain for stage in record.stages] == ["domain 0", "domain 1"]
    assert (Joint.learns_all_domains, Finetune.learns_all_domains) == (True, False)


def test_joint_starts_every_stage_from_the_same_weights(stripes: Stream) -> None:
    learner, model = learner_of(Joint)
    initial = {name: tensor.clone() for name, tensor in model.state().items()}
    learner.learn(stripes.domains[0])
    assert not torch.equal(model.state()["head.weight"], initial["head.weight"])
    model.begin_stage(2, NO_IMAGES)
    state = model.state()
    assert all(torch.equal(state[name], initial[name]) for name in initial if name != "kept")
