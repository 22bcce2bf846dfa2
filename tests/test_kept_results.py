"""Results that are kept in the repository come out again on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sodap.learning import Learner
from sodap.runs.kept import KeptResult
from sodap.storage import read_json
from sodap.streams import load_stream

RESULTS = Path(__file__).parents[1] / "results" / "digits"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stages"), [("ridge-s0", 2), ("residual-sodap-s0", 1)])
def test_a_kept_result_is_reproduced(name: str, stages: int) -> None:
    kept = KeptResult.model_validate(read_json(RESULTS / f"{name}.json"))
    config = kept.config
    stream = load_stream(config.stream, image_size=32)
    learner = Learner(
        stream.classes,
        method=config.method,
        options=config.options,
        backbone=config.backbone,
        training=config.training,
        seed=config.seed,
        device="cpu",
    )
    rows = []
    for domain in stream.domains[:stages]:
        learner.learn(domain)
        rows.append([learner.evaluate(tested).accuracy for tested in stream.domains[:2]])
    expected = [row[:2] for row in kept.R.accuracy[:stages]]
    # Another processor may round differently: one image of 400 is 0.0025.
    np.testing.assert_allclose(rows, expected, rtol=0, atol=0.0051)
