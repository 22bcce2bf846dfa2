from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from sodap.backbones import SHORT_NAMES, FrozenViT, build_backbone, native_size
from sodap.errors import SodapError
from sodap.streams.images import read_image

TEST_VIT = "test_vit"  # timm's own miniature


def random_images(size: int, count: int = 2) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_tokens_are_those_of_timm(micro: FrozenViT) -> None:
    images = micro.prepare(random_images(32))
    expected = micro.vit.forward_features(images)
    assert torch.equal(micro.norm(micro.tokens(images)), expected)
    # The last block computes CLS alone, with another order of sums.
    torch.testing.assert_close(micro(images), expected[:, 0], rtol=1e-5, atol=1e-5)


def test_the_last_block_may_compute_cls_alone(micro: FrozenViT) -> None:
    """Values and gradients are the same, of inserted tensors and of the network's weights."""
    network = micro.trainable_copy().double()
    images = network.prepare(random_images(32).double() / 255)
    shift = torch.zeros(network.depth, network.width, dtype=torch.float64, requires_grad=True)

    def cls(layer: int, tokens: Tensor) -> Tensor:
        return tokens[:, 0] + shift[layer]

    learned = [shift, *network.vit.parameters()]
    alone = network(images, cls=cls)
    among_all = network.norm(network.tokens(images, cls=cls))[:, 0]
    torch.testing.assert_close(alone, among_all, rtol=1e-12, atol=1e-12)
    for one, two in zip(
        torch.autograd.grad(alone.square().sum(), learned, allow_unused=True),
        torch.autograd.grad(among_all.square().sum(), learned, allow_unused=True),
        strict=True,
    ):
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["test_vit", "deit_tiny_distilled_patch16_224", "vit_tiny_patch16_224"]
)
def test_features_of_timm_vits_with_a_class_token(name: str) -> None:
    backbone = build_backbone(name, "random", 32)
    images = backbone.prepare(random_images(40))
    expected = backbone.vit.forward_features(images)
    torch.testing.assert_close(backbone(images), expected[:, 0])
    assert backbone(images).shape == (2, backbone.width)


def test_register_tokens_come_after_cls() -> None:
    backbone = build_backbone("vit_small_patch14_reg4_dinov2", "random", 28)
    assert backbone.prefix_tokens == 5
    shapes: list[torch.Size] = []

    def port(layer: int, tokens: Tensor) -> Tensor:
        shapes.append(tokens.shape)
        return tokens

    backbone(backbone.prepare(random_images(28)), port)
    assert shapes == [(2, 5 + 4, 384)] * 12


def test_a_port_is_called_before_every_block_and_may_edit(micro: FrozenViT) -> None:
    images = micro.prepare(random_images(32))
    seen: list[int] = []

    def port(layer: int, tokens: Tensor) -> Tensor:
        seen.append(layer)
        return torch.cat([tokens[:, :1] + 0.5, tokens[:, 1:]], dim=1)

    edited = micro(images, port)
    assert seen == list(range(micro.depth))
    assert not torch.allclose(edited, micro(images))


def test_a_frozen_vit_is_never_in_training_mode(micro: FrozenViT) -> None:
    micro.train()
    assert not any(module.training for module in micro.modules())
    assert not any(parameter.requires_grad for parameter in micro.parameters())


def test_features_without_the_last_norm(micro: FrozenViT) -> None:
    images = micro.prepare(random_images(32))
    torch.testing.assert_close(micro.vit.norm(micro(images, norm=False)), micro(images))


def test_prepare_resizes_and_normalises(micro: FrozenViT) -> None:
    bytes_ = (random_images(32) * 255).to(torch.uint8)
    torch.testing.assert_close(
        micro.prepare(bytes_), (bytes_.float() / 255 - micro.mean) / micro.std
    )
    assert micro.prepare(random_images(50)).shape == (2, 3, 32, 32)


@pytest.mark.parametrize("shape", [(60, 44), (44, 60), (32, 70), (20, 50), (301, 200), (200, 257)])
def test_tensors_and_files_are_cropped_alike(
    micro: FrozenViT, tmp_path: Path, shape: tuple[int, int]
) -> None:
    """Of an image that is not square, the centre is used."""
    coarse = np.random.default_rng(0).integers(0, 256, (5, 5, 3), np.uint8)
    picture = Image.fromarray(coarse).resize(shape, Image.Resampling.BICUBIC)
    picture.save(tmp_path / "a.png")
    file = read_image(tmp_path / "a.png", 32)
    tensor = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    for images in (tensor, tensor / 255):
        found = micro.pixels(micro.prepare(images[None]))[0]
        assert (found.float() - file.float()).abs().mean() < 1
        assert (found.float() - file.float()).abs().max() < 5
    stretched = F.interpolate(tensor[None].float(), (32, 32), mode="bicubic", antialias=True)[0]
    assert (stretched - file.float()).abs().mean() > 10, "a stretched image is clearly different"


