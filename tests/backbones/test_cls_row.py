"""`along_cls`: the features of the whole network, with gradients along the CLS token only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import Tensor, nn

from sodap.backbones import ClsPort, FrozenViT, build_backbone
from sodap.errors import SodapError

Run = Callable[..., Tensor]


def all_kinds() -> FrozenViT:
    """A ViT with every optional part of timm's plain block, and sharp attention."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vit = VisionTransformer(
            img_size=32,
            patch_size=8,
            embed_dim=24,
            depth=4,
            num_heads=3,
            num_classes=0,
            qk_norm=True,
            scale_attn_norm=True,
            init_values=0.5,
            reg_tokens=2,
            drop_path_rate=0.2,
        )
        for parameter in vit.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=1.5 * parameter.shape[1] ** -0.5)
            else:
                parameter.data += 0.3 * torch.randn_like(parameter)
    return FrozenViT(vit, name="all kinds", mean=(0.5,) * 3, std=(0.5,) * 3)


NETWORKS: dict[str, Callable[[], FrozenViT]] = {
    "micro": lambda: build_backbone("micro"),
    "all kinds": all_kinds,
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> FrozenViT:
    return NETWORKS[request.param]()


def images_for(network: FrozenViT, count: int = 3) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    side = network.image_size
    return network.prepare(torch.rand(count, 3, side, side, generator=draw))


class Editor(nn.Module):
    """Changes CLS before every block by a function of CLS."""

    def __init__(self, network: FrozenViT) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        shape = (network.depth, network.width, network.width)
        scale = network.width**-0.5
        self.weight = nn.Parameter(scale * torch.randn(shape, generator=draw))

    def cls(self, layer: int, tokens: Tensor) -> Tensor:
        return tokens[:, 0] + torch.tanh(tokens[:, 0].to(self.weight.dtype) @ self.weight[layer])


def learned(run: Run, images: Tensor, editor: Editor) -> tuple[Tensor, Tensor]:
    """The feature, and the gradient of a scalar function of it."""
    feature = run(images, cls=editor.cls)
    target = torch.linspace(-1, 1, feature.shape[-1], dtype=feature.dtype)
    (gradient,) = torch.autograd.grad((feature - target).square().sum(), [editor.weight])
    return feature.detach(), gradient


def with_constant_patches(network: FrozenViT, images: Tensor, editor: Editor) -> Run:
    """Reference: the whole network, with patch tokens replaced by constants of the same value."""
    constants: list[Tensor] = []

    def store(layer: int, tokens: Tensor) -> Tensor:
        constants.append(tokens.detach())
        return torch.cat([editor.cls(layer, tokens).unsqueeze(1), tokens[:, 1:]], 1)

    network(images, store)

    def run(images: Tensor, cls: ClsPort) -> Tensor:
        def port(layer: int, tokens: Tensor) -> Tensor:
            return torch.cat([cls(layer, tokens).unsqueeze(1), constants[layer][:, 1:]], 1)

        return cast(Tensor, network(images, port))

    return run


def test_values_are_those_of_the_network_and_gradients_those_of_cls(network: FrozenViT) -> None:
    network, images = network.double(), images_for(network).double()
    editor = Editor(network).double()
    reference = with_constant_patches(network, images, editor)
    value, gradient = learned(network.along_cls, images, editor)
    expected_value, expected = learned(reference, images, editor)
    torch.testing.assert_close(value, expected_value, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        gradient, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max())
    )
    full = learned(network, images, editor)[1]
    assert (gradient - full).norm() > 1e-3 * full.norm(), "the full gradient is another one"
    cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), full.flatten(), 0)
    assert cosine > 0.5


def test_values_are_equal_to_the_bit(network: FrozenViT) -> None:
    images, editor = images_for(network), Editor(network)
    for norm in (True, False):
        value = network.along_cls(images, cls=editor.cls, norm=norm)
        assert value.requires_grad
        assert torch.equal(value, network(images, cls=editor.cls, norm=norm))
        with torch.no_grad():
            assert torch.equal(value, network.along_cls(images, cls=editor.cls, norm=norm))


def test_single_precision_is_precise_enough(network: FrozenViT) -> None:
    images, editor = images_for(network), Editor(network)
    found = learned(network.along_cls, images, editor)[1]
    expected = learned(network.double().along_cls, images.double(), editor.double())[1]
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_bf16_is_as_precise_as_in_the_whole_network(network: FrozenViT) -> None:
    images, editor = images_for(network), Editor(network)
    runs: list[Run] = [network.along_cls, network]
    expected = [learned(run, images, editor)[1] for run in runs]
    network.round_weights(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = [learned(run, images, editor) for run in runs]
    assert torch.equal(found[0][0], found[1][0])
    row, full = (float((f[1] - e).norm() / e.norm()) for f, e in zip(found, expected, strict=True))
    assert row < 1.5 * full < 0.15


def test_little_memory_is_needed_for_the_backward_pass() -> None:
    network = build_backbone("deit_tiny", "random")
    images, editor = images_for(network, 1), Editor(network)

    def kept(run: Run) -> int:
        """Bytes that autograd saves, without the weights."""
        weights = {w.untyped_storage().data_ptr() for w in network.parameters()}
        held: dict[int, int] = {}

        def hold(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            value = run(images, cls=lambda at, tokens: tokens[:, 0] + editor.weight[at, 0])
        assert value.requires_grad
        return sum(held.values())

    assert kept(network.along_cls) < kept(network) / 20


@pytest.mark.parametrize("options", [{"block_fn": ResPostBlock}, {"gated": True}], ids=str)
def test_a_block_that_is_not_plain_is_refused(options: dict[str, Any]) -> None:
    others = {key: value for key, value in options.items() if key != "gated"}
    vit = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2, num_classes=0, **others
    )
    if "gated" in options:  # in newer versions of timm
        block: Any = vit.blocks[0]
        block.attn.gate = nn.Linear(12, 12)
    network = FrozenViT(vit, name="other", mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(SodapError, match=r"blocks of type \w+ take no .* plain blocks"):
        network.along_cls(images_for(network), cls=lambda layer, tokens: tokens[:, 0])


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # caused by torch itself
def test_compiled_blocks_agree() -> None:
    plain, compiled = build_backbone("micro"), build_backbone("micro")
    compiled.compile_blocks("aot_eager")
    images, editor = images_for(plain), Editor(plain)
    found = learned(compiled.along_cls, images, editor)
    torch.testing.assert_close(
        found, learned(plain.along_cls, images, editor), rtol=1e-4, atol=1e-4
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_agrees_and_does_not_synchronise(network: FrozenViT) -> None:
    images, editor = images_for(network), Editor(network)
    expected = learned(network.along_cls, images, editor)
    network, images, editor = network.cuda(), images.cuda(), editor.cuda()
    runs: list[Run] = [network.along_cls, network]
    values = [run(images, cls=editor.cls).detach() for run in runs]
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=1e-6)
    target = torch.linspace(-1, 1, network.width, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        off = network.along_cls(images, cls=editor.cls) - target
        (gradient,) = torch.autograd.grad(off.square().sum(), [editor.weight])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (gradient.cpu() - expected[1]).norm() < 1e-3 * expected[1].norm()
