"""Probes: what routing, memory and prompts of a trained model do for its answers.

`probe` measures a model on images, `describe` says the result in words.
"""

from sodap.probing.findings import Finding, describe, inert_parts
from sodap.probing.probe import probe, sample
from sodap.probing.result import ProbeResult, Removal

__all__ = ["Finding", "ProbeResult", "Removal", "describe", "inert_parts", "probe", "sample"]
