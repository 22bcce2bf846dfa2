"""ViTs with ports, and their frozen form.

The wrapper runs timm's own modules and opens each block at a few points. A prompt method is what it
puts into a port, so no method needs a ViT of its own.

              port, cls                     prefix                        parallel
    tokens ──▶ (edit, or ──▶ norm ──▶ attention over keys ──▶ + ──▶ norm ──▶ MLP ──▶ + ──▶ next
                add, tokens)           and values as well               and an adapter

Through `lora` the linear layers of attention and MLP get other weights or low-rank residuals.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from sodap.backbones.block import (
    add_attention,
    add_mlp,
    attend,
    block_for_cls,
    block_without_last_sum,
    is_plain,
    qkv,
    replace_cls,
    require_plain,
    split_heads,
)
from sodap.backbones.cls_row import block_along_cls
from sodap.backbones.low_rank import BlockLora
from sodap.backbones.patches import embed
from sodap.backbones.pixels import central_square, standardise
from sodap.backbones.ports import ClsPort, Lora, ParallelAdapter, Port, Prefix

_RECOMPILE_LIMIT = 32
"""Maximum number of compiled variants of a block (training, prediction, batch sizes)."""


class PortedViT(nn.Module):
    """A ViT that maps images to CLS features, with ports in every block."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        name: str,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__()
        self.vit = vit
        self.name = name
        self.width: int = vit.embed_dim
        self.depth: int = len(vit.blocks)
        self.heads: int = cast(Any, vit.blocks[0]).attn.num_heads
        self.image_size: int = vit.patch_embed.img_size[0]
        self.prefix_tokens: int = vit.num_prefix_tokens
        # Replaced by their compiled forms in `compile_blocks`.
        self._standardise = standardise
        self._embed = embed
        self._plain_block = _plain_block
        self._lora_block = _lora_block
        self._block_without_last_sum = block_without_last_sum
        self._block_for_cls = block_for_cls
        self._block_along_cls = block_along_cls
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def prepare(self, images: Tensor) -> Tensor:
        """Crop, resize and normalise images `[B, 3, H, W]` (uint8, or floats in [0, 1]).

        Of an image that is not square, the central square is taken.
        """
        size = (self.image_size, self.image_size)
        images = central_square(images)
        if images.shape[-2:] != size:
            if images.dtype == torch.uint8:
                images = images.float().div_(255)
            images = F.interpolate(images, size, mode="bicubic", antialias=True).clamp_(0, 1)
        return self._standardise(images, self.mean, self.std)

    def pixels(self, prepared: Tensor) -> Tensor:
        """Inverse of `prepare`, for methods that store images: uint8 `[B, 3, S, S]`."""
        return (prepared * self.std + self.mean).mul(255).round_().clamp_(0, 255).to(torch.uint8)

    def forward(
        self,
        images: Tensor,
        port: Port | None = None,
        *,
        cls: ClsPort | None = None,
        prefix: Prefix | None = None,
        parallel: ParallelAdapter | None = None,
        lora: Lora | None = None,
        norm: bool = True,
    ) -> Tensor:
        """Prepared images `[B, 3, S, S]` -> CLS feature `[B, D]`, after the final LayerNorm."""
        ports: dict[str, Any] = {"cls": cls, "prefix": prefix, "parallel": parallel, "lora": lora}
        last = self.tokens(images, port, **ports, only_cls=True)[:, 0]
        return self.norm(last) if norm else last

    def tokens(
        self,
        images: Tensor,
        port: Port | None = None,
        *,
        cls: ClsPort | None = None,
        prefix: Prefix | None = None,
        parallel: ParallelAdapter | None = None,
        lora: Lora | None = None,
        only_cls: bool = False,
    ) -> Tensor:
        """Tokens after the last block `[B, N, D]`, not normalised.

        With `only_cls` the last block computes CLS alone, `[B, 1, D]`. That saves most of a block,
        a twelfth of a ViT-B.
        """
        tokens = self.embed(images)
        sealed = port is None and prefix is None and parallel is None and lora is None
        if sealed and all(is_plain(block) and not _has_hooks(block) for block in self.vit.blocks):
            return self._plain_tokens(tokens, cls, only_cls)
        for layer, block in enumerate(self.vit.blocks):
            if port is not None:
                tokens = port(layer, tokens)
            if cls is not None:
                tokens = replace_cls(tokens, cls(layer, tokens if layer == 0 else tokens[:, :1]))
            extra = None if prefix is None else prefix(layer, tokens)
            other = None if lora is None else lora(layer)
            if extra is not None or parallel is not None:
                tokens = _open_block(require_plain(block), layer, tokens, extra, parallel, other)
            elif only_cls and layer == self.depth - 1 and is_plain(block):
                tokens = self._block_for_cls(block, tokens, None, None, other)
            else:
                tokens = self._whole_block(block, tokens, other)
        return tokens[:, :1] if only_cls else tokens

    def embed(self, images: Tensor) -> Tensor:
        """Prepared images `[B, 3, S, S]` -> tokens before the first block `[B, P+S, D]`."""
        return self._embed(self.vit, images)

    def through(
        self, tokens: Tensor, first: int = 0, last: int | None = None, lora: Lora | None = None
    ) -> Iterator[Tensor]:
        """Run the blocks from `first` up to `last`, which is left out, and yield tokens after each.

        For methods that share the first blocks of several passes, or read several blocks.
        """
        for layer in range(first, self.depth if last is None else last):
            other = None if lora is None else lora(layer)
            tokens = self._whole_block(self.vit.blocks[layer], tokens, other)
            yield tokens

    def _whole_block(self, block: nn.Module, tokens: Tensor, lora: BlockLora | None) -> Tensor:
        if lora is None:
            return self._plain_block(block, tokens)
        return self._lora_block(require_plain(block), tokens, lora)

    def _plain_tokens(self, tokens: Tensor, cls: ClsPort | None, only_cls: bool) -> Tensor:
        """Shorter form of `tokens` for plain blocks with a CLS port at most.

        No port reads all tokens between two blocks, so the sum with the MLP's output can wait for
        the next block.
        """
        *blocks, last = cast(Any, self.vit.blocks)
        added, new_cls = None, None if cls is None else cls(0, tokens)
        for layer, block in enumerate(blocks, start=1):
            tokens, added, row = self._block_without_last_sum(block, tokens, added, new_cls)
            new_cls = None if cls is None else cls(layer, row.unsqueeze(1))
        if only_cls:
            return self._block_for_cls(last, tokens, added, new_cls)
        tokens, added, _ = self._block_without_last_sum(last, tokens, added, new_cls)
        return tokens + added

    def along_cls(self, images: Tensor, *, cls: ClsPort, norm: bool = True) -> Tensor:
        """CLS feature `[B, D]` as `forward` returns it, with gradients along the CLS token only.

        The network must be frozen. The other tokens are constants: that they attend to earlier CLS
        tokens is left out of the gradient, and with it nearly all of the backward pass.
        """
        if not torch.is_grad_enabled():
            return cast(Tensor, self(images, cls=cls, norm=norm))
        with torch.no_grad():
            tokens = self._embed(self.vit, images)
        new_cls = cls(0, tokens)
        for layer, block in enumerate(self.vit.blocks, start=1):
            tokens, row = self._block_along_cls(
                require_plain(block), tokens, new_cls, layer == self.depth
            )
            if layer < self.depth:
                new_cls = cls(layer, row.unsqueeze(1))
        return self.norm(row) if norm else row

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Run each block, with the replacement of CLS before it, through torch.compile.

        All blocks share one compiled function.
        """
        import torch._dynamo  # slow to import

        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, _RECOMPILE_LIMIT)
        compiled = partial(torch.compile, backend=backend)
        self._standardise = compiled(standardise)
        self._embed = compiled(embed)
        self._plain_block = compiled(_plain_block)
        self._lora_block = compiled(_lora_block)
        self._block_without_last_sum = compiled(block_without_last_sum)
        self._block_for_cls = compiled(block_for_cls)
        self._block_along_cls = compiled(block_along_cls)

    def norm(self, tokens: Tensor) -> Tensor:
        """Apply the final LayerNorm to `[..., D]`."""
        return cast(Tensor, self.vit.norm(tokens))

    def digest(self) -> str:
        """SHA-256 of all weights."""
        sha = hashlib.sha256()
        for key, value in sorted(self.vit.state_dict().items()):
            sha.update(f"{key}{list(value.shape)}".encode())
            sha.update(value.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return sha.hexdigest()


class FrozenViT(PortedViT):
    """A ViT that is never trained and always in eval mode."""

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        name: str,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        super().__init__(vit.eval().requires_grad_(False), name=name, mean=mean, std=std)
        self._digest: str | None = None

    def digest(self) -> str:
        return self._digest or super().digest()

    def round_weights(self, dtype: torch.dtype) -> None:
        """Round matrices to the precision in which autocast uses them.

        Results stay the same to the bit, and no matrix has to be converted in every step.
        """
        self._digest = self.digest()  # of the weights as they were loaded
        for module in self.vit.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.to(dtype)

    def train(self, mode: bool = True) -> FrozenViT:
        """Stay in eval mode, so that dropout is off."""
        return super().train(False)

    def trainable_copy(self) -> PortedViT:
        """A copy in float32 whose weights can be trained."""
        vit = copy.deepcopy(self.vit).float().requires_grad_(True)
        mean, std = (tuple(t.flatten().tolist()) for t in (self.mean, self.std))
        return PortedViT(vit, name=self.name, mean=mean, std=std)


def _has_hooks(block: nn.Module) -> bool:
    """Whether a block has forward hooks, which only a call of the whole block runs."""
    return bool(block._forward_hooks or block._forward_pre_hooks)


def _plain_block(block: nn.Module, tokens: Tensor) -> Tensor:
    """Call timm's block."""
    result: Tensor = block(tokens)
    return result


def _lora_block(block: Block, tokens: Tensor, lora: BlockLora) -> Tensor:
    """Run timm's block step by step, with other linear layers."""
    attended = attend(block, *qkv(block, tokens, lora))
    return add_mlp(block, add_attention(block, tokens, attended, lora), lora)


def _open_block(
    block: Block,
    layer: int,
    tokens: Tensor,
    prefix: tuple[Tensor, Tensor] | None,
    parallel: ParallelAdapter | None,
    lora: BlockLora | None,
) -> Tensor:
    """Run timm's block step by step, with a prefix, a parallel adapter or other linear layers."""
    q, k, v = qkv(block, tokens, lora)
    if prefix is not None:
        k, v = (
            torch.cat([split_heads(extra, own), own], 2)
            for extra, own in zip(prefix, (k, v), strict=True)
        )
    tokens = add_attention(block, tokens, attend(block, q, k, v), lora)
    added = None if parallel is None else parallel(layer, tokens)
    tokens = add_mlp(block, tokens, lora)
    return tokens if added is None else tokens + added
