"""CLIP's text encoder as the head of MoE-Adapters."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from sodap.backbones import FrozenViT
from sodap.backbones.weights import load_weights
from sodap.errors import SodapError
from sodap.methods.moe_adapters import MoeAdapters
from sodap.methods.parts.text_head import TextHead
from tests.methods.common import build, drawn

WORDINGS = ("a photo of a cat", "a photo of a dog", "a drawing of a house")


def text_method(backbone: FrozenViT, **options: Any) -> MoeAdapters:
    return build(MoeAdapters, backbone, head="text", experts=3, bottleneck=8, **options).eval()


def test_logits_against_cosines() -> None:
    head = TextHead(drawn(8, 5), drawn(3, 5, seed=1), torch.tensor(20.0))
    features = drawn(4, 8, seed=2)
    found = head(features.float())
    for b, c in np.ndindex(4, 3):
        image, text = (features[b] @ drawn(8, 5)).numpy(), drawn(3, 5, seed=1)[c].numpy()
        cosine = image @ text / np.linalg.norm(image) / np.linalg.norm(text)
        assert float(found[b, c]) == pytest.approx(20 * cosine, abs=1e-4)
    assert not list(head.parameters())


def test_missing_options_files_and_packages(
    micro: FrozenViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clip.safetensors"
    options = {"prompts": WORDINGS, "text_model": "ViT-B-16", "text_weights": str(file)}
    for missing in options:
        rest = {key: value for key, value in options.items() if key != missing}
        with pytest.raises(SodapError, match=r"needs prompts \(3 wordings"):
            text_method(micro, **rest)
    with pytest.raises(SodapError, match="no weights file"):
        text_method(micro, **options)
    save_file({"nothing": torch.zeros(1)}, file)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(SodapError, match=r"pip install 'sodap\[clip\]'"):
        text_method(micro, **options)


def test_a_clip_model_as_backbone_and_head(tmp_path: Path) -> None:
    open_clip = pytest.importorskip(
        "open_clip", reason="open_clip is not installed (pip install 'sodap[clip]')"
    )
    shape = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 32,
            "heads": 2,
            "layers": 1,
        },
    }
    (tmp_path / "Tiny-CLIP.json").write_text(json.dumps(shape))
    (tmp_path / "Other-CLIP.json").write_text(json.dumps(shape | {"embed_dim": 16}))
    open_clip.add_model_config(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip = open_clip.create_model("Tiny-CLIP").eval()
    file = tmp_path / "clip.safetensors"
    save_file({key: value.contiguous() for key, value in clip.state_dict().items()}, file)

    vit = VisionTransformer(32, 8, num_classes=0, embed_dim=64, depth=2, num_heads=1, pre_norm=True)
    for module in vit.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5
    other = copy.deepcopy(vit)
    load_weights(vit, file, "tiny")
    options = {"prompts": WORDINGS, "text_model": "Tiny-CLIP", "text_weights": str(file)}

    def frozen(network: VisionTransformer) -> FrozenViT:
        return FrozenViT(network, name="tiny", mean=(0.5,) * 3, std=(0.5,) * 3)

    method = text_method(frozen(vit), **options)
    images = drawn(4, 3, 32, 32).float()
    with torch.no_grad():
        joint = clip.encode_image(images)
        texts = clip.encode_text(open_clip.get_tokenizer("Tiny-CLIP")(list(WORDINGS)))
        cosines = torch.nn.functional.cosine_similarity(joint[:, None], texts[None], dim=-1)
        expected = clip.logit_scale.exp() * cosines
    torch.testing.assert_close(method(images), expected, rtol=1e-4, atol=1e-4)
    assert method.trainable_count() == sum(block.trainable_count() for block in method._blocks())
    assert torch.optim.AdamW(method.parameter_groups(0.1, 0.1))

    with pytest.raises(SodapError, match="is not the image encoder"):
        text_method(frozen(other), **options)
    with pytest.raises(SodapError, match="no model 'Tiny'"):
        text_method(frozen(vit), **options | {"text_model": "Tiny"})
    with pytest.raises(SodapError, match="does not fit the model Other-CLIP"):
        text_method(frozen(vit), **options | {"text_model": "Other-CLIP"})
