"""The shortcuts of `PortedViT` give the values and gradients of timm's forward pass.

Patch embedding as a matrix product, sums delayed to the next block, CLS replaced by torch.where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.backbones.test_cls_row import Editor, all_kinds, images_for
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from sodap.backbones import FrozenViT, build_backbone
from sodap.backbones.block import replace_cls
from sodap.backbones.patches import _is_product, _product, embed

NETWORKS: dict[str, Callable[[], FrozenViT]] = {
    "micro": lambda: build_backbone("micro"),
    "all kinds": all_kinds,
    "registers": lambda: build_backbone("vit_small_patch14_reg4_dinov2", "random", 28),
    "distilled": lambda: build_backbone("deit_tiny_distilled_patch16_224", "random", 32),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> FrozenViT:
    return NETWORKS[request.param]()


def timm_tokens(network: FrozenViT, images: Tensor, editor: Editor) -> Tensor:
    """Tokens after the last block `[B, N, D]`, computed by timm's modules."""
    vit = network.vit
    tokens: Tensor = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    for layer, block in enumerate(vit.blocks):
        cls = editor.cls(layer, tokens)
        tokens = block(torch.cat([cls.to(tokens.dtype).unsqueeze(1), tokens[:, 1:]], 1))
    return tokens


def learned(tokens: Tensor, editor: Editor) -> tuple[Tensor, Tensor]:
    """CLS, and the gradient of a scalar function of it."""
    cls = tokens[:, 0].to(editor.weight.dtype)
    target = torch.linspace(-1, 1, cls.shape[-1], dtype=cls.dtype)
    (gradient,) = torch.autograd.grad((cls - target).square().sum(), [editor.weight])
    return cls.detach(), gradient


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_values_and_gradients(network: FrozenViT, dtype: torch.dtype, digits: float) -> None:
    network, images = network.to(dtype), images_for(network).to(dtype)
    editor = Editor(network).to(dtype)
    expected = timm_tokens(network, images, editor)
    whole = network.tokens(images, cls=editor.cls)
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(whole, expected, rtol=0, atol=digits * scale)
    with torch.no_grad():  # CLS is replaced in place
        torch.testing.assert_close(network.tokens(images, cls=editor.cls), whole.detach())
    value, gradient = learned(expected, editor)
    for tokens in (whole, network.tokens(images, cls=editor.cls, only_cls=True)):
        found, grad = learned(tokens, editor)
        torch.testing.assert_close(found, value, rtol=0, atol=digits * scale)
        assert (grad - gradient).norm() < 10 * digits * gradient.norm()


def test_bf16_is_as_precise_as_with_timm(network: FrozenViT) -> None:
    images, editor = images_for(network), Editor(network)
    with torch.no_grad():
        true = timm_tokens(network, images, editor)[:, 0]
        with torch.autocast("cpu", torch.bfloat16):
            theirs = timm_tokens(network, images, editor)[:, 0].float()
            ours = network.tokens(images, cls=editor.cls, only_cls=True)[:, 0].float()
    assert (ours - true).norm() < 1.5 * (theirs - true).norm() + 1e-6


def test_a_cls_port_gets_cls_alone_after_the_first_block(network: FrozenViT) -> None:
    images, shapes = images_for(network), []

    def port(layer: int, tokens: Tensor) -> Tensor:
        shapes.append(tuple(tokens.shape[1:2]))
        return tokens[:, 0]

    for other in (None, lambda layer, tokens: tokens):
        shapes.clear()
        network.tokens(images, other, cls=port)
        assert shapes[0] != (1,)
        assert shapes[1:] == [(1,)] * (network.depth - 1)


def test_hooks_of_blocks_are_called() -> None:
    network = build_backbone("micro")
    images, calls = images_for(network), []
    expected = network(images)
    hook = network.vit.blocks[1].register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(network(images), expected)
    assert calls == [1]
    hook.remove()
    network(images)
    assert calls == [1]


def test_the_last_block_computes_cls_alone_with_any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_backbone("micro")
    images, short, to_cls = images_for(network), [], network._block_for_cls

    def count(*given: Any) -> Tensor:
        short.append(1)
        return to_cls(*given)

    monkeypatch.setattr(network, "_block_for_cls", count)
    network(images)
    network(images, lambda layer, tokens: tokens)
    network(images, cls=lambda layer, tokens: tokens[:, 0])
    network(images, prefix=lambda layer, tokens: None)
    assert len(short) == 4
    network.tokens(images)
    assert len(short) == 4


def test_a_subclass_of_block_is_called_as_a_whole() -> None:
    class Louder(Block):
        def forward(self, x: Tensor, *given: Any, **more: Any) -> Tensor:
            return 2 * super().forward(x, *given, **more)

    network = build_backbone("micro")
    images, plain = images_for(network), network(images_for(network))
    network.vit.blocks[2].__class__ = Louder
    assert not torch.allclose(network(images), plain)
    torch.testing.assert_close(network(images), network.vit.forward_features(images)[:, 0])


def test_compiled_replacement_of_cls() -> None:
    tokens, cls = torch.randn(3, 5, 8), torch.randn(3, 8, dtype=torch.float64)
    chosen = torch.compile(replace_cls, backend="eager")
    with torch.no_grad():
        assert torch.equal(chosen(tokens, cls), replace_cls(tokens, cls))


def patches(**options: Any) -> PatchEmbed:
    return PatchEmbed(img_size=24, patch_size=8, in_chans=3, embed_dim=10, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"norm_layer": nn.LayerNorm}, {"strict_img_size": False}],
    ids=str,
)
def test_patch_embedding_as_a_product(options: dict[str, Any]) -> None:
    cut = patches(**options).double()
    assert _is_product(cut)
    images = torch.randn(2, 3, 24, 24, dtype=torch.float64, requires_grad=True)
    found, expected = _product(cut, images), cut(images)
    torch.testing.assert_close(found, expected)
    signal = torch.randn_like(found)
    wanted = [images, *cut.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(found, wanted, signal), torch.autograd.grad(expected, wanted, signal)
    )


def test_other_patch_embeddings_are_left_to_timm() -> None:
    assert not _is_product(patches(output_fmt="NHWC"))
    assert not _is_product(patches(dynamic_img_pad=True))
    assert not _is_product(nn.Conv2d(3, 8, 4))
    overlapping = patches()
    overlapping.proj = nn.Conv2d(3, 10, 8, stride=4)
    assert not _is_product(overlapping)


def test_embedded_tokens_are_those_of_timm(network: FrozenViT) -> None:
    images, vit = images_for(network), network.vit
    expected = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    assert torch.equal(embed(vit, images), expected)
