"""Small prompters and a stand-in for the ViT around them."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sodap.prompting import Prompter, PromptingOptions, PromptPass

WIDTH, DEPTH, HEADS = 24, 3, 4


class Starts(Protocol):
    """A prompter, plain or fast."""

    def start(self) -> PromptPass: ...


def build(seed: int = 0, *, prefix_tokens: int = 1, **options: Any) -> Prompter:
    """Build a small prompter of the paper's readings; its ``W_up`` is not zero."""
    generator = torch.Generator().manual_seed(seed)
    small = {"pool_size": 6, "capacity": 24, "bottleneck": 8, "memory_slots": 3}
    paper = {"context": "cls", "merge": "paper"}
    prompter = Prompter(
        PromptingOptions(**(small | paper | options)),
        width=WIDTH,
        depth=DEPTH,
        heads=HEADS,
        prefix_tokens=prefix_tokens,
        generator=generator,
    )
    for layer in range(len(prompter.adapters)):
        nn.init.normal_(prompter.adapter(layer).W_up, std=0.5, generator=generator)
    return prompter


def images(batch: int = 4, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Embedded tokens ``[B, 1+S, D]``: patches differ from image to image, CLS does not."""
    generator = torch.Generator().manual_seed(seed)
    patches = torch.randn(batch, 6, WIDTH, generator=generator)
    cls = torch.randn(1, 1, WIDTH, generator=generator).expand(batch, 1, WIDTH)
    return torch.cat([cls, patches], dim=1).to(dtype)


def run(prompter: Starts, tokens: Tensor) -> tuple[Tensor, PromptPass]:
    """Run a stand-in for a ViT, whose blocks let CLS see the patches."""
    prompts = prompter.start()
    for layer in range(DEPTH):
        tokens = prompts(layer, tokens)
        tokens = tokens + (tokens * (layer + 1)).tanh().mean(1, keepdim=True)
    return tokens, prompts
