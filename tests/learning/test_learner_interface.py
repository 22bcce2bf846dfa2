"""What a user sees of a learner in Python: help, settings, repr, progress and warnings."""

from __future__ import annotations

import inspect
import io
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TINY_VIT, make_stream

import sodap
from sodap.errors import SodapError
from sodap.learning import Learner, RepeatedDomainWarning, Training
from sodap.streams import Stream


def small(stream: Stream, **more: Any) -> Learner:
    """A learner whose stage takes a moment."""
    settings = {"epochs": 2, "batch_size": 16, "device": "cpu", **TINY_VIT, **more}
    return Learner(stream.classes, method="sequential", **settings)


# ------------------------------------------------------------------ help


@pytest.mark.parametrize(
    ("function", "documented"),
    [
        (Learner.__init__, Learner),
        (Learner.learn, Learner.learn),
        (Learner.evaluate, Learner.evaluate),
        (Learner.predict, Learner.predict),
        (Learner.save, Learner.save),
        (sodap.load, sodap.load),
        (sodap.load_stream, sodap.load_stream),
    ],
    ids=lambda thing: getattr(thing, "__qualname__", ""),
)
def test_help_explains_every_argument(function: Callable[..., Any], documented: object) -> None:
    text = inspect.getdoc(documented) or ""
    for name in set(inspect.signature(function).parameters) - {"self"}:
        assert re.search(rf"^    {name}: \S", text, flags=re.M), f"{name} is not explained"


def test_help_names_every_training_setting() -> None:
    for name in Training.model_fields:
        assert f"`{name}`" in (Learner.__doc__ or "")


# ------------------------------------------------------------------ settings


def test_single_training_settings(stripes: Stream) -> None:
    learner = Learner(stripes.classes, epochs=2, lr=0.5)
    assert learner.training == Training(epochs=2, lr=0.5)
    shared = Training(epochs=7, patience=3)
    assert Learner(stripes.classes, training=shared, epochs=2).training == Training(
        epochs=2, patience=3
    )
    assert shared.epochs == 7
    assert len(small(stripes, epochs=1).learn(stripes.domains[0]).history) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epoch": 2}, "'epoch' is no training setting; did you mean 'epochs'"),
        ({"zoo": 2}, "'zoo' is no training setting"),
        ({"epochs": 0}, "'epochs': .*greater than or equal to 1.*got 0"),
        ({"pool_size": 8}, r"option of residual-sodap; give it as options=\{'pool_size': 8\}"),
    ],
)
def test_wrong_settings_say_how(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SodapError, match=said):
        Learner(["a", "b"], **settings)


# ------------------------------------------------------------------ repr


def test_repr_in_two_lines(stripes: Stream) -> None:
    learner = small(stripes)
    assert len(repr(learner).splitlines()) == 2
    assert re.search(r"sequential .*test_vit.*3 classes \(class 0, .*\n0 domains", repr(learner))
    learner.learn(stripes.domains[0])
    assert re.search(r"\n1 domain learned \(domain 0\).*no image", repr(learner))

    many = make_stream(domains=6, classes=12)
    for shown in (repr(stripes), repr(many)):
        assert len(shown.splitlines()) == 2
        assert all(len(line) < 100 for line in shown.splitlines())
    assert re.search(
        r"96 images of 3 classes.*\n2 domains to learn: domain 0, domain 1$", repr(stripes)
    )
    assert re.search(r"12 classes .*8 more.*\n6 domains.* and 2 more$", repr(many))
    assert repr(stripes.domains[0]) == "Domain 'domain 0': 24 train, 12 val, 12 test images"
    assert repr(stripes.domains[0].test) == "Split: 12 images, 32 x 32 px"


def test_repr_counts_stored_images(stripes: Stream) -> None:
    learner = Learner(stripes.classes, method="der++", epochs=1, device="cpu", **TINY_VIT)
    learner.learn(stripes.domains[0])
    assert re.search(r"stored about them: .*B, 24 images", repr(learner))


# ------------------------------------------------------------------ progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(stripes: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    small(stripes).learn(stripes.domains[0])
    shown = terminal.getvalue()
    assert "learning domain 0" in shown
    assert "epoch 2 of at most 2" in shown

    small(stripes).learn(stripes.domains[0], progress=False)
    assert terminal.getvalue() == shown


def test_off_a_terminal_it_is_quiet_unless_asked(
    stripes: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    small(stripes).learn(stripes.domains[0])
    assert capsys.readouterr() == ("", "")
    seen: list[int] = []
    small(stripes).learn(
        stripes.domains[0], progress=True, on_epoch=lambda progress: seen.append(progress.epoch)
    )
    printed = capsys.readouterr()
    assert [line[:25] for line in printed.err.splitlines()] == [
        "learning domain 0, epoch ",
        "learning domain 0, epoch ",
    ]
    assert seen == [1, 2]


# ------------------------------------------------------------------ a domain learned twice


def test_a_domain_learned_twice_is_noticed(stripes: Stream, tmp_path: Path) -> None:
    learner = small(stripes, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for domain in stripes.domains:
            learner.learn(domain)
    with pytest.warns(RepeatedDomainWarning, match="'domain 0' was learned before"):
        learner.learn(stripes.domains[0])
    assert learner.domains_learned == ("domain 0", "domain 1", "domain 0")
    learner.save(tmp_path)
    loaded = sodap.load(tmp_path)
    with pytest.warns(RepeatedDomainWarning):
        loaded.learn(stripes.domains[1])


def test_a_stage_that_failed_is_not_a_domain_learned(stripes: Stream) -> None:
    learner = small(stripes, epochs=1)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(stripes.domains[0], on_epoch=stop)
    assert learner.domains_learned == ()
    learner.learn(stripes.domains[0])  # no warning
