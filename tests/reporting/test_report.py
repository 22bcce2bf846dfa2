"""The evidence page: what is drawn and written is what a run has left, in whatever state it is."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from sodap.errors import SodapError
from sodap.evaluation import effects, metric_intervals, reliability, summary
from sodap.reporting.figures.svg import lay_out
from sodap.reporting.loading import (
    ShownRun,
    find_runs,
    labelled,
    read_run,
    with_composition,
    with_stream,
)
from sodap.reporting.pages.blocks import Card, Cell, Drawing, Prose, Section, Table
from sodap.reporting.pages.comparison import (
    comparison_sections,
    differences_table,
    images_table,
    method_table,
    runs_table,
    shaded_matrix,
)
from sodap.reporting.pages.composition import (
    composition_figure,
    effects_figure,
    effects_table,
    probe_figure,
)
from sodap.reporting.pages.cost import cost_table, stage_seconds, time_figure
from sodap.reporting.pages.growth import (
    drift_figure,
    drift_table,
    growth_section,
    pool_table,
)
from sodap.reporting.pages.origin import troubles
from sodap.reporting.pages.report import report_page, write_report
from sodap.reporting.pages.results import (
    calibration,
    calibration_figure,
    confusion_figure,
    metrics_table,
    recall_figure,
)
from sodap.reporting.pages.routing import (
    frequency,
    frequency_figure,
    images_figure,
    selection_figure,
    selection_table,
    support_figure,
    variety,
)
from sodap.reporting.pages.sections import sections_of
from sodap.reporting.pages.similarity import likeness_figure
from sodap.reporting.pages.stream import checks_table, counts_table
from sodap.reporting.pages.training import (
    kept_epochs,
    losses_drawing,
    schedule_figure,
    stops_table,
)
from sodap.reporting.tables.formats import rows_of
from sodap.reporting.tables.stream_table import METRICS, make_tables
from sodap.runs import RunCallback, load_config, run
from sodap.storage import load_state
from sodap.streams import Stage
from sodap.streams.splits import SplitRow
from tests.conftest import make_stream
from tests.reporting.made_runs import a_record

QUICK = ["epochs=2", "patience=2", "batch_size=16", "device=cpu"]
DOMAINS, CLASSES = 3, 3
KEPT = sorted((Path(__file__).parents[2] / "results" / "digits").glob("*-s0.json"))


class StopError(Exception):
    pass


class Stopper(RunCallback):
    """Breaks a run off after so many epochs."""

    def __init__(self, epochs: int, error: type[BaseException]) -> None:
        self.left, self.error = epochs, error

    def epoch_done(self, stage: Stage, row: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("the plug was pulled")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three stages: finished ones of two methods and seeds, and two that broke off."""
    home = tmp_path_factory.mktemp("runs")
    stream = make_stream(DOMAINS, CLASSES)
    wanted = {"sodap-0": ("default", "seed=0"), "plain-0": ("sequential", "seed=0")}
    wanted |= {"plain-1": ("sequential", "seed=1")}
    for name, (recipe, *changes) in wanted.items():
        config = load_config(recipe, [*QUICK, *changes])
        run(config, home / name, stream=stream, command=["sodap", "run", name])
    config = load_config("default", [*QUICK, "seed=5"])
    with pytest.raises(StopError):
        run(config, home / "failed", stream=stream, callback=Stopper(3, StopError))
    with pytest.raises(KeyboardInterrupt):
        run(config, home / "stopped", stream=stream, callback=Stopper(1, KeyboardInterrupt))
    return home


@pytest.fixture(scope="module")
def full(home: Path) -> ShownRun:
    """The run of Residual SODAP with its images, and with its heads exchanged."""
    found = replace(read_run(home / "sodap-0"), stream=make_stream(DOMAINS, CLASSES), no_stream="")
    return with_composition(found)


def table_of(blocks: Any, caption: str) -> Table:
    (found,) = [b for b in blocks if isinstance(b, Table) and b.caption.startswith(caption)]
    return found


def values(table: Table) -> list[list[float | None]]:
    return [[c.value for c in row if isinstance(c, Cell)] for row in table.rows]


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def image(axes: Axes) -> np.ndarray[Any, Any]:
    return np.asarray(axes.images[0].get_array())


# ------------------------------------------------------------------ what is remembered


def test_metrics_are_those_of_the_record_with_intervals(full: ShownRun) -> None:
    table = metrics_table(full)
    metrics = full.record["metrics"]["accuracy"]
    shown = {row[0]: row for row in table.rows}
    outcomes = full.outcomes()
    assert outcomes is not None
    ends = metric_intervals(outcomes)
    for title, key in (("AvgACC", "average_accuracy"), ("BWT", "backward_transfer")):
        value, interval = shown[title][1:]
        assert isinstance(value, Cell)
        assert isinstance(interval, Cell)
        assert value.value == metrics[key]
        known = ends[key]
        assert known is not None
        assert interval.text == f"{known.low + 0.0:.3f} to {known.high + 0.0:.3f}"
    R = np.stack([table.mean(1) for table in outcomes], 1)
    assert R.tolist() == full.record["R"]["accuracy"]


