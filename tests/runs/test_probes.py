"""Probes of a run: measured after each stage, and again on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import TINY_VIT, make_stream

from sodap.errors import SodapError
from sodap.reporting.loading import load_run
from sodap.reporting.pages.probes import probes_section
from sodap.runs import load_config, run
from sodap.runs.evidence import PROBED_IMAGES
from sodap.runs.probes import (
    ProbedRun,
    probe_run,
    probes_while_learning,
    read_probes,
)

CHANGES = [*(f"{k}={v}" for k, v in TINY_VIT.items()), "device=cpu", "epochs=1", "batch_size=16"]
STREAM = make_stream(2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "r"
    run(load_config("default", CHANGES), folder, stream=STREAM)
    return folder


def test_a_run_probes_itself_after_each_stage(folder: Path) -> None:
    probed = probes_while_learning(folder)
    assert probed is not None
    assert [(each.stage, each.domain) for each in probed.stages] == [
        (number, domain.name) for number, domain in enumerate(STREAM.domains, 1)
    ]
    for each in probed.stages:
        assert [domain.name for domain in each.result.domains] == [
            domain.name for domain in STREAM.domains[: each.stage]
        ]
        assert each.result.images <= PROBED_IMAGES
    # In stage 1 the active prompts are all prompts.
    assert probed.stages[0].result.removal("active prompts") is None
    assert probed.stages[1].result.removal("active prompts") is not None


def test_a_probe_on_request_is_kept_and_shown(folder: Path) -> None:
    probed = probe_run(folder, STREAM, split="test", images=4, by_layer=True)
    assert read_probes(folder) == probed
    content = json.loads((folder / "evidence" / "probe-test.json").read_text())
    assert content["format"] == 1
    assert ProbedRun.model_validate(content) == probed
    assert [each.stage for each in probed.stages] == [1, 2]
    assert all(domain.images == 4 for each in probed.stages for domain in each.result.domains)
    assert probed.stages[-1].result.removal("memory slots", layer=0) is not None

    section = probes_section(load_run(folder))
    assert section is not None
    (folder / "evidence" / "probe-test.json").write_text('{"stages": 3}')
    damaged = probes_section(load_run(folder))
    assert damaged is not None
    assert len(damaged.blocks) == 1
    (folder / "evidence" / "probe-test.json").unlink()


def test_a_method_without_routing_is_not_probed(tmp_path: Path) -> None:
    run(load_config("ridge", CHANGES[:-2]), tmp_path / "r", stream=STREAM)
    assert probes_while_learning(tmp_path / "r") is None
    with pytest.raises(SodapError, match="ridge"):
        probe_run(tmp_path / "r", STREAM)
    assert probes_section(load_run(tmp_path / "r")) is None
