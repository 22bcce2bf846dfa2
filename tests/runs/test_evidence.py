"""Data for the report: correct, complete, small, and without an effect on the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import TINY, make_stream

from sodap.errors import SodapError
from sodap.evaluation import accuracy, confusion_matrix
from sodap.learning import load
from sodap.methods.parts.second_moments import PENALTIES
from sodap.runs import RunRecord, load_config, run
from sodap.runs.composition import compose, read_composition
from sodap.runs.evidence import (
    ROUTED_IMAGES,
    SHOWN_PER_CLASS,
    read_evidence,
    sampled_images,
)
from sodap.runs.reading import read_record
from sodap.storage import load_state

QUICK = [*TINY, "epochs=2", "patience=2", "batch_size=16"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    folder = tmp_path_factory.mktemp("runs") / "one"
    return folder, run(load_config("default", QUICK), folder, stream=make_stream())


def test_predictions_match_the_confusions_of_the_record(finished: tuple[Path, RunRecord]) -> None:
    folder, record = finished
    stream, found = make_stream(), read_evidence(finished[0], 2)
    assert [stage.number for stage in found] == [1, 2]
    for stage, row in zip(found, record.confusions, strict=True):
        for domain, answers, right, matrix in zip(
            stream.domains, stage.predictions, stage.correct, row, strict=True
        ):
            assert confusion_matrix(domain.test.labels, answers, 3).tolist() == matrix
            assert float(right.double().mean()) == accuracy(np.array(matrix))
    last = load(folder, device="cpu").predict(stream.domains[1].test.images).probabilities
    assert torch.allclose(found[-1].confidence[1], last.max(-1).values, atol=1e-6)


def test_routing_is_that_of_the_model(finished: tuple[Path, RunRecord]) -> None:
    folder, _ = finished
    stream, stage = make_stream(), read_evidence(finished[0], 2)[-1]
    learner = load(folder, device="cpu")
    for routed, domain in zip(stage.routing, stream.domains, strict=True):
        counted, shown = sampled_images(domain.test, 3)
        assert routed.shown is not None
        assert routed.weights is not None
        assert torch.equal(routed.shown, shown)
        one_by_one = [
            learner.method.routing(learner.method.backbone.prepare(domain.test.images[[index]]))
            for index in counted.tolist()
        ]
        layers = learner.method.backbone.depth
        for layer in range(layers):
            frozen = torch.cat([found[layer].frozen for found in one_by_one if found])
            active = torch.cat([found[layer].active for found in one_by_one if found])
            sizes = torch.stack([(frozen > 0).sum(1), (active > 0).sum(1)], 1)
            assert torch.equal(routed.support[:, layer].long(), sizes)
            share = (torch.cat([frozen, active], 1) > 0).float().mean(0)
            assert torch.allclose(routed.frequency[layer], share, atol=1e-6)
        place = counted.tolist().index(int(shown[0]))
        found = one_by_one[place]
        assert found is not None
        expected = found[2].weights[0]
        assert torch.allclose(routed.weights[0, 2].float(), expected, atol=1e-3)
        assert torch.allclose(routed.usage.sum(1), torch.ones(layers), atol=1e-5)


def test_similarity_is_the_cosine_of_prompts(finished: tuple[Path, RunRecord]) -> None:
    tensors, _ = load_state(finished[0] / "model", "model")
    similarity = read_evidence(finished[0], 2)[-1].similarity
    assert similarity is not None
    frozen = tensors["prompter.pool.frozen_values"][0, :3].double()
    for i in range(3):
        for j in range(3):
            cosine = frozen[i] @ frozen[j] / (frozen[i].norm() * frozen[j].norm())
            assert float(similarity[i, j]) == pytest.approx(float(cosine), abs=1e-3)


def test_sampled_images_are_the_same_for_every_method_and_three_per_class() -> None:
    split = make_stream(classes=4).domains[0].test
    counted, shown = sampled_images(split, 4)
    assert torch.equal(counted, sampled_images(split, 4)[0])
    assert len(counted) == min(ROUTED_IMAGES, len(split))
    assert split.labels[shown].bincount().tolist() == [SHOWN_PER_CLASS] * 4


def test_evidence_changes_no_result(finished: tuple[Path, RunRecord], tmp_path: Path) -> None:
    config = load_config("default", [*QUICK, "evidence=false", "keep_stages=false"])
    record = run(config, tmp_path / "bare", stream=make_stream())
    assert record.confusions == finished[1].confusions
    assert record.config == finished[1].config  # so that a run may go on with or without
    assert sorted(path.name for path in (tmp_path / "bare").iterdir()) == [
        "config.json", "log.jsonl", "model", "record.json", "steps",
    ]  # fmt: skip
    bare, full = (
        load_state(home / "model", "model")[0] for home in (tmp_path / "bare", finished[0])
    )
    assert all(torch.equal(bare[key], full[key]) for key in full)


def test_evidence_is_small_and_holds_no_image(finished: tuple[Path, RunRecord]) -> None:
    size = sum(path.stat().st_size for path in (finished[0] / "evidence").iterdir())
    assert size < 500_000
    for stage in read_evidence(finished[0], 2):
        assert not any(tensor.dtype == torch.uint8 for tensor in stage.tensors.values())


def test_a_method_without_prompts_has_predictions_only(tmp_path: Path) -> None:
    run(load_config("sequential", QUICK), tmp_path / "run", stream=make_stream())
    stages = read_evidence(tmp_path / "run", 2)
    assert len(stages) == 2
    assert all(not stage.routing and stage.similarity is None for stage in stages)
    assert all(len(stage.predictions) == 2 for stage in stages)


# ------------------------------------------------------------------ cross-composition


def test_composition_exchanges_heads(finished: tuple[Path, RunRecord]) -> None:
    """Compare with models composed by hand, which predict one image at a time."""
    folder, record = finished
    stream = make_stream()
    found = compose(folder, stream)
    assert read_composition(folder) == found
    states = [
        load_state(folder / "stages" / "1", "model")[0],
        load_state(folder / "model", "model")[0],
    ]
    learner = load(folder, device="cpu")
    for i in range(2):
        for j in range(2):
            mixed = states[i] | {k: v for k, v in states[j].items() if k.startswith("head.")}
            learner.restore(mixed, i + 1, i + 1)
            for d, domain in enumerate(stream.domains):
                answers = [
                    int(learner.predict(image[None]).probabilities.argmax())
                    for image in domain.test.images
                ]
                right = np.mean(np.array(answers) == domain.test.labels.numpy())
                assert found.accuracy[i][j][d] == pytest.approx(right)
    for stage in range(2):
        assert found.accuracy[stage][stage] == record.R.accuracy[stage]
        assert found.macro_f1[stage][stage] == record.R.macro_f1[stage]


def test_the_probe_is_a_ridge_regression(finished: tuple[Path, RunRecord]) -> None:
    """Compare with numpy on the features of the last stage."""
    folder, stream = finished[0], make_stream()
    found = compose(folder, stream)
    method = load(folder, device="cpu").method

    @torch.no_grad()
    def features(images: torch.Tensor) -> Any:
        given, _ = method.features(method.backbone.prepare(images))  # type: ignore[operator]
        return np.hstack([given.double().numpy(), np.ones((len(images), 1))])

    domain = stream.domains[0]
    X, Y = features(domain.train.images), np.eye(3)[domain.train.labels.numpy()]
    V, U = features(domain.val.images), np.eye(3)[domain.val.labels.numpy()]
    energy = (X[:, :-1] ** 2).sum(0).mean()
    best, least = None, np.inf
    for penalty in PENALTIES:
        held = penalty * energy * np.eye(X.shape[1])
        held[-1, -1] *= 1e-9
        W = np.linalg.solve(X.T @ X + held, X.T @ Y)
        error = ((V @ W - U) ** 2).sum()
        if error < least:
            best, least = W, error
    answers = (features(domain.test.images) @ best).argmax(1)
    right = float(np.mean(answers == domain.test.labels.numpy()))
    assert found.probe.own[-1][0] == pytest.approx(right)


def test_why_a_run_cannot_be_composed(tmp_path: Path) -> None:
    stream = make_stream()
    run(load_config("ridge", ["device=cpu"]), tmp_path / "ridge", stream=stream)
    with pytest.raises(SodapError, match="ridge has no head"):
        compose(tmp_path / "ridge", stream)
    run(load_config("sequential", ["method=layup", *QUICK]), tmp_path / "layup", stream=stream)
    with pytest.raises(SodapError, match="does not answer with its head"):
        compose(tmp_path / "layup", stream)
    config = load_config("sequential", [*QUICK, "keep_stages=false"])
    run(config, tmp_path / "bare", stream=stream)
    with pytest.raises(SodapError, match="stage 1 was not stored"):
        compose(tmp_path / "bare", stream)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SodapError):
        compose(tmp_path / "empty", stream)
    assert read_record(tmp_path / "bare" / "record.json").status == "finished"