def test_different_weights_have_different_digests(micro: FrozenViT) -> None:
    one, two = (build_backbone("micro", "random", seed=seed) for seed in (0, 1))
    assert one.digest() == build_backbone("micro", "random", seed=0).digest()
    assert len({micro.digest(), one.digest(), two.digest()}) == 3


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_from_a_file(tmp_path: Path, suffix: str) -> None:
    vit = timm.create_model("test_vit", num_classes=10)
    path = tmp_path / f"weights.{suffix}"
    if suffix == "safetensors":
        safetensors.torch.save_file(vit.state_dict(), path)
    else:
        torch.save({"model": vit.state_dict()}, path)
    backbone = build_backbone(TEST_VIT, str(path), 160)
    wanted, found = vit.state_dict(), backbone.vit.state_dict()
    assert all(torch.equal(found[key], wanted[key]) for key in found)
    larger = build_backbone(TEST_VIT, str(path), 192)
    assert larger.vit.state_dict()["pos_embed"].shape[1] == 1 + (192 // 16) ** 2


def test_wrong_weight_files_are_refused(tmp_path: Path) -> None:
    state = timm.create_model("test_vit", num_classes=0).state_dict()

    def attempt(changed: dict[str, Tensor], name: str = TEST_VIT) -> str:
        path = tmp_path / "weights.safetensors"
        safetensors.torch.save_file(changed, path)
        with pytest.raises(SodapError) as caught:
            build_backbone(name, str(path))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    lacking = {k: v for k, v in state.items() if k != "norm.bias"}
    assert "missing: norm.bias" in attempt(lacking)
    assert "unknown: extra" in attempt(state | {"extra": torch.zeros(1)})
    assert "wrong shape: cls_token" in attempt(state | {"cls_token": torch.zeros(1, 1, 3)})
    assert "not finite" in attempt(state | {"norm.bias": state["norm.bias"] * float("nan")})
    assert "16-pixel patches" in attempt(state, "vit_small_patch14_dinov2")
    (tmp_path / "text.pth").write_text("not weights")
    with pytest.raises(SodapError, match="cannot be read as model weights"):
        build_backbone(TEST_VIT, str(tmp_path / "text.pth"))
    with pytest.raises(SodapError, match="no weights file"):
        build_backbone(TEST_VIT, str(tmp_path / "none.pth"))


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (str(tmp_path / "harm"),))

    torch.save({"a": Harm()}, tmp_path / "weights.pth")
    with pytest.raises(SodapError, match="cannot be read"):
        build_backbone(TEST_VIT, str(tmp_path / "weights.pth"))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("nothing", None, "no backbone is called 'nothing'"),
        ("resnet18", None, "not a ViT with a class token"),
        ("vit_base_patch16_siglip_224", None, "not a ViT with a class token"),
        ("vit_small_patch16_18x2_224", 32, "not a ViT with one attention per block"),
        (TEST_VIT, 100, "do not fill 100 pixels"),
    ],
)
def test_unsuitable_backbones_are_refused(name: str, size: int | None, words: str) -> None:
    with pytest.raises(SodapError, match=words):
        build_backbone(name, "random", size)


def test_downloading_weights_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SodapError, match="cannot be downloaded"):
        build_backbone("deit_tiny")


@pytest.mark.parametrize(("name", "architecture"), SHORT_NAMES.items())
def test_short_names_are_models_of_timm(name: str, architecture: str) -> None:
    config = timm.get_pretrained_cfg(architecture)
    assert config is not None
    assert native_size(name) == native_size(architecture) == min(config.input_size[-1], 224)
    assert native_size("micro") == 32


def test_names_and_sizes_are_known_without_torch() -> None:
    code = (
        "import sys; from sodap.backbones import native_size; "
        "print(native_size('micro'), native_size('vit_base'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["32", "224", "False"]


def test_real_deit(shared: Path) -> None:
    backbone = build_backbone(
        "deit_tiny", str(shared / "weights" / "deit_tiny_patch16_224.safetensors")
    )
    assert (backbone.width, backbone.depth, backbone.heads) == (192, 12, 3)
    assert backbone(backbone.prepare(random_images(64))).isfinite().all()


def test_real_dinov2_in_half_precision(shared: Path) -> None:
    path = shared / "weights" / "vit_small_patch14_dinov2_saliency_fp16.safetensors"
    backbone = build_backbone("dinov2_small", str(path))
    assert backbone.image_size == 224
    positions = backbone.vit.state_dict()["pos_embed"]
    assert positions.shape[1] == 1 + 16 * 16
    assert positions.dtype == torch.float32
    with pytest.raises(SodapError, match="14-pixel patches"):
        build_backbone("deit_small", str(path))


# ---------------------------------------------------------------- ports inside the blocks


def plain_attention(tokens: Tensor, block: Any, keys: Tensor, values: Tensor) -> Tensor:
    """Attention over further keys and values, head by head, in double precision."""
    attention = block.attn
    heads, width = attention.num_heads, attention.head_dim
    weight, bias = attention.qkv.weight.double(), attention.qkv.bias.double()
    q, k, v = (tokens.double() @ weight.T + bias).chunk(3, dim=-1)
    found = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        all_keys = torch.cat([keys.double()[..., part], k[..., part]], 1)
        all_values = torch.cat([values.double()[..., part], v[..., part]], 1)
        scores = (q[..., part] @ all_keys.mT / width**0.5).softmax(-1)
        found.append(scores @ all_values)
    attended = torch.cat(found, -1)
    projected: Tensor = attended @ attention.proj.weight.double().T + attention.proj.bias.double()
    return projected


def test_a_prefix_is_attended_to(micro: FrozenViT) -> None:
    images = micro.prepare(random_images(32))
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(2, 3, micro.width, generator=generator) for _ in range(2))
    block: Any = micro.vit.blocks[1]
    entering: list[Tensor] = []

    def prefix(layer: int, tokens: Tensor) -> tuple[Tensor, Tensor] | None:
        entering.append(tokens)
        return (keys, values) if layer == 1 else None

    micro.tokens(images, prefix=prefix)
    before, after = entering[1], entering[2]
    middle = before + block.ls1(
        plain_attention(block.norm1(before), block, keys, values).to(before)
    )
    expected = middle + block.ls2(block.mlp(block.norm2(middle)))
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)


