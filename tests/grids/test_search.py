from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sodap.errors import SodapError
from sodap.grids.search import (
    BUDGET,
    MAX_EXTENSIONS,
    SEED,
    as_changes,
    choose,
    next_candidate,
    read_search,
    settings_to_compare,
    validation_twin,
    write_search,
)
from sodap.methods import find_method, method_names
from sodap.runs import load_config
from sodap.runs.environment import environment
from sodap.runs.record import Candidate
from tests.conftest import make_stream

RATES = [{"lr": 3e-4}, {"lr": 1e-3}, {"lr": 3e-3}, {"lr": 1e-2}]
BASE = load_config("sequential", [f"seed={SEED}", "epochs=1"])


@pytest.mark.parametrize("method", method_names())
def test_candidates_of_every_method_are_valid_and_within_the_budget(method: str) -> None:
    compared = settings_to_compare(method)
    if not find_method(method).learns_by_gradient:
        assert compared == []
        return
    assert 2 <= len(compared) <= BUDGET
    configs = [load_config("default", [f"method={method}", *as_changes(s)]) for s in compared]
    assert len({config.model_dump_json() for config in configs}) == len(compared)


def test_fixed_settings_are_not_searched() -> None:
    assert settings_to_compare("sequential") == RATES
    assert settings_to_compare("sequential", ["epochs=3"]) == RATES
    assert settings_to_compare("sequential", ["lr=0.5"]) == []
    assert settings_to_compare("ridge") == []


def test_a_setting_as_a_user_writes_it() -> None:
    setting = {"lr": 3e-05, "context": "cls", "distill": False}
    changes = as_changes(setting)
    assert changes == ["lr=3e-05", "context=cls", "distill=false"]
    config = load_config("default", changes)
    assert config.training.lr == 3e-5
    assert config.options == {"context": "cls", "distill": False}


def test_the_validation_twin_has_two_stages_and_no_test_image() -> None:
    stream = make_stream(domains=3)
    twin = validation_twin(stream)
    assert len(twin) == len(twin.tested) == 2
    for domain, original in zip(twin.domains, stream.domains, strict=False):
        assert domain.test is original.val
        assert torch.equal(domain.train.images, original.train.images)
    assert len(validation_twin(make_stream(domains=1))) == 1


def test_the_first_of_the_best_scores_wins() -> None:
    here = environment()
    search = choose(BASE, RATES, [0.5, 0.7, 0.7, None], here)
    assert search.chosen == {"lr": 1e-3}
    assert search.candidates[3] == Candidate(setting={"lr": 1e-2}, score=None)
    assert (search.budget, search.beyond, search.seed) == (BUDGET, MAX_EXTENSIONS, SEED)
    assert search.environment == here
    with pytest.raises(SodapError, match="every setting of sequential"):
        choose(BASE, RATES, [None] * 4, None)


@pytest.mark.parametrize(
    ("scores", "further"),
    [
        ([0.1, 0.2, 0.3, 0.4], {"lr": 3e-2}),
        ([0.4, 0.3, 0.2, 0.1], {"lr": 1e-4}),
        ([0.4, 0.4, 0.4, 0.4], {"lr": 1e-4}),  # the first of equals is the best
        ([0.1, 0.4, 0.4, 0.3], None),
        ([0.1, 0.2, 0.3, None], None),  # what broke was tried
        ([None, None, None, None], None),
    ],
)
def test_a_best_rate_at_the_edge_adds_the_next(
    scores: list[float | None], further: dict[str, float] | None
) -> None:
    assert next_candidate(RATES, scores) == further


def test_the_next_rate_keeps_the_other_settings_of_the_best() -> None:
    pairs = [{"lr": lr, "strength": s} for lr in (3e-4, 1e-3) for s in (10.0, 1000.0)]
    assert next_candidate(pairs, [0.1, 0.1, 0.1, 0.4]) == {"lr": 3e-3, "strength": 1000.0}
    strengths = [{"strength": 10.0}, {"strength": 1000.0}]
    assert next_candidate(strengths, [0.1, 0.4]) is None
    assert next_candidate([{"lr": 1.0}, {"lr": 0.1}], [0.4, 0.1]) is None  # there is no larger one


def test_a_search_is_reused_only_for_the_same_settings(tmp_path: Path) -> None:
    assert read_search(tmp_path, BASE, RATES) is None
    search = choose(BASE, RATES, [0.5, 0.7, 0.6, 0.1], None)
    write_search(tmp_path, search)
    assert read_search(tmp_path, BASE, RATES) == search
    longer = choose(BASE, [*RATES, {"lr": 3e-2}], [0.1, 0.2, 0.3, 0.4, 0.2], None)
    write_search(tmp_path, longer)
    assert read_search(tmp_path, BASE, RATES) == longer
    with pytest.raises(SodapError, match="compared other settings"):
        read_search(tmp_path, BASE, RATES[1:])
    with pytest.raises(SodapError, match=r"searched \(lr=0.01 chosen\), and --no-search takes"):
        read_search(tmp_path, BASE, [])  # defaults as they are, not what was found
    fixed = load_config("sequential", [f"seed={SEED}", "epochs=1", "lr=0.5"])
    with pytest.raises(SodapError, match=r"another training\.lr \(0.001 instead of 0.5\)"):
        read_search(tmp_path, fixed, [])  # no --no-search, and none is spoken of
    write_search(tmp_path, search.model_copy(update={"beyond": 0}))
    with pytest.raises(SodapError, match="compared other settings"):
        read_search(tmp_path, BASE, RATES)
    write_search(tmp_path, search)
    other = load_config("sequential", [f"seed={SEED}", "epochs=2"])
    with pytest.raises(SodapError, match=r"another training\.epochs"):
        read_search(tmp_path, other, RATES)
