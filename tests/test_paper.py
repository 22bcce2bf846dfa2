"""docs/paper.md names the functions that run, and the plain and the fast run agree."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

import sodap
from sodap.learning import Learner, Training
from tests.conftest import TINY_VIT, make_stream
from tests.test_docs import resolve

PAGE = (Path(__file__).parents[1] / "docs" / "paper.md").read_text("utf-8")
SECTIONS = re.findall(r"^## (3\.\d [^\n]+)\n(.*?)(?=^## )", PAGE, re.M | re.S)
STREAM = make_stream(domains=3)
TRAINING = Training(epochs=2, batch_size=16, lr=0.01)
SMALL = {"bottleneck": 16, "pool_size": 8, "capacity": 40, "drift": {"min_growth": 2}}


def named_code() -> dict[str, list[CodeType]]:
    """The code behind every function, property and class that the four sections name."""
    found: dict[str, list[CodeType]] = {}
    for _, text in SECTIONS:
        for name in re.findall(r"`(sodap(?:\.\w+)+)`", text):
            parent, _, last = name.rpartition(".")
            thing = vars(resolve(parent)).get(last)  # a property itself, not its value
            members = vars(thing).values() if isinstance(thing, type) else [thing]
            functions = [
                member.fget if isinstance(member, property) else member for member in members
            ]
            code = [
                getattr(inspect.unwrap(function), "__code__", None)
                for function in functions
                if callable(function)
            ]
            if any(code):
                found[name] = [each for each in code if each is not None]
    return found


def called_code(options: dict[str, Any]) -> set[CodeType]:
    """All functions of the package that are called while three domains are learned."""
    root, seen = str(Path(sodap.__file__).parent), set()

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            seen.add(frame.f_code)

    learner = Learner(
        STREAM.classes, options=SMALL | options, training=TRAINING, device="cpu", **TINY_VIT
    )
    sys.setprofile(on_event)
    try:
        for domain in STREAM.domains:
            learner.learn(domain)
    finally:
        sys.setprofile(None)
    return seen


def test_the_page_has_all_four_sections() -> None:
    assert [title[:3] for title, _ in SECTIONS] == ["3.1", "3.2", "3.3", "3.4"]
    assert len(named_code()) > 25


def test_a_plain_run_calls_every_function_that_the_page_names() -> None:
    called = called_code({"fast": False})
    unused = [name for name, code in named_code().items() if not called.intersection(code)]
    assert not unused
    fast = [code for code in called if "/prompting/fast/" in code.co_filename]
    assert not fast


def test_a_fast_run_calls_the_fast_form() -> None:
    called = called_code({})
    assert any("/prompting/fast/layers" in code.co_filename for code in called)
    assert not any(code.co_filename.endswith("/prompting/entmax.py") for code in called)


@pytest.mark.slow
def test_plain_and_fast_learn_the_embedded_digits_the_same() -> None:
    stream = sodap.load_stream("digits-mini", image_size=32)
    training = Training(epochs=1, batch_size=32, lr=3e-3)
    runs = {}
    images = torch.cat([domain.test.images for domain in stream.domains])
    for fast in (True, False):
        learner = Learner(stream.classes, training=training, options={"fast": fast}, device="cpu")
        stages = [learner.learn(domain) for domain in stream.domains[:3]]
        losses = torch.tensor([[*row["losses"].values()][:2] for s in stages for row in s.history])
        pool = stages[-1].ended["pool"]
        runs[fast] = losses, learner.predict(images).probabilities, pool
    torch.testing.assert_close(runs[True][0], runs[False][0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(runs[True][1], runs[False][1], rtol=0, atol=5e-3)
    assert runs[True][2] == runs[False][2]