def test_empty_prefixes_and_adapters_change_nothing(micro: FrozenViT) -> None:
    images = micro.prepare(random_images(32))
    none = torch.zeros(2, 0, micro.width)
    for found in (
        micro(images, prefix=lambda layer, tokens: (none, none)),
        micro(images, parallel=lambda layer, tokens: torch.zeros_like(tokens)),
        micro(images, parallel=lambda layer, tokens: None),
    ):
        torch.testing.assert_close(found, micro(images), rtol=0, atol=1e-5)


def test_an_adapter_in_parallel_to_the_mlp(micro: FrozenViT) -> None:
    images = micro.prepare(random_images(32))
    last = micro.depth - 1
    moved = micro.tokens(images, parallel=lambda at, tokens: tokens * 0.5 if at == last else None)
    seen: list[Tensor] = []
    micro.tokens(images, parallel=lambda at, tokens: seen.append(tokens))
    torch.testing.assert_close(moved, micro.tokens(images) + 0.5 * seen[last])


def test_added_tokens_pass_through_all_blocks(micro: FrozenViT) -> None:
    images = micro.prepare(random_images(32))
    extra = torch.zeros(2, 4, micro.width)

    def port(layer: int, tokens: Tensor) -> Tensor:
        return torch.cat([tokens[:, :1], extra, tokens[:, 1:]], 1) if layer == 0 else tokens

    assert micro.tokens(images, port).shape[1] == micro.tokens(images).shape[1] + 4


def test_training_a_copy_does_not_change_the_frozen_network(micro: FrozenViT) -> None:
    before = micro.digest()
    copy = micro.trainable_copy().train()
    images = micro.prepare(random_images(32))
    torch.testing.assert_close(copy(images), micro(images))
    copy(images).square().sum().backward()
    torch.optim.SGD(copy.parameters(), 0.1).step()
    assert micro.digest() == before != copy.digest()
    assert all(parameter.requires_grad for parameter in copy.parameters())


def test_pixels_is_the_inverse_of_prepare(micro: FrozenViT) -> None:
    images = (random_images(32, 4) * 255).to(torch.uint8)
    assert torch.equal(micro.pixels(micro.prepare(images)), images)


def test_rounded_weights_give_the_features_of_autocast() -> None:
    plain, rounded = build_backbone("micro"), build_backbone("micro")
    digest = plain.digest()
    rounded.round_weights(torch.bfloat16)
    images = plain.prepare(random_images(32))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rounded(images), plain(images))
    assert rounded.digest() == digest, "the digest is that of the loaded weights"
    assert all(p.dtype == torch.float32 for p in rounded.trainable_copy().parameters())


@pytest.mark.slow
def test_compiled_blocks_predict_the_same(micro: FrozenViT) -> None:
    compiled = build_backbone("micro")
    compiled.compile_blocks()
    images = micro.prepare(random_images(32))
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), micro(images), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # caused by torch itself
def test_compiled_blocks_have_the_same_gradients(micro: FrozenViT) -> None:
    compiled = build_backbone("micro")
    compiled.compile_blocks("aot_eager")  # to generate code for a backward pass takes a minute
    images = micro.prepare(random_images(32))
    shift = torch.randn(micro.width, generator=torch.Generator().manual_seed(1))
    found: list[Tensor] = []
    expected: list[Tensor] = []
    for vit, features in ((compiled, found), (micro, expected)):
        pull = shift.clone().requires_grad_()
        feature = vit(images, cls=lambda layer, tokens: tokens[:, 0] + pull)  # noqa: B023
        feature.square().sum().backward()
        assert pull.grad is not None
        features += [feature.detach(), pull.grad]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
