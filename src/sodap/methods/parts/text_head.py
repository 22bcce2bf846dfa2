"""CLIP's frozen text encoder as classifier: one wording per class, nothing to train.

Needs the package open_clip and a file of CLIP weights. The frozen backbone must be the image
encoder of the same file, because the projection into the joint space fits no other weights.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sodap.errors import SodapError

if TYPE_CHECKING:
    from sodap.backbones import FrozenViT


class TextHead(nn.Module):
    """Logits from the cosine between an image and the wording of each class."""

    projection: Tensor  # [D, J], from features into the joint space
    texts: Tensor  # [C, J], unit rows
    scale: Tensor  # []

    def __init__(self, projection: Tensor, texts: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("projection", projection.detach().float().clone())
        self.register_buffer("texts", F.normalize(texts.detach().float(), dim=-1))
        self.register_buffer("scale", scale.detach().float().clone())

    def forward(self, features: Tensor) -> Tensor:
        """Logits in float32, also under autocast: `[B, D] -> [B, C]`."""
        with torch.autocast(features.device.type, enabled=False):
            joint = F.normalize(features.float() @ self.projection, dim=-1)
            return self.scale * joint @ self.texts.T


def clip_text_head(
    backbone: FrozenViT,
    classes: int,
    prompts: Sequence[str],
    text_model: str | None,
    text_weights: str | None,
) -> TextHead:
    """Text head of a CLIP file, for a backbone that is the image encoder of that file."""
    if len(prompts) != classes or text_model is None or text_weights is None:
        raise SodapError(
            f"head=text needs prompts ({classes} wordings, one per class, but there are "
            f"{len(prompts)}), text_model (a model of open_clip) and text_weights (a file)"
        )
    from sodap.backbones.weights import read_state  # imports timm

    state = read_state(Path(text_weights))
    clip, tokenize = _open_clip(text_model)
    try:
        clip.load_state_dict(state.get("state_dict", state))
    except (RuntimeError, AttributeError) as error:
        raise SodapError(
            f"{text_weights} does not fit the model {text_model} of open_clip"
        ) from error
    projection = getattr(clip.visual, "proj", None)
    if not isinstance(projection, Tensor) or not _same_encoder(backbone, clip.visual):
        raise SodapError(
            f"backbone {backbone.name} is not the image encoder of {text_weights}; choose "
            f"timm's CLIP ViT of the same shape with weights={text_weights}"
        )
    with torch.inference_mode():
        texts = clip.encode_text(tokenize(list(prompts)))
    return TextHead(projection, texts.clone(), clip.logit_scale.exp())


def _open_clip(name: str) -> tuple[Any, Any]:
    """A model of open_clip with random weights, and its tokenizer."""
    try:
        package = importlib.import_module("open_clip")
    except ImportError as error:
        raise SodapError(
            "head=text needs the package open_clip: pip install 'sodap[clip]'"
        ) from error
    if name not in package.list_models():
        raise SodapError(f"open_clip has no model '{name}'; choose a name like ViT-B-16")
    try:
        with torch.random.fork_rng(devices=[]):  # the random weights are replaced later
            return package.create_model(name).eval(), package.get_tokenizer(name)
    except Exception as error:  # some text encoders of other libraries are downloaded
        raise SodapError(
            f"open_clip cannot build {name} without a download ({type(error).__name__}); "
            f"choose a model with CLIP's own text encoder, such as ViT-B-16"
        ) from error


def _same_encoder(backbone: FrozenViT, visual: Any) -> bool:
    """Whether the first and last weights agree, up to half-precision storage."""
    vit = backbone.vit
    pairs = [
        (vit.patch_embed.proj.weight, getattr(getattr(visual, "conv1", None), "weight", None)),
        (vit.norm.weight, getattr(getattr(visual, "ln_post", None), "weight", None)),
    ]
    return all(
        isinstance(theirs, Tensor)
        and ours.shape == theirs.shape
        and torch.allclose(cast(Tensor, ours), theirs, rtol=1e-2, atol=1e-3)
        for ours, theirs in pairs
    )
