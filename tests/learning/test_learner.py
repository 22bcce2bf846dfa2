from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import TINY_VIT
from torch import Tensor

import sodap
from sodap.errors import SodapError, TrainingBrokeError
from sodap.learning import Learner, StageProgress, Training
from sodap.learning.progress import snapshot
from sodap.methods import Method
from sodap.storage import save_state
from sodap.streams import Stream
from sodap.testing import tiny_stream

TRAINING = Training(epochs=4, patience=2, batch_size=16)


@pytest.fixture(scope="module")
def learner(stripes: Stream) -> Learner:
    training = Training(epochs=4, patience=4, batch_size=16, lr=1e-2)
    learner = Learner(stripes.classes, training=training, device="cpu")
    learner.learn(stripes.domains[0])
    return learner


def test_a_learner_learns(learner: Learner, stripes: Stream) -> None:
    assert learner.evaluate(stripes.domains[0]).accuracy > 0.8
    assert learner.evaluate(stripes.domains[0].val).macro_f1 > 0.8


def test_predictions_have_names_and_probabilities(learner: Learner, stripes: Stream) -> None:
    prediction = learner.predict(stripes.domains[0].test.images)
    assert set(prediction.labels) <= set(stripes.classes)
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(12))
    assert learner.predict([]).labels == []
    with pytest.raises(SodapError, match="uint8"):
        learner.predict(torch.zeros(1, 3, 32, 32))