def test_recall_and_confusion_are_drawn(full: ShownRun) -> None:
    matrices = np.array(full.record["confusions"][-1])
    drawn = words(recall_figure(full).axes[0])
    expected = [f"{m[c, c] / m[c].sum():.2f}" for m in matrices for c in range(CLASSES)]
    assert drawn == expected
    panels = confusion_figure(full).axes
    assert [axes.get_title() for axes in panels] == full.domains
    for axes, matrix in zip(panels, matrices, strict=True):
        assert words(axes) == [str(n) for n in matrix.ravel() if n]
        opacity = image(axes)[..., 3]
        share = matrix / matrix.sum(1, keepdims=True)
        assert np.allclose(opacity, share**0.6)


def test_calibration_is_drawn(full: ShownRun) -> None:
    found = calibration(full)
    last = full.evidence[-1]
    for axes, each, sure, right in zip(
        calibration_figure(full, found).axes, found, last.confidence, last.right, strict=True
    ):
        expected = reliability(sure.numpy(), right.numpy())
        assert axes.get_title().endswith(f"\nECE {expected.error:.3f}")
        some = each.counts > 0
        heights = [bar.get_height() for bar in axes.containers[0]]
        middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.containers[0]]
        assert np.allclose(heights, expected.accuracy[some])
        assert np.allclose(middles, expected.confidence[some])


def test_answers_that_are_no_numbers_are_told_and_the_rest_is_shown(full: ShownRun) -> None:
    """After the second stage, on one domain; whatever else there is to show is shown."""
    first, second, third = full.evidence
    tensors = {**second.tensors, "confidence.1": second.tensors["confidence.1"] * float("nan")}
    broken = replace(full, evidence=[first, replace(second, tensors=tensors), third])
    page = report_page([broken], sections_of(broken))
    told = f"The answers of {full.name} are no numbers: after stage 2 on {full.domains[1]}."
    assert told in page
    assert "Recall after the last stage" in page
    assert "Calibration of" not in page
    assert "are no numbers" not in report_page([full], sections_of(full))


