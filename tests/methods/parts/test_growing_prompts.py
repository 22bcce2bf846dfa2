"""Growth of the pool over three stages, in every method that has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sodap.methods.coda_prompt import CodaPrompt
from sodap.methods.os_prompt import OSPrompt, OSPromptPlus
from sodap.methods.parts.growing_prompts import GrowingPrompts
from sodap.methods.uniprompt import UniPrompt
from tests.conftest import make_stream
from tests.methods.common import HEAD, WIDTH, decayed, learner_of

THREE = make_stream(domains=3, count=12)
PREFIXES = {"rows_per_stage": 6, "layers": 3}


@pytest.mark.parametrize(
    ("method", "options", "sizes", "row"),
    [  # numbers per row: length + key (+ attention) vectors in each of three layers
        pytest.param(CodaPrompt, PREFIXES, [6, 6, 6], 3 * (4 + 1 + 1) * WIDTH, id="coda-prompt"),
        pytest.param(OSPrompt, PREFIXES, [6, 6, 6], 3 * (8 + 1) * WIDTH, id="os-prompt"),
        pytest.param(OSPromptPlus, PREFIXES, [6, 6, 6], 3 * (8 + 1) * WIDTH, id="os-prompt++"),
        pytest.param(UniPrompt, {"pool_size": 10}, [10, 2, 2], 2 * WIDTH, id="uniprompt"),
    ],
)
def test_rows_of_earlier_stages_never_change(
    method: type[GrowingPrompts], options: dict[str, Any], sizes: list[int], row: int
) -> None:
    learner, model = learner_of(method, **options)
    finished: list[Tensor] = []  # all rows at the end of the previous stage
    for number, domain in enumerate(THREE.domains):
        progress = learner.learn(domain)
        pool = {"frozen": sum(sizes[:number]), "active": sizes[number]}
        assert progress.begun["pool"] == progress.ended["pool"] == pool
        assert model.trainable_count() == sizes[number] * row + HEAD
        for each, before in zip(model.pool.sets, finished, strict=False):
            assert torch.equal(each.rows[:, : before.shape[1]], before)
        finished = [each.rows.detach().clone() for each in model.pool.sets]
    assert torch.equal(model.prompt_values(), model.pool.prompts.rows)
    assert decayed(model) == {"head.weight"}


def test_an_interrupted_stage_adds_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, model = learner_of(CodaPrompt, **PREFIXES)
    learner.learn(THREE.domains[0])
    before = {key: value.clone() for key, value in model.state().items()}

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model, "after_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(THREE.domains[1])
    state = model.state()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[key], before[key]) for key in before)