def test_files_can_be_predicted(learner: Learner, stripes: Stream, tmp_path: Path) -> None:
    images = stripes.domains[0].test.images[:3]
    paths = []
    for index, image in enumerate(images):
        paths.append(tmp_path / f"{index}.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(paths[-1])
    expected = learner.predict(images).probabilities
    torch.testing.assert_close(learner.predict(paths).probabilities, expected)
    paths[1].write_bytes(b"no image")
    with pytest.raises(SodapError, match=r"1\.png cannot be read as an image"):
        learner.predict(paths)
    rest = learner.predict([*paths, tmp_path / "gone.png"], on_error="skip")
    assert set(rest.errors) == {1, 3}
    assert str(paths[1]) in rest.errors[1]
    assert [label is None for label in rest.labels] == [False, True, False, True]
    torch.testing.assert_close(rest.probabilities[[0, 2]], expected[[0, 2]])
    assert rest.probabilities[[1, 3]].isnan().all()
    none = learner.predict(paths[1], on_error="skip")
    assert (none.labels, list(none.errors)) == ([None], [0])
    with pytest.raises(SodapError, match="'raise' or 'skip'"):
        learner.predict(paths, on_error="ignore")  # type: ignore[arg-type]


def test_photographs_are_not_learned_with_the_network_of_the_digits_by_default() -> None:
    photographs = tiny_stream(size=64)
    with pytest.raises(SodapError, match=r"images of 64 pixels.* backbone=deit_tiny"):
        Learner(photographs.classes, device="cpu").learn(photographs.domains[0])
    chosen = Learner(
        photographs.classes, method="ridge", backbone="micro", training=TRAINING, device="cpu"
    )
    chosen.learn(photographs.domains[0])


def test_saved_and_loaded(learner: Learner, stripes: Stream, tmp_path: Path) -> None:
    learner.save(tmp_path / "model")
    loaded = sodap.load(tmp_path / "model")
    images = stripes.domains[0].test.images
    expected = learner.predict(images).probabilities
    assert torch.equal(loaded.predict(images).probabilities, expected)
    assert loaded.stages_learned == 1
    size = sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    assert size < 5_000_000, "the backbone is not saved"


def test_a_loaded_learner_continues_like_the_saved_one(stripes: Stream, tmp_path: Path) -> None:
    one = Learner(stripes.classes, training=TRAINING, device="cpu", **TINY_VIT)
    one.learn(stripes.domains[0])
    one.save(tmp_path)
    two = sodap.load(tmp_path)
    for learner in (one, two):
        learner.learn(stripes.domains[1])
    state = two.method.state()
    assert all(torch.equal(value, state[key]) for key, value in one.method.state().items())


def test_a_damaged_model_is_refused(learner: Learner, tmp_path: Path) -> None:
    learner.save(tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(SodapError, match="checksum"):
        sodap.load(tmp_path)


def test_other_weights_of_the_backbone_are_refused(learner: Learner, tmp_path: Path) -> None:
    learner.save(tmp_path)
    with pytest.raises(SodapError, match="other weights of micro"):
        sodap.load(tmp_path, weights="random")


def test_the_same_seed_gives_the_same_model(stripes: Stream) -> None:
    def learned(seed: int) -> dict[str, torch.Tensor]:
        learner = Learner(stripes.classes, training=TRAINING, seed=seed, device="cpu", **TINY_VIT)
        learner.learn(stripes.domains[0])
        return learner.method.state()

    one, two, other = learned(3), learned(3), learned(4)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


def test_early_stop_restores_the_best_epoch(stripes: Stream) -> None:
    training = Training(epochs=30, patience=2, batch_size=16, lr=1e-5)
    learner = Learner(stripes.classes, method="sequential", training=training, device="cpu")
    after: list[dict[str, torch.Tensor]] = []
    progress = learner.learn(
        stripes.domains[0], on_epoch=lambda _: after.append(snapshot(learner.method.state()))
    )
    scores = [row["val_macro_f1"] for row in progress.history]
    assert progress.best_score == max(scores)
    assert progress.best_epoch == scores.index(max(scores)) + 1
    assert progress.epoch == min(30, progress.best_epoch + 2)
    assert progress.best_epoch < progress.epoch, "training must go beyond the best epoch"
    assert learner.evaluate(stripes.domains[0].val).macro_f1 == progress.best_score
    state = learner.method.state()
    assert all(torch.equal(state[key], progress.best[key]) for key in state)
    assert not torch.equal(state["head.weight"], after[-1]["head.weight"])


def test_the_learning_rate_is_a_cosine(stripes: Stream) -> None:
    training = Training(epochs=4, patience=9, batch_size=16, lr=0.1)
    learner = Learner(stripes.classes, method="sequential", training=training, device="cpu")
    rates = [row["lr"] for row in learner.learn(stripes.domains[0]).history]
    assert rates == pytest.approx([0.1, 0.1 * 0.5 * (1 + 2**-0.5), 0.05, 0.1 * 0.5 * (1 - 2**-0.5)])


@pytest.mark.parametrize(("method", "lr"), [("residual-sodap", 0.02), ("sequential", 0.05)])
def test_a_stage_resumes_after_any_epoch(method: str, lr: float, stripes: Stream) -> None:
    """Resume stage 2 after each of its epochs; the final state is equal to the bit.

    The stage stops early, so the number and score of the best epoch must be restored too.
    """
    training = Training(epochs=8, patience=2, batch_size=8, lr=lr)

    def fresh() -> Learner:
        learner = Learner(
            stripes.classes, method=method, training=training, device="cpu", **TINY_VIT
        )
        learner.learn(stripes.domains[0])
        return learner

    kept: list[tuple[dict[str, torch.Tensor], StageProgress]] = []

    def keep(learner: Learner, progress: StageProgress) -> None:
        state = {key: value.clone() for key, value in learner.method.state().items()}
        tensors = {key: value.clone() for key, value in progress.tensors().items()}
        metadata = json.loads(json.dumps(progress.metadata()))
        kept.append((state, StageProgress.restore(metadata, tensors)))

    whole = fresh()
    ended = whole.learn(stripes.domains[1], on_epoch=lambda progress: keep(whole, progress))
    expected = whole.method.state()
    assert len(kept) == ended.epoch
    assert ended.best_epoch < ended.epoch < training.epochs, "the stage must stop early"
    for state, progress in kept:
        learner = Learner(
            stripes.classes, method=method, training=training, device="cpu", **TINY_VIT
        )
        learner.restore(state, stage=2, stages_learned=1)
        again = learner.learn(stripes.domains[1], resumed=progress)
        found = learner.method.state()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert (again.epoch, again.best_epoch) == (ended.epoch, ended.best_epoch)
        assert again.history is not ended.history
        for row, first in zip(again.history, ended.history, strict=True):
            assert row["losses"] == first["losses"]
            assert row["val_macro_f1"] == first["val_macro_f1"]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(SodapError, match="two or more classes"):
        Learner(["a"])
    with pytest.raises(SodapError, match="two or more classes"):
        Learner(3)  # type: ignore[arg-type]
    given = Learner(np.array(["a", "b"]), seed=np.int64(3))  # type: ignore[arg-type]
    assert (given.classes, given.metadata()["seed"]) == (("a", "b"), 3)
    with pytest.raises(SodapError, match=r"a whole number and not negative, got 1\.5"):
        Learner(["a", "b"], seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(SodapError, match=r"takes a sodap\.Training, not a dict"):
        Learner(["a", "b"], training={"epochs": 1})  # type: ignore[arg-type]
    with pytest.raises(SodapError, match="8 to 2048 pixels a side, not 0"):
        Learner(["a", "b"], image_size=0)
    with pytest.raises(SodapError, match="no device is called 'tpu'"):
        Learner(["a", "b"], device="tpu")
    with pytest.raises(SodapError, match="no precision is called 'fp8'"):
        Learner(["a", "b"], precision="fp8")
    if not torch.cuda.is_available():
        with pytest.raises(SodapError, match="sees no GPU"):
            Learner(["a", "b"], device="cuda")


@pytest.mark.parametrize("method", ["residual-sodap", "sequential"])
def test_a_failed_stage_leaves_the_learner_as_it_was(method: str, stripes: Stream) -> None:
    training = Training(epochs=3, patience=3, batch_size=16, lr=10, weight_decay=1e30)
    learner = Learner(stripes.classes, method=method, training=training, device="cpu", **TINY_VIT)
    before = snapshot(learner.method.state())
    with pytest.raises(SodapError, match=r"broke in stage 1, epoch .*: .* (is|are) not"):
        learner.learn(stripes.domains[0])
    after = learner.method.state()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert learner.stages_learned == 0


@pytest.mark.parametrize(
    ("method", "where"), [("sequential", "in stage 1, epoch 1"), ("ridge", "training broke")]
)
def test_predictions_that_are_not_numbers_are_not_scored(
    method: str, where: str, stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(stripes.classes, method=method, training=Training(epochs=1), device="cpu")
    honest = type(learner.method).forward

    def no_numbers(self: Method, images: Tensor) -> Tensor:
        logits = honest(self, images)
        if not self.training:
            logits[:2, -1] = torch.nan
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(type(learner.method), "forward", no_numbers)
        with pytest.raises(TrainingBrokeError, match=rf"{where}: .* 2 of 12 images"):
            learner.learn(stripes.domains[0])
        assert learner.stages_learned == 0
    learner.learn(stripes.domains[0])
    monkeypatch.setattr(type(learner.method), "forward", no_numbers)
    with pytest.raises(TrainingBrokeError, match="2 of 12 images"):
        learner.evaluate(stripes.domains[0])
    with pytest.raises(SodapError, match=r"this model is broken: .* 2 of 3 images"):
        learner.predict(stripes.domains[0].test.images[:3])


def test_wrong_arguments_are_refused(learner: Learner, stripes: Stream, tmp_path: Path) -> None:
    fresh = Learner(stripes.classes)
    with pytest.raises(SodapError, match="nothing has been learned yet"):
        fresh.predict(stripes.domains[0].test.images)
    with pytest.raises(SodapError, match="learn takes a Domain of a stream, not a Stream"):
        fresh.learn(stripes)  # type: ignore[arg-type]
    with pytest.raises(SodapError, match="evaluate takes a Domain or a Split"):
        learner.evaluate(stripes)  # type: ignore[arg-type]
    with pytest.raises(SodapError, match="predict takes image files"):
        learner.predict(42)  # type: ignore[arg-type]
    with pytest.raises(SodapError, match=r"no image at one\.png"):
        learner.predict("one.png")
    with pytest.raises(SodapError, match="a list of two or more classes"):
        Learner("ab")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SodapError, match="not empty and holds no model"):
        learner.save(tmp_path)


def test_bf16_is_close_to_fp32(learner: Learner, stripes: Stream, tmp_path: Path) -> None:
    learner.save(tmp_path)
    half = sodap.load(tmp_path, precision="bf16")
    images = stripes.domains[0].test.images
    expected = learner.predict(images).probabilities
    torch.testing.assert_close(half.predict(images).probabilities, expected, rtol=0, atol=0.05)


def test_an_interrupted_step_leaves_no_gradients(
    stripes: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python handles Ctrl-C after the backward pass, before the optimiser's step."""

    def broken(self: Method) -> None:
        raise KeyboardInterrupt

    learners = [
        Learner(stripes.classes, training=TRAINING, device="cpu", **TINY_VIT) for _ in range(2)
    ]
    with monkeypatch.context() as for_now:
        for_now.setattr(Method, "before_step", broken)
        with pytest.raises(KeyboardInterrupt):
            learners[0].learn(stripes.domains[0])
    states = []
    for learner in learners:
        learner.learn(stripes.domains[0])
        states.append(learner.method.state())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize(
    "change",
    [
        {"stages_learned": -1},
        {"stages_learned": "x"},
        {"classes": 3},
        {"backbone": None},
        {"seed": None},
        {"training": {"epochs": 0}},
        {"options": 7},
    ],
)
def test_wrong_metadata_is_refused(
    learner: Learner, tmp_path: Path, change: dict[str, object]
) -> None:
    save_state(tmp_path, "model", learner.method.state(), learner.metadata() | change)
    with pytest.raises(SodapError, match="saved by a version of sodap that does not fit"):
        sodap.load(tmp_path)


def test_an_unfinished_run_has_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SodapError, match="has no model: it is not finished"):
        sodap.load(tmp_path)