@pytest.mark.parametrize("count", [1, 3, 4, 5])
@pytest.mark.parametrize("name", ["03-deepdrid_uwf", "a-camera-that-has-a-very-long-name"])
def test_calibration_is_told_whole_under_long_names(full: ShownRun, name: str, count: int) -> None:
    domains = [{"name": f"{name}{place}"} for place in range(count)]
    named = replace(full, record={**full.record, "stream": {"domains": domains}})
    found = (calibration(full) * count)[:count]
    figure = calibration_figure(named, found)
    lay_out(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pen = canvas.get_renderer()  # type: ignore[no-untyped-call]
    boxes = [axes.title.get_window_extent(pen) for axes in figure.axes]
    for axes, each, box in zip(figure.axes, found, boxes, strict=True):
        assert axes.get_title().endswith(f"\nECE {each.error:.3f}")
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        others = [*boxes, *(label.get_window_extent(pen) for label in figure.texts)]
        assert sum(box.overlaps(other) for other in others) == 1, "itself only"


# ------------------------------------------------------------------ the stream


def test_counts_are_those_of_the_record(full: ShownRun) -> None:
    table = counts_table(full)
    expected = [
        [*counts, sum(counts)]
        for domain in full.record["stream"]["domains"]
        for counts in domain["counts"].values()
    ]
    assert values(table) == expected


def verdicts(found: ShownRun) -> dict[str, str]:
    return {str(row[0]): str(row[1]) for row in checks_table(found).rows}


def test_splits_are_checked(full: ShownRun) -> None:
    assert list(verdicts(full).values()) == ["good", "not checked", "not checked", "good"]
    rows = [
        SplitRow("domain 0", "a.png", "x", "x", "patient 1", "train"),
        SplitRow("domain 0", "b.png", "x", "x", "patient 1", "test"),
        SplitRow("domain 1", "a.png", "x", "x", "patient 1", "test"),
    ]
    leaking = replace(full, splits=rows)
    assert list(verdicts(leaking).values()) == ["good", "good", "not good", "good"]
    assert any("patient 1" in sentence for sentence in troubles(leaking))


def test_a_picture_in_two_splits_is_found(full: ShownRun) -> None:
    stream = make_stream(DOMAINS, CLASSES)
    stream.domains[2].test.images[0] = stream.domains[0].train.images[5]
    assert list(verdicts(replace(full, stream=stream)).values())[3] == "not good"


def test_images_can_be_left_out(full: ShownRun) -> None:
    names = {d.name for s in sections_of(full) for d in s.drawings}
    bare = {d.name for s in sections_of(replace(full, images=False)) for d in s.drawings}
    assert names - bare == {"stream-samples", "routing-images"}


def test_other_images_are_not_taken_for_those_of_the_run(home: Path) -> None:
    found = with_stream(read_run(home / "sodap-0"))  # its settings name the digits
    assert found.stream is None
    assert "is not the stream of this run" in found.no_stream
    missing = read_run(home / "sodap-0")
    config = {**missing.record["config"], "stream": "nowhere"}
    missing = with_stream(replace(missing, record={**missing.record, "config": config}))
    assert "the images are not at hand: no stream is called 'nowhere'" in missing.no_stream


# ------------------------------------------------------------------ pool and drift


def test_drift_of_every_layer_and_batch_is_drawn(full: ShownRun) -> None:
    met = full.stages[1:]
    strongest = max(np.max(stage["begun"]["drift"]["scores"]) for stage in met)
    panels = drift_figure(met).axes
    for axes, stage in zip(panels, met, strict=True):
        scores = np.array(stage["begun"]["drift"]["scores"]).T
        assert np.allclose(image(axes)[..., 3], (scores / strongest) ** 0.6)
    assert [row[0] for row in drift_table(full).rows] == ["2 domain 1", "3 domain 2"]
    for row, stage in zip(drift_table(full).rows, met, strict=True):
        assert str(stage["begun"]["drift"]["added"]) in str(row[-1])
    pools = [stage["ended"]["pool"] for stage in full.stages]
    assert [row[1:] for row in values(pool_table(full))] == [
        [pool["frozen"], pool["active"], pool["unused"]] for pool in pools
    ]


def test_drift_that_was_hardly_measured_is_called_so(full: ShownRun) -> None:
    run = copy.deepcopy(full)

    def words(past: int) -> str:
        run.stages[1]["begun"]["drift"]["past_batches"] = past
        section = growth_section(run)
        assert section is not None
        return " ".join(block.text for block in section.blocks if isinstance(block, Prose))

    run.stages[2]["begun"]["drift"]["past_batches"] = 10
    assert "hardly measured" not in words(past=10)
    told = words(past=4)
    assert "hardly measured in stage 2 domain 1: there were 4 of 10 batches to compare" in told


def test_drift_above_its_band_is_orange() -> None:
    band = {"mean": 0.8, "low": 0.5, "high": 1.0}
    drift = {"scores": [[0.9, 1.1]], "null_band": band, "score": 1.0, "added": 3}
    stage = {"stage": 2, "domain": "fog", "begun": {"drift": drift}}
    inside, above = image(drift_figure([stage]).axes[0])[:, 0]
    assert inside[2] > inside[0]  # more blue than red
    assert above[0] > above[2]


# ------------------------------------------------------------------ routing


def test_selections_of_single_images_are_drawn(full: ShownRun) -> None:
    stage = full.evidence[-1]
    routed = stage.routing[-1]
    assert routed.weights is not None
    weights = routed.weights.float().numpy().astype(float)
    images, layers, prompts = weights.shape
    strongest = np.quantile(weights[weights > 0], 0.99)
    panels = selection_figure(full, stage, routed).axes
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


def test_the_images_that_were_routed_are_shown(full: ShownRun) -> None:
    routed = full.evidence[0].routing[0]
    assert full.stream is not None
    assert routed.shown is not None
    sheet = image(images_figure(full, routed).axes[0])
    first = full.stream.domains[0].test.images[int(routed.shown[0])].permute(1, 2, 0).numpy()
    assert np.array_equal(sheet[:32, :32, :3], first)


def test_counts_of_selections_are_drawn(full: ShownRun) -> None:
    for axes, stage in zip(support_figure(full).axes, full.evidence, strict=True):
        means = np.mean([r.support.double().mean(0).numpy() for r in stage.routing], axis=0)
        frozen, active = ([bar.get_height() for bar in bars] for bars in axes.containers)
        assert np.allclose(frozen, means[:, 0])
        assert np.allclose(active, means[:, 1])
    for axes, stage in zip(frequency_figure(full).axes, full.evidence, strict=True):
        drawn = np.concatenate([patch.get_data().values for patch in axes.patches])  # type: ignore[attr-defined]
        assert np.allclose(drawn, frequency(stage))
        naive = np.mean([r.frequency.numpy().mean(0) for r in stage.routing], axis=0)
        assert np.allclose(frequency(stage), naive)


def test_likeness_is_drawn_before_and_after(full: ShownRun) -> None:
    panels = likeness_figure(full, full.evidence).axes
    sizes = [image(axes).shape[0] for axes in panels]
    assert sizes == [values(pool_table(full))[stage][0] for stage in range(DOMAINS)]
    for axes, stage in zip(panels, full.evidence, strict=True):
        assert stage.similarity is not None
        cosines = np.abs(stage.similarity.float().numpy())
        assert np.allclose(image(axes)[..., 3], np.clip(cosines, 0, 1) ** 0.6, atol=1e-5)


def test_variety_is_the_mean_distance_of_pairs(full: ShownRun) -> None:
    routed = full.evidence[-1].routing[0]
    assert routed.weights is not None
    weights = routed.weights.double()[:, 1].numpy()
    shares = weights / weights.sum(1, keepdims=True)
    pairs = [(i, j) for i in range(len(shares)) for j in range(i)]
    naive = np.mean([np.abs(shares[i] - shares[j]).sum() / 2 for i, j in pairs])
    assert variety(routed)[1] == pytest.approx(naive)


# ------------------------------------------------------------------ learning, parts, cost


def test_scores_and_learning_rates_of_every_epoch_are_drawn(full: ShownRun) -> None:
    top, bottom = schedule_figure(full).axes
    for axes, key in ((top, "val_macro_f1"), (bottom, "lr")):
        lines = [
            line for line in axes.lines if line.get_marker() == "o" and line.get_linestyle() == "-"
        ]
        drawn = [(x, y) for line in lines for x, y in np.array(line.get_xydata()).tolist()]
        assert drawn == [(at, row[key]) for at, row in enumerate(full.log, 1)]
    best = [stage["best_epoch"] for stage in full.stages]
    assert [at for at, _ in kept_epochs(full)] == [2 * i + b for i, b in enumerate(best)]
    assert [row[-1] for row in stops_table(full).rows] == ["all epochs done"] * 3


def test_losses_and_weights_of_every_step_are_drawn(home: Path, full: ShownRun) -> None:
    kept = [load_state(home / "sodap-0" / "steps", f"stage-{n}")[0] for n in range(1, DOMAINS + 1)]
    drawing = losses_drawing(full)
    for axes, kind in zip(drawing.figure.axes, ("loss", "weight"), strict=True):
        columns = {name for tensors in kept for name in tensors if name.startswith(f"{kind}.")}
        assert {f"{kind}.ce", f"{kind}.pseudo"} <= columns
        for column in columns:
            label = "_" + column.removeprefix(f"{kind}.")
            points = [each.get_xydata() for each in axes.lines if each.get_label() == label]
            expected = [
                [(4.0 * stage + at, value) for at, value in enumerate(tensors[column].tolist(), 1)]
                for stage, tensors in enumerate(kept)  # 24 images, 16 at a time, two epochs
                if column in tensors
            ]
            assert [[tuple(point) for point in np.array(each).tolist()] for each in points] == (
                expected
            )
    assert drawing.caption.startswith("Every loss at each of 12 steps, and below the weight")
    assert "dots are means of whole epochs" in drawing.caption


def test_the_steps_of_a_long_run_are_thinned_and_that_is_said(
    full: ShownRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sodap.reporting.pages.training.MOST_POINTS", 5)
    drawing = losses_drawing(full)
    assert "at 12 steps, each point the mean of 3" in drawing.caption
    ce = full.steps[0][2].losses["ce"].numpy()
    drawn = [each.get_ydata() for each in drawing.figure.axes[0].lines if each.get_label() == "_ce"]
    assert np.allclose(np.array(drawn[1]), [ce[:3].mean(), ce[3]])


def test_without_single_steps_epochs_are_drawn_and_that_is_said(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "sodap-0", tmp_path / "run")
    next((tmp_path / "run" / "steps").glob("stage-2-*")).write_bytes(b"broken")
    torn = losses_drawing(read_run(tmp_path / "run"))
    assert "Single steps are not shown" in torn.caption
    assert "is damaged: its checksum does not match" in torn.caption
    shutil.rmtree(tmp_path / "run" / "steps")
    older = losses_drawing(read_run(tmp_path / "run"))
    assert "not every epoch left its steps (an older version of sodap)" in older.caption
    (line,) = [each for each in older.figure.axes[0].lines if each.get_label() == "ce"]
    drawn = [y for y in np.array(line.get_ydata()).tolist() if y == y]
    assert drawn == [row["losses"]["ce"] for row in read_run(tmp_path / "run").log]


def test_compositions_are_drawn(full: ShownRun) -> None:
    assert full.composition is not None
    A = np.array(full.composition["accuracy"])
    for domain, axes in enumerate(composition_figure(full).axes):
        assert axes.get_title() == full.domains[domain]
        assert words(axes) == [f"{value:.2f}" for value in A[:, :, domain].ravel()]
    found = effects(A)
    bars = effects_figure(full).axes[0].containers
    parts = ("representation", "classifier", "interaction", "both")
    for part, group in zip(parts, bars, strict=True):
        assert [bar.get_height() for bar in group] == [getattr(each, part) for each in found]
    shown = values(effects_table(full))
    assert shown[0][1:] == [getattr(found[0], part) for part in parts]
    own, joint = probe_figure(full).axes
    assert words(own) == [f"{v:.2f}" for row in full.composition["probe"]["own"] for v in row]
    assert words(joint) == [f"{v:.2f}" for row in full.composition["probe"]["joint"] for v in row]


def test_cost_is_that_of_the_record(full: ShownRun) -> None:
    rows = values(cost_table(full))
    for row, stage in zip(rows, full.stages, strict=True):
        assert row[0] == stage["trainable_parameters"]
        assert row[1] == sum(asset["bytes"] for asset in stage["stored"])
        assert row[2] == stage["seconds"]
    bars = time_figure(full).axes[0].containers
    drawn = np.array([[bar.get_width() for bar in group] for group in bars])
    assert np.allclose(drawn.sum(0), [stage["seconds"] for stage in full.stages])
    assert all(min(each.values()) >= 0 for each in stage_seconds(full))


# ------------------------------------------------------------------ the page


class Reader(HTMLParser):
    """What a browser would have to fetch, and whether tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [v for k, v in attrs if k in ("src", "xlink:href", "href") and v]
        self.ids += [name for key, name in attrs if key == "id" and name]
        if tag == "a":
            self.links.append(str(given.get("href")))
        if tag not in ("meta", "input", "img", "br", "link", "path", "use", "image", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_page_needs_no_other_file_and_is_small(full: ShownRun, tmp_path: Path) -> None:
    began = time.process_time()
    page = write_report([full], tmp_path / "report")
    assert time.process_time() - began < 10  # of the processor, however busy the machine is
    text = page.read_text("utf-8")
    assert len(text) < 5_000_000
    reader = read(text)
    assert all(value.startswith(("data:", "#")) for value in reader.fetched)
    assert "@import" not in text
    assert "url(http" not in text
    assert not [name for name, count in Counter(reader.ids).items() if count > 1]
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    for section in sections_of(full):
        assert f'id="{section.key}"' in text
        for drawing in section.drawings:
            assert (tmp_path / "report" / "figures" / f"{drawing.name}.svg").is_file()
            root = ElementTree.parse(tmp_path / "report" / "figures" / f"{drawing.name}.svg")
            assert root.getroot().get("role") == "img"
            with Image.open(tmp_path / "report" / "figures" / f"{drawing.name}.png") as picture:
                assert min(picture.size) > 100


def test_every_figure_has_a_name_of_its_own_and_says_what_it_is(full: ShownRun) -> None:
    drawings = [drawing for section in sections_of(full) for drawing in section.drawings]
    assert len({drawing.name for drawing in drawings}) == len(drawings)
    assert len({drawing.title for drawing in drawings}) == len(drawings)
    assert all(drawing.caption for drawing in drawings)


def test_origin_is_told(full: ShownRun) -> None:
    page = report_page([full], sections_of(full))
    record = full.record
    for told in (
        "sodap run sodap-0",
        record["backbone"]["sha256"],
        record["environment"]["python"],
        f"torch {record['environment']['packages']['torch']}",
        "batch_size: 16",
        "Nothing was reported.",
    ):
        assert told in page


def test_a_run_that_went_on_with_other_code_is_told(full: ShownRun) -> None:
    earlier = [{"sodap": "0.0.7", "commit": None}]
    mixed = replace(full, record={**full.record, "earlier_environments": earlier})
    words = "learned in part with other code or packages (sodap 0.0.7, commit unknown)"
    assert words in " ".join(troubles(mixed))


def test_names_are_taken_literally(full: ShownRun) -> None:
    record = json.loads(json.dumps(full.record))
    record["stream"]["name"] = "<b>bold</b>"
    record["stream"]["domains"][0]["name"] = "a & <script>b</script>"
    odd = replace(full, record=record, stream=None, no_stream="gone")
    page = report_page([odd], sections_of(odd))
    assert "<b>bold" not in page
    assert "<script>b" not in page


@pytest.mark.parametrize(("name", "stages"), [("failed", 1), ("stopped", 0)])
def test_a_run_that_broke_off_is_told_and_shown(home: Path, name: str, stages: int) -> None:
    found = read_run(home / name)
    assert len(found.stages) == stages
    page = report_page([found], sections_of(found))
    assert "is not complete" in page
    status = {"failed": "failed", "stopped": "interrupted"}[name]
    assert status in page
    reason = {"failed": "StopError: the plug was pulled", "stopped": "stopped by the user"}[name]
    assert reason in page
    assert "Losses of residual-sodap" in page  # the epochs that were done
    assert f"It has learned {stages} of 3 domains." in " ".join(troubles(found))


def test_a_run_that_was_killed_at_the_start(home: Path, tmp_path: Path) -> None:
    shutil.copy(home / "sodap-0" / "config.json", tmp_path)
    (found,) = find_runs([tmp_path])
    page = report_page([found], sections_of(found))
    assert "it ended before it could write a record" in page


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("record.json", '{"status": "fin', "record.json is damaged"),
        ("record.json", '{"status": "finished"}', "record.json is not the record of a run"),
        ("splits.csv", "domain,path\nnorth", "splits.csv"),
        ("log.jsonl", "[1, 2]\n{", "2 lines of log.jsonl cannot be read"),
    ],
)
def test_a_damaged_run_has_a_page_as_well(
    home: Path, tmp_path: Path, file: str, content: str, words: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(home / "sodap-0", folder)
    with_composition(read_run(folder))
    (folder / file).write_text(content)
    (found,) = find_runs([folder])
    assert words in " ".join(found.troubles)
    assert words in report_page([found], sections_of(found))


def test_damage_is_told_and_the_rest_is_shown(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "sodap-0", tmp_path / "run")
    next((tmp_path / "run" / "evidence").glob("stage-2-*")).write_bytes(b"broken")
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"stage": 3, "do')
    found = read_run(tmp_path / "run")
    page = report_page([found], sections_of(found))
    assert "1 line of log.jsonl cannot be read" in page
    assert "is damaged: its checksum does not match" in page
    assert "The run left no answers to single images" in page
    shutil.rmtree(tmp_path / "run" / "evidence")
    assert any("left no evidence" in words for words in troubles(read_run(tmp_path / "run")))


def test_a_path_is_quoted_as_it_is(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "sodap-0", tmp_path / "e1")
    next((tmp_path / "e1" / "evidence").glob("stage-2-*")).write_bytes(b"broken")
    monkeypatch.chdir(tmp_path)
    (told,) = troubles(read_run(Path("e1")))
    assert re.match(r"e1/evidence/stage-2-\w+\.safetensors is damaged: .+\.$", told)


def test_without_composition_the_page_says_why(home: Path, full: ShownRun) -> None:
    plain = replace(read_run(home / "sodap-0"), composition=None)
    asked = with_composition(replace(plain, no_stream="the images are not at hand"))
    assert "It was not measured: the images are not at hand." in report_page(
        [asked], sections_of(asked)
    )
    assert "sodap report RUN --compose" in report_page([plain], sections_of(plain))


def test_prompts_that_show_no_routing_are_compared_all_the_same(tmp_path: Path) -> None:
    config = load_config("default", ["method=coda-prompt", "epochs=1", "device=cpu"])
    run(config, tmp_path / "run", stream=make_stream())
    found = read_run(tmp_path / "run")
    sections = {section.key: section for section in sections_of(found)}
    assert [drawing.name for drawing in sections["routing"].drawings] == ["prompt-likeness"]
    assert "coda-prompt on stripes" in report_page([found], list(sections.values()))


# ------------------------------------------------------------------ several runs


@pytest.fixture(scope="module")
def several(home: Path) -> list[ShownRun]:
    return find_runs([home / name for name in ("sodap-0", "plain-0", "plain-1", "failed")])


def test_runs_are_found_in_folders_and_told_apart(home: Path) -> None:
    found = find_runs([home])
    assert [run.folder.name for run in found if run.folder] == [
        "failed", "plain-0", "plain-1", "sodap-0", "stopped",
    ]  # fmt: skip
    config = {**found[1].record["config"], "training": {"lr": 0.5}}
    other = replace(found[1], record={**found[1].record, "config": config})
    one, two = labelled([found[1], other])
    assert "lr=0.5" in two.label
    assert one.label != two.label
    same, again = labelled([found[1], found[1]])
    assert (same.label, again.label) == ("sequential", "sequential (again, 2)")


def test_a_variant_has_one_name(several: list[ShownRun]) -> None:
    """That of its record; its method is called as ever."""
    plain = next(run for run in several if run.method == "sequential" and run.seed == 0)
    config = {**plain.record["config"], "options": {"faithful": True}}
    name = "sequential@faithful"
    changed = replace(plain, record={**plain.record, "config": config, "variant": name}, label="")
    runs = labelled([replace(plain, label=""), changed])
    assert [run.label for run in runs] == ["sequential", name]
    assert runs[1].title == f"{name} on stripes, seed 0"
    sections = comparison_sections(runs)
    page = report_page(runs, sections)
    assert "faithful=" not in page
    assert "Variants (@) are not ranked." in page
    assert "2 runs of 2 methods on stripes" in page
    (table,) = make_tables([run.record for run in runs])
    assert table.methods == ["sequential", name]
    (lines,) = [d for s in sections for d in s.drawings if d.name == "forgetting-1"]
    legend = [line.get_label() for line in lines.figure.axes[0].lines]
    assert {"1: sequential", f"2: {name}"} <= set(legend)
    named = [block.rows for s in sections for block in s.blocks if isinstance(block, Table)]
    first = [[row[0] for row in rows] for rows in named]
    assert first[0] == ["sequential", name, "constant"]
    assert [name] in first, "differences are those of the variant to its method"


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_kept_results_can_be_shown(path: Path) -> None:
    """They hold less than the folder of a run: no answers, no log, the sum of what is stored."""
    (found,) = find_runs([path])
    page = report_page([found], sections_of(found))
    assert f"{found.record['metrics']['accuracy']['average_accuracy']:.3f}" in page
    assert "only the record is at hand" in page


@pytest.mark.parametrize("content", [None, '{"a": 1}', "no json"])
def test_what_is_no_run(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "record"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SodapError):
        find_runs([path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SodapError, match="no run is in"):
        find_runs([tmp_path / "empty"])


def test_every_run_has_a_row_and_a_matrix(several: list[ShownRun]) -> None:
    table = runs_table(several)
    assert len(table.rows) == 4
    for row, found in zip(table.rows, several, strict=True):
        scores = summary(found.record["R"]["accuracy"])
        cell = row[5]
        assert isinstance(cell, Cell)
        assert cell.value == scores["average_accuracy"]
    cards = [b for s in comparison_sections(several) for b in s.blocks if isinstance(b, Card)]
    assert [card.tag for card in cards] == list(table.tags)
    for card, found in zip(cards, several, strict=True):
        assert values(card.table) == found.record["R"]["accuracy"]
        assert card.table == shaded_matrix(found)


def test_methods_and_streams_as_in_the_paper(several: list[ShownRun]) -> None:
    table = method_table(make_tables([run.record for run in several if run.status == "finished"]))
    assert table.heads == ["Method", "stripes AvgACC", "stripes AvgF"]
    shown = {row[0]: row[1] for row in table.rows}
    plain = [
        summary(run.record["R"]["accuracy"])["average_accuracy"] or 0.0
        for run in several
        if run.method == "sequential"
    ]
    cell = shown["sequential"]
    assert isinstance(cell, Cell)
    assert cell.value == pytest.approx(np.mean(plain))
    assert cell.text == f"{np.mean(plain):.3f} ± {np.std(plain, ddof=1):.3f}"
    assert "constant" in shown


def test_differences_image_by_image(several: list[ShownRun]) -> None:
    pair = [run for run in several if run.seed == 0 and run.status == "finished"]
    table = images_table(pair, "residual-sodap")
    ((name, cell, *_),) = table.rows
    assert name == "sequential"
    gaps = [summary(run.record["R"]["accuracy"])["average_accuracy"] or 0.0 for run in pair]
    assert isinstance(cell, Cell)
    assert cell.value == pytest.approx(gaps[1] - gaps[0])


def changed(run: ShownRun, part: str = "config", **settings: Any) -> ShownRun:
    """The run with other settings in its record."""
    return replace(run, record={**run.record, part: {**run.record.get(part, {}), **settings}})


def differences(runs: list[ShownRun], against: str | None = None) -> list[Table | Prose]:
    (section,) = [s for s in comparison_sections(runs, against) if s.key == "differences"]
    return [block for block in section.blocks if isinstance(block, Table | Prose)]


def paired(runs: list[ShownRun]) -> list[list[Any]]:
    """The names in each table of differences by image."""
    tables = [b for b in differences(runs) if isinstance(b, Table) and "by test image" in b.caption]
    return [[row[0] for row in table.rows] for table in tables]


def test_only_runs_with_the_same_test_images_are_paired_by_image(several: list[ShownRun]) -> None:
    one, two = [run for run in several if run.seed == 0 and run.status == "finished"]
    assert paired([one, two]) == [["sequential"]]
    stream = {**two.record["stream"], "classes": ["x", "y", "z"]}
    for other in (
        changed(two, split_seed=3),
        changed(two, splits="a.csv"),
        changed(two, stream="elsewhere"),
        replace(two, record={**two.record, "stream": stream}),
    ):
        assert paired([one, other]) == []
        (told,) = [block.text for block in differences([one, other]) if isinstance(block, Prose)]
        assert told.startswith("stripes, seed 0: not paired by image, since they are not known to")
        assert told.endswith("tested on the same ones: residual-sodap; with sequential.")


def test_the_list_of_splits_tells_whether_test_images_are_the_same(
    several: list[ShownRun],
) -> None:
    one, two = [run for run in several if run.seed == 0 and run.status == "finished"]
    rows = [SplitRow("domain 0", f"{n}.png", "x", "x", "", "test") for n in range(3)]
    trained = SplitRow("domain 0", "t.png", "x", "x", "", "train")
    listed = replace(one, splits=rows)
    same = replace(changed(two, split_seed=3, splits="a.csv"), splits=[trained, *rows])
    assert paired([listed, same]) == [["sequential"]]
    stream = json.loads(json.dumps(two.record["stream"]))
    stream["domains"][0]["counts"]["train"] = [1, 1]  # which changes no test image
    fewer = replace(two, record={**two.record, "stream": stream}, splits=rows)
    assert paired([listed, fewer]) == [["sequential"]]
    assert paired([listed, replace(two, splits=rows[::-1])]) == []
    assert paired([listed, replace(two, splits=rows[:2])]) == []


def test_runs_on_unequal_terms_are_warned_of(several: list[ShownRun]) -> None:
    one, two = [run for run in several if run.seed == 0 and run.status == "finished"]

    def told(*runs: ShownRun) -> Prose:
        blocks = comparison_sections(runs)[0].blocks
        (prose,) = [b for b in blocks if isinstance(b, Prose) and "highest AvgACC" in b.text]
        return prose

    assert told(one, two).tone == "plain"
    longer = changed(two, training={**two.record["config"]["training"], "epochs": 9})
    warned = told(one, longer)
    assert warned.tone == "warning"
    words = "not on equal terms: training.epochs is 2 for `residual-sodap` and 9 for `sequential`"
    assert words in warned.text


def test_the_report_and_the_table_make_the_same_differences_bold() -> None:
    """By Holm's correction: what is certain alone may not be among many."""
    rival = [0.700, 0.704, 0.698, 0.703, 0.699]
    near = [0.6985, 0.7000, 0.6970, 0.7005, 0.6985]
    levels = {"first": rival, "near": near}
    levels |= {
        f"m{n}": [x + 0.001 * ((n + k) % 3 - 1) for k, x in enumerate(rival)] for n in range(19)
    }
    records = []
    for method, numbers in levels.items():
        for seed, level in enumerate(numbers):
            record = a_record(method, seed, level)
            records.append(record | {"R": {**record["R"], "accuracy": [[level, 0.3], [level] * 2]}})
    (table,) = make_tables(records)
    gap = table.difference("near", "first", "average_accuracy")
    assert gap is not None
    assert gap.sign == -1
    found = differences_table(table, "first")
    assert "bold as in `sodap table`" in found.caption
    assert "corrected for all of its column (Holm)" in found.caption
    metrics = [METRICS["average_accuracy"]]
    expected = {row[0][0]: row[-1] for row in rows_of(table, metrics, "first")}
    assert not any(bold for _, bold in expected.values())
    for name, _, cell, *_ in found.rows:
        assert isinstance(cell, Cell)
        assert (cell.text, cell.bold) == expected[str(name)]


def test_whom_to_compare_with_can_be_said(several: list[ShownRun]) -> None:
    pair = [run for run in several if run.seed == 0 and run.status == "finished"]
    plain = [b.caption for b in differences(pair) if isinstance(b, Table)]
    assert all("minus residual-sodap, paired" in caption for caption in plain)
    asked = [b.caption for b in differences(pair, "sequential") if isinstance(b, Table)]
    assert len(asked) == len(plain) == 2
    assert all("minus sequential, paired" in caption for caption in asked)
    with pytest.raises(SodapError, match="no run of 'magic' is among those on stripes"):
        comparison_sections(pair, "magic")


def test_an_ablation_is_compared_with_the_full_method(several: list[ShownRun]) -> None:
    one, two = [run for run in several if run.seed == 0 and run.status == "finished"]
    parts = [
        replace(one, record={**one.record, "ablation": "qe"}),
        replace(two, record={**two.record, "ablation": "full"}),
    ]
    captions = [b.caption for b in differences(parts) if isinstance(b, Table)]
    assert all("minus sequential, paired" in caption for caption in captions)


def test_the_origin_of_several_runs_can_be_typed_and_marks_changes(
    several: list[ShownRun],
) -> None:
    record = {**several[0].record, "command": ["/opt/bin/sodap", "run", "default", "data=my dir"]}
    odd = changed(replace(several[0], record=record), "environment", commit="a" * 40 + "+changes")
    plain = changed(several[1], "environment", commit="b" * 40)
    (section,) = [s for s in comparison_sections([odd, plain]) if s.key == "origin"]
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    assert table.rows[0][2] == "sodap run default 'data=my dir'"
    assert [row[4] for row in table.rows] == ["a" * 12 + "+changes", "b" * 12]


def test_runs_on_a_stream_called_search_are_shown(home: Path, tmp_path: Path) -> None:
    for place in ("search/sequential/s0", "search/sequential/search/0"):
        shutil.copytree(home / "plain-0", tmp_path / place)
    assert [run.folder for run in find_runs([tmp_path])] == [tmp_path / "search/sequential/s0"]


def test_the_page_of_several_runs(several: list[ShownRun], tmp_path: Path) -> None:
    text = write_report(several, tmp_path).read_text("utf-8")
    assert "4 runs of 2 methods on stripes" in text
    assert "is not complete (failed: StopError: the plug was pulled)" in text
    keys = ("table", "runs", "differences", "matrices", "troubles", "origin")
    assert [section.key for section in comparison_sections(several)] == list(keys)
    reader = read(text)
    assert len(reader.ids) == len(set(reader.ids))
    assert all(value.startswith(("data:", "#")) for value in reader.fetched)


def test_only_unfinished_runs_can_be_compared_too(home: Path) -> None:
    broken = find_runs([home / "failed", home / "stopped"])
    page = report_page(broken, comparison_sections(broken))
    assert page.count("is not complete") >= 2


# ------------------------------------------------------------------ the command

SODAP = Path(sys.executable).parent / "sodap"


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SODAP), "report", *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_the_command_writes_the_page(home: Path, tmp_path: Path) -> None:
    done = call(str(home / "plain-0"), "--no-images", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (home / "plain-0" / "report" / "index.html").is_file()
    done = call(str(home / "plain-0"), str(home / "failed"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "index.html").is_file()
    done = call(str(home / "nothing"), cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"sodap: there is nothing at .*\n", done.stderr)


def sections_with_tables(sections: list[Section]) -> Iterator[Table]:
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Table):
                yield block
            elif isinstance(block, Drawing):
                yield from block.tables


def test_every_table_is_rectangular(full: ShownRun, several: list[ShownRun]) -> None:
    tables = [
        *sections_with_tables(sections_of(full)),
        *sections_with_tables(comparison_sections(several)),
    ]
    assert len(tables) > 20
    for table in tables:
        assert all(len(row) == len(table.heads) for row in table.rows), table.caption
