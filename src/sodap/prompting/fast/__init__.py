"""The prompter made fast: folded weights, fused layers, segmented entmax, a Triton kernel.

`FastPrompter` is the only way in. It computes what `sodap.prompting.Prompter` computes, with the
same parameters. `entmax` can be used by itself.
"""

from sodap.prompting.fast.entmax import entmax
from sodap.prompting.fast.prompter import FastPrompter

__all__ = ["FastPrompter", "entmax"]
