"""Ridge regression as a method, against scikit-learn on the features of all domains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge as OracleRidge

from sodap.methods.parts.second_moments import PENALTIES
from sodap.methods.ridge import ProjectedRidge, Ridge
from sodap.streams import Stream
from tests.methods.common import learner_of

Array = NDArray[np.float64]


def features_of(method: Ridge, stream: Stream, kind: str) -> tuple[Array, Array]:
    """Features and one-hot labels of all domains."""
    splits = [getattr(domain, kind) for domain in stream.domains]
    images = method.backbone.prepare(torch.cat([split.images for split in splits]))
    features = method.backbone(images)
    if isinstance(method, ProjectedRidge):
        features = (features @ method.projection).relu()
    labels = torch.cat([split.labels for split in splits])
    return features.detach().double().numpy(), np.eye(len(stream.classes))[labels]


@pytest.mark.parametrize(("method", "options"), [(Ridge, {}), (ProjectedRidge, {"projection": 40})])
def test_the_head_is_that_of_all_domains_in_any_order(
    stripes: Stream, method: type[Ridge], options: dict[str, int]
) -> None:
    learner, model = learner_of(method, **options)
    reports = [learner.learn(domain).ended for domain in stripes.domains]

    x, y = features_of(model, stripes, "train")
    val_x, val_y = features_of(model, stripes, "val")
    energy = np.square(x).sum(0).mean()
    oracles = [OracleRidge(alpha=p * energy, solver="cholesky").fit(x, y) for p in PENALTIES]
    errors = [np.square(oracle.predict(val_x) - val_y).sum() for oracle in oracles]
    best = int(np.argmin(errors))
    assert reports[-1] == {"penalty": PENALTIES[best]}
    expected = np.vstack([oracles[best].coef_.T, oracles[best].intercept_])
    np.testing.assert_allclose(model.weight, expected, atol=1e-4 * np.abs(expected).max())

    other, reversed_model = learner_of(method, **options)
    for domain in reversed(stripes.domains):
        other.learn(domain)
    torch.testing.assert_close(reversed_model.weight, model.weight, rtol=0, atol=1e-5)
