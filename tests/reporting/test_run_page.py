"""The page about one run shows the content of its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from sodap.evaluation import effects, metric_intervals, reliability
from sodap.reporting import METRICS, LoadedRun, load_runs
from sodap.reporting.figures import prompts as prompt_figures
from sodap.reporting.pages.accuracy import bin_tables, calibration, metrics_table
from sodap.reporting.pages.blocks import Block, FigureBlock, Paragraph, Section
from sodap.reporting.pages.composition import effects_table
from sodap.reporting.pages.cost import cost_table, stage_seconds
from sodap.reporting.pages.origin import problems
from sodap.reporting.pages.pool import drift_table, pool_section, pool_table
from sodap.reporting.pages.report import report_page
from sodap.reporting.pages.routing import selection_table, variety
from sodap.reporting.pages.sections import run_sections
from sodap.reporting.pages.stream import checks_table, counts_table
from sodap.reporting.pages.training import best_epochs, losses_figure, stops_table
from sodap.reporting.tables.table import Cell, Table
from sodap.runs import load_config, run
from sodap.runs.record import RunRecord
from sodap.storage import load_state
from sodap.streams.splits import SplitRow
from tests.conftest import TINY, make_stream

from .page_reader import PageReader
from .records import edited

KEPT = sorted((Path(__file__).parents[2] / "results" / "digits").glob("*-s0.json"))


@pytest.fixture(scope="module")
def sections(full: LoadedRun) -> list[Section]:
    return run_sections(full)


@pytest.fixture(scope="module")
def axes(sections: list[Section]) -> dict[str, list[Axes]]:
    """The axes of every figure, by its name."""
    return {block.name: block.figure.axes for section in sections for block in section.figures}


def values(table: Table) -> list[list[float | None]]:
    return [[cell.value for cell in row if isinstance(cell, Cell)] for row in table.rows]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def image(axes: Axes) -> np.ndarray[Any, Any]:
    return np.asarray(axes.images[0].get_array())


def with_record(run: LoadedRun, edits: Mapping[str, Any] | None = None, **more: Any) -> LoadedRun:
    return replace(run, record=edited(run.record, edits=edits, **more))


# ------------------------------------------------------------------ accuracy


def test_metrics_have_intervals_over_images(full: LoadedRun) -> None:
    shown = {row[0]: row for row in metrics_table(full).rows}
    outcomes = full.outcomes()
    assert outcomes is not None
    counts = [table.shape[1] for table in outcomes]
    intervals = metric_intervals(full.record.R.accuracy, counts, outcomes)
    assert next(iter(shown)) == "final", "what the model is worth comes first"
    for key in ("average_accuracy", "backward_transfer"):
        metric = METRICS[key]
        value, interval, _ = shown[metric.title][1:]
        ends = intervals[key]
        assert isinstance(value, Cell)
        assert isinstance(interval, Cell)
        assert value.value == metric.of(full.record)
        assert ends is not None
        assert interval.text == f"{ends.low + 0.0:.3f} to {ends.high + 0.0:.3f}"
    assert np.stack([table.mean(1) for table in outcomes], 1).tolist() == full.record.R.accuracy
    constant = shown["final"][3]
    assert isinstance(constant, Cell)
    assert constant.value == pytest.approx(1 / 3), "three classes of equal size"


def test_the_page_says_what_the_model_is_worth(full: LoadedRun) -> None:
    """A run that always gives the same answer, in the words of the page and of its problems."""
    confusions = [[[[4, 0, 0]] + [[4, 0, 0]] * 2] * 3] * 3
    R = {"accuracy": [[1 / 3] * 3] * 3, "macro_f1": [[1 / 6] * 3] * 3}
    bad = with_record(full, confusions=confusions, R=R)
    verdict = bad.record.verdict
    assert verdict is not None
    assert len(verdict.warnings) == 2
    sections = run_sections(bad)
    page = PageReader(report_page([bad], sections)).text
    for sentence in (*verdict.warnings, verdict.tiny):
        assert sentence in problems(bad)
        assert sentence in page
    answer = full.classes[0]
    assert any(f"always answering '{answer}'" in sentence for sentence in verdict.warnings)
    (last,) = [section for section in sections if section.key == "problems"]
    assert last.title == "What went wrong"
    header = page[: page.index("Accuracy and forgetting")]
    assert all(sentence in header for sentence in verdict.warnings)


def test_recall_and_confusion(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    matrices = np.array(full.record.confusions[-1])
    expected = [f"{m[c, c] / m[c].sum():.2f}" for m in matrices for c in range(3)]
    assert texts(axes["recall"][0]) == expected
    for panel, name, matrix in zip(axes["confusion"], full.domains, matrices, strict=True):
        assert panel.get_title() == name
        assert texts(panel) == [str(n) for n in matrix.ravel() if n]
        share = matrix / matrix.sum(1, keepdims=True)
        assert np.allclose(image(panel)[..., 3], share**0.6)


def test_calibration(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    last, found = full.evidence[-1], axes["calibration"]
    for panel, below, confidence, right in zip(
        found[::2], found[1::2], last.confidence, last.correct, strict=True
    ):
        expected = reliability(confidence.numpy(), right.numpy())
        assert panel.get_title().endswith(f"\nECE {expected.error:.3f}")
        some = expected.counts > 0
        (dots,) = [line for line in panel.lines if line.get_marker() == "o"]
        points = np.stack([expected.confidence[some], expected.accuracy[some]], 1)
        assert np.allclose(np.array(dots.get_xydata()), points)
        counts = [bar.get_height() for bar in below.containers[0]]
        assert counts == expected.counts[some].tolist()
    assert len(calibration(full)) == 3
    bins = list(bin_tables(full, calibration(full)))
    images = [sum(row[0] or 0 for row in values(each)) for each in bins]
    assert images == [len(each) for each in last.confidence]


def test_nan_predictions_are_reported(full: LoadedRun) -> None:
    first, second, third = full.evidence
    tensors = {**second.tensors, "confidence.1": second.tensors["confidence.1"] * float("nan")}
    broken = replace(full, evidence=[first, replace(second, tensors=tensors), third])
    section = run_sections(broken)[0]
    (warning,) = warnings(section.blocks)
    assert f"NaN after stage 2 on {full.domains[1]}" in warning
    names = {block.name for block in section.figures}
    assert "recall" in names
    assert "calibration" not in names


def warnings(blocks: Sequence[Block]) -> list[str]:
    return [b.text for b in blocks if isinstance(b, Paragraph) and b.tone == "warning"]


# ------------------------------------------------------------------ the stream


def test_counts_are_those_of_the_record(full: LoadedRun) -> None:
    expected = [
        [*counts, sum(counts)]
        for domain in full.record.stream.domains
        for counts in domain.counts.model_dump().values()
    ]
    assert values(counts_table(full)) == expected


def statuses(found: LoadedRun) -> list[str]:
    return [str(row[1]) for row in checks_table(found).rows]


def test_splits_are_checked(full: LoadedRun) -> None:
    assert statuses(full) == ["passed", "not checked", "not checked", "passed"]
    rows = [
        SplitRow("domain 0", "a.png", "x", "x", "patient 1", "train"),
        SplitRow("domain 0", "b.png", "x", "x", "patient 1", "test"),
        SplitRow("domain 1", "a.png", "x", "x", "patient 1", "test"),
    ]
    leaking = replace(full, splits=rows)
    assert statuses(leaking) == ["passed", "passed", "failed", "passed"]
    assert any("patient 1" in sentence for sentence in problems(leaking))
    missing = with_record(full, edits={"stream.domains.0.counts.val": [0, 4, 4]})
    assert statuses(missing)[0] == "failed"


def test_an_image_in_two_splits_is_found(full: LoadedRun) -> None:
    stream = make_stream(3, 3)
    stream.domains[2].test.images[0] = stream.domains[0].train.images[5]
    assert statuses(replace(full, stream=stream))[3] == "failed"


def test_images_can_be_left_out(full: LoadedRun, sections: list[Section]) -> None:
    names = {block.name for section in sections for block in section.figures}
    bare = run_sections(replace(full, show_images=False))
    assert names - {block.name for section in bare for block in section.figures} == {
        "stream-samples",
        "routing-images",
    }


# ------------------------------------------------------------------ pool and drift


def test_drift_of_every_layer_and_batch(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    measured = prompt_figures.measured_drift(full.stages)
    strongest = max(np.max(found.scores) for _, found in measured)
    for panel, (_, found) in zip(axes["drift-layers"], measured, strict=True):
        assert np.allclose(image(panel)[..., 3], (np.array(found.scores).T / strongest) ** 0.6)
    rows = drift_table(full).rows
    assert [row[0] for row in rows] == ["2 domain 1", "3 domain 2"]
    for row, (_, found) in zip(rows, measured, strict=True):
        assert str(found.added) in str(row[-1])
    pools = [stage.ended.pool for stage in full.stages if stage.ended.pool]
    expected = [[pool.frozen, pool.active, pool.unused] for pool in pools]
    assert [row[1:] for row in values(pool_table(full))] == expected


@pytest.mark.parametrize("past", [4, 10])
def test_drift_from_few_batches_is_reported(full: LoadedRun, past: int) -> None:
    run = with_record(
        full,
        edits={"stages.1.begun.drift.past_batches": past, "stages.2.begun.drift.past_batches": 10},
    )
    section = pool_section(run)
    assert section is not None
    found = warnings(section.blocks)
    if past == 4:
        assert "not reliable in stage 2 domain 1: there were 4 of 10 batches" in found[0]
    else:
        assert found == []


# ------------------------------------------------------------------ routing


def test_selections_of_single_images(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    stage = full.evidence[-1]
    routed = stage.routing[-1]
    assert routed.weights is not None
    weights = routed.weights.float().numpy().astype(float)
    images, layers, prompts = weights.shape
    strongest = np.quantile(weights[weights > 0], 0.99)
    panels = axes[f"routing-stage-{stage.number}-domain-{routed.domain + 1}"]
    half = -(-layers // 2)
    for layer in range(layers):
        first = (layer % half) * (images + 2)
        drawn = image(panels[layer // half])[first : first + images]
        expected = np.clip(weights[:, layer] / strongest, 0, 1) ** 0.6
        assert np.allclose(drawn[..., 3], expected, atol=1e-6)
        assert drawn.shape[1] == prompts
    best = [row[1] for row in selection_table(full, stage, routed).rows]
    assert [cell.value for cell in best if isinstance(cell, Cell)] == pytest.approx(
        weights[:, 0].max(-1).tolist()
    )


def test_the_routed_images_are_shown(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    routed = full.evidence[0].routing[0]
    assert full.stream is not None
    assert routed.shown is not None
    sheet = image(axes["routing-images"][0])
    for place, column in ((0, 0), (3, 35)):  # the first image of the first and second class
        position = int(routed.shown[place])
        expected = full.stream.domains[0].test.images[position].permute(1, 2, 0).numpy()
        assert np.array_equal(sheet[:32, column : column + 32, :3], expected)


def test_counts_and_frequencies_of_selections(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    for panel, stage in zip(axes["support"], full.evidence, strict=True):
        means = np.mean([r.support.double().mean(0).numpy() for r in stage.routing], axis=0)
        frozen, active = ([bar.get_height() for bar in bars] for bars in panel.containers)
        assert np.allclose(frozen, means[:, 0])
        assert np.allclose(active, means[:, 1])
    for panel, stage in zip(axes["selection-frequency"], full.evidence, strict=True):
        drawn = np.concatenate([patch.get_data().values for patch in panel.patches])  # type: ignore[attr-defined]
        naive = np.mean([r.frequency.numpy().mean(0) for r in stage.routing], axis=0)
        assert np.allclose(drawn, naive)


def test_similarity_before_and_after_growth(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    panels = axes["prompt-similarity"]
    sizes = [image(panel).shape[0] for panel in panels]
    assert sizes == [row[0] for row in values(pool_table(full))]
    for panel, stage in zip(panels, full.evidence, strict=True):
        assert stage.similarity is not None
        cosines = np.abs(stage.similarity.float().numpy())
        assert np.allclose(image(panel)[..., 3], np.clip(cosines, 0, 1) ** 0.6, atol=1e-5)


def test_variety_is_the_mean_distance_of_pairs(full: LoadedRun) -> None:
    routed = full.evidence[-1].routing[0]
    assert routed.weights is not None
    weights = routed.weights.double()[:, 1].numpy()
    shares = weights / weights.sum(1, keepdims=True)
    pairs = [(i, j) for i in range(len(shares)) for j in range(i)]
    naive = np.mean([np.abs(shares[i] - shares[j]).sum() / 2 for i, j in pairs])
    assert variety(routed)[1] == pytest.approx(naive)


def test_prompts_without_routing_have_similarity(tmp_path: Path) -> None:
    config = load_config("default", ["method=coda-prompt", "epochs=1", *TINY])
    run(config, tmp_path / "run", stream=make_stream())
    (found,) = load_runs([tmp_path / "run"])
    sections = {section.key: section for section in run_sections(found)}
    assert [block.name for block in sections["routing"].figures] == ["prompt-similarity"]


# ------------------------------------------------------------------ training, composition, cost


def test_scores_and_learning_rates_of_every_epoch(
    full: LoadedRun, axes: dict[str, list[Axes]]
) -> None:
    for panel, key in zip(axes["learning-rate"], ("val_macro_f1", "lr"), strict=True):
        drawn = [each for each in panel.lines if each.get_marker() == "o"]
        stages = [each for each in drawn if each.get_linestyle() == "-"]
        points = [p for each in stages for p in np.array(each.get_xydata()).tolist()]
        assert points == [[place, getattr(row, key)] for place, row in enumerate(full.log, 1)]
    best = [stage.best_epoch for stage in full.stages]
    assert [place for place, _ in best_epochs(full)] == [2 * i + b for i, b in enumerate(best)]
    assert [row[-1] for row in stops_table(full).rows] == ["all epochs done"] * 3


def test_losses_and_weights_of_every_step(
    home: Path, full: LoadedRun, axes: dict[str, list[Axes]]
) -> None:
    saved = [load_state(home / "sodap-0" / "steps", f"stage-{n}")[0] for n in (1, 2, 3)]
    for panel, kind in zip(axes["losses"], ("loss", "weight"), strict=True):
        columns = {name for tensors in saved for name in tensors if name.startswith(f"{kind}.")}
        assert {f"{kind}.ce", f"{kind}.pseudo"} <= columns
        for column in columns:
            label = "_" + column.removeprefix(f"{kind}.")
            drawn = [np.array(e.get_xydata()) for e in panel.lines if e.get_label() == label]
            expected = [
                [(4.0 * stage + at, value) for at, value in enumerate(tensors[column].tolist(), 1)]
                for stage, tensors in enumerate(saved)  # 24 images, 16 at a time, two epochs
                if column in tensors
            ]
            assert [[tuple(point) for point in each.tolist()] for each in drawn] == expected
    assert "12 steps" in losses_figure(full, full.steps[0]).caption


def test_many_steps_are_averaged(full: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sodap.reporting.pages.training.MAX_POINTS", 5)
    block = losses_figure(full, full.steps[0])
    assert "12 steps, 3 steps per point" in block.caption
    ce = full.steps[0][2].losses["ce"].numpy()
    drawn = [each.get_ydata() for each in block.figure.axes[0].lines if each.get_label() == "_ce"]
    assert np.allclose(np.array(drawn[1]), [ce[:3].mean(), ce[3]])


def test_compositions(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    assert full.composition is not None
    A = np.array(full.composition.accuracy)
    for domain, panel in enumerate(axes["cross-composition"]):
        assert panel.get_title() == full.domains[domain]
        assert texts(panel) == [f"{value:.2f}" for value in A[:, :, domain].ravel()]
    found = effects(A)
    parts = ("representation", "classifier", "interaction", "both")
    for part, bars in zip(parts, axes["forgetting-parts"][0].containers, strict=True):
        assert [bar.get_height() for bar in bars] == [getattr(each, part) for each in found]
    assert values(effects_table(full))[0][1:] == [getattr(found[0], part) for part in parts]
    probe = full.composition.probe
    for panel, accuracies in zip(axes["probes"], (probe.own, probe.joint), strict=True):
        assert texts(panel) == [f"{value:.2f}" for row in accuracies for value in row]


def test_without_composition_the_page_says_why(full: LoadedRun) -> None:
    plain = replace(full, composition=None)
    for found, reason in (
        (plain, "--compose"),
        (replace(plain, no_composition="no disk"), "no disk"),
    ):
        (section,) = [s for s in run_sections(found) if s.key == "composition"]
        assert section.figures == []
        assert any(isinstance(b, Paragraph) and reason in b.text for b in section.blocks)


def test_cost_is_that_of_the_record(full: LoadedRun, axes: dict[str, list[Axes]]) -> None:
    for row, stage in zip(values(cost_table(full)), full.stages, strict=True):
        assert row[:3] == [stage.trainable_parameters, stage.stored_bytes, stage.seconds]
    bars = axes["time"][0].containers
    drawn = np.array([[bar.get_width() for bar in group] for group in bars])
    assert np.allclose(drawn.sum(0), [stage.seconds for stage in full.stages])
    assert all(min(each) >= 0 for each in stage_seconds(full).values())


# ------------------------------------------------------------------ the page


def test_the_page_is_self_contained_and_valid(report: Path, sections: list[Section]) -> None:
    text = report.read_text("utf-8")
    page = PageReader(text)
    assert len(text) < 5_000_000
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert set(page.hosts) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in text
    assert not [name for name, count in Counter(page.ids).items() if count > 1]
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert {section.key for section in sections} <= set(page.ids)
    assert page.headings[0] == "h1"
    assert page.headings.count("h1") == 1
    assert page.loose_headers == 0
    assert text.count("<svg ") == text.count('role="img" aria-label="') == text.count("<figure")


def test_every_figure_has_files_a_title_and_a_caption(
    report: Path, sections: list[Section]
) -> None:
    blocks = [block for section in sections for block in section.figures]
    assert len({block.name for block in blocks}) == len(blocks) > 20
    assert len({block.title for block in blocks}) == len(blocks)
    for block in blocks:
        assert block.caption
        path = report.parent / "figures" / f"{block.name}.svg"
        assert ElementTree.parse(path).getroot().get("role") == "img"
        with Image.open(path.with_suffix(".png")) as picture:
            assert min(picture.size) > 100


def tables_in(sections: Sequence[Section]) -> Iterator[Table]:
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Table):
                yield block
            elif isinstance(block, FigureBlock):
                yield from block.tables


def test_every_table_is_rectangular(sections: list[Section]) -> None:
    tables = list(tables_in(sections))
    assert len(tables) > 20
    for table in tables:
        assert all(len(row) == len(table.heads) for row in table.rows), table.caption


def test_the_page_says_how_to_reproduce_the_run(report: Path, full: LoadedRun) -> None:
    text = PageReader(report.read_text("utf-8")).text
    backbone, environment = full.record.backbone, full.record.environment
    assert backbone is not None
    assert environment is not None
    for said in (
        "sodap run default 'data=my dir'",
        backbone.sha256,
        environment.python,
        f"torch {environment.packages['torch']}",
        "batch_size: 16",
    ):
        assert said in text
    for row in full.record.R.accuracy:
        for value in row:
            assert f"{value:.3f}" in text


def test_other_code_and_notes_are_problems(full: LoadedRun) -> None:
    assert full.record.environment is not None
    earlier = full.record.environment.model_copy(update={"sodap": "0.0.7", "commit": None})
    run = with_record(
        full,
        earlier_environments=[earlier.model_dump()],
        edits={"stream.notes": ["The labels are noisy."]},
    )
    found = problems(run)
    assert any("sodap 0.0.7, commit unknown" in text for text in found)
    assert "The labels are noisy." in found


def test_names_are_escaped(full: LoadedRun) -> None:
    odd = with_record(
        full,
        edits={"stream.name": "<b>bold</b>", "stream.domains.0.name": "a & <script>b</script>"},
    )
    section = replace(run_sections(replace(odd, stream=None))[0])
    page = report_page([odd], [section])
    assert "<b>bold" not in page
    assert "<script>b" not in page
    assert "a & <script>b</script>" in PageReader(page).text


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_kept_results_have_a_page(path: Path) -> None:
    (found,) = load_runs([path])
    sections = run_sections(found)
    page = PageReader(report_page([found], sections[:1])).text
    metrics = found.record.metrics.accuracy
    assert metrics is not None
    assert f"{metrics.average_accuracy:.3f}" in page
    assert isinstance(found.record, RunRecord)
    assert {"accuracy", "cost", "origin"} <= {section.key for section in sections}
