"""The numbers drawn are the numbers of the record."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sodap.reporting import (
    accuracy_matrix,
    drift,
    forgetting,
    losses,
    pool_growth,
    samples,
    to_svg,
)
from sodap.reporting.figures.losses import group_means, losses_by_step, unweighed
from sodap.reporting.figures.svg import lay_out

from .made_records import CLASSES, DOMAINS, made_log, made_record, made_stream, made_traces


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def labels(axes: Axes, which: str) -> list[str]:
    axis = axes.xaxis if which == "x" else axes.yaxis
    return [label.get_text() for label in axis.get_ticklabels()]


def line(axes: Axes, label: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """`[points, 2]` of the one line with this label."""
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return np.array(found.get_xydata())


def dotted(axes: Axes) -> list[list[float]]:
    return [np.array(line.get_ydata()).tolist() for line in axes.lines if line.is_dashed()]


def test_samples_show_one_row_a_domain_and_each_class() -> None:
    axes = samples(made_stream()).axes[0]
    sheet = np.asarray(axes.images[0].get_array())
    assert labels(axes, "x") == list(CLASSES)
    assert labels(axes, "y") == list(DOMAINS)
    rows = np.split(sheet, len(DOMAINS))
    for domain, row in enumerate(rows):
        for label, part in enumerate(np.split(row, len(CLASSES), axis=1)):
            seen = part[part[..., 3] == 255]
            assert len(seen) == 2 * 8 * 8  # all images that there are: two, though five would fit
            assert (seen[:, :3] == 10 * domain + label).all()


def test_samples_part_classes_more_than_images() -> None:
    sheet = np.asarray(samples(made_stream(("snow",))).axes[0].images[0].get_array())
    wide = sheet.shape[1] // 2
    taken = sheet[:, :wide, 3].max(axis=0) > 0  # of the first class; there are two of five images
    assert np.flatnonzero(taken).tolist() == [*range(8), *range(11, 19)]
    assert wide == 5 * 8 + 4 * 3 + 12


def test_samples_of_large_images_and_many_classes_stay_small() -> None:
    classes = tuple(f"class {index}" for index in range(12))
    figure = samples(made_stream(classes=classes, size=300))
    sheet = np.asarray(figure.axes[0].images[0].get_array())
    assert labels(figure.axes[0], "x") == list(classes[:10])
    assert sheet.shape[1] < 600


def test_samples_leave_a_missing_class_clear() -> None:
    stream = made_stream(("snow",))
    test = stream.domains[0].test
    keep = test.labels == 0
    object.__setattr__(test, "images", test.images[keep])
    object.__setattr__(test, "labels", torch.zeros(int(keep.sum()), dtype=torch.int64))
    sheet = np.asarray(samples(stream).axes[0].images[0].get_array())
    cat, dog = np.split(sheet, 2, axis=1)
    assert cat[..., 3].any()
    assert not dog[..., 3].any()


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_accuracy_matrix_writes_r(stages: int) -> None:
    record = made_record(stages)
    axes = accuracy_matrix(record, "mine").axes[0]
    R = record["R"]["accuracy"]
    assert axes.get_title() == "mine"
    assert texts(axes) == [f"{value:.3f}" for row in R for value in row]
    assert labels(axes, "x") == list(DOMAINS)
    assert labels(axes, "y") == [f"after {name}" for name in DOMAINS[:stages]]


def test_accuracy_matrix_colours_only_what_was_learned() -> None:
    axes = accuracy_matrix(made_record(), "mine").axes[0]
    cells = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    filled = [to_hex(cell.get_facecolor(), keep_alpha=True)[-2:] == "ff" for cell in cells]
    assert np.array_equal(np.reshape(filled, (3, 3)), np.tri(3, dtype=bool))


def test_forgetting_follows_each_domain_in_each_method() -> None:
    records = {"ours": made_record(), "theirs": made_record(level=0.8, loss=0.2)}
    panels = forgetting(records).axes
    assert [panel.get_title() for panel in panels] == list(DOMAINS)
    for domain, panel in enumerate(panels):
        for name, record in records.items():
            column = np.array(record["R"]["accuracy"])[:, domain]
            points = line(panel, name)
            assert np.array_equal(points[:, 0], np.arange(domain + 1, 4))
            assert np.array_equal(points[:, 1], column[domain:])
            assert column[: domain + 1].tolist() in dotted(panel)


def test_forgetting_keeps_a_methods_colour() -> None:
    panels = forgetting({"ours": made_record(), "theirs": made_record()}).axes
    colours = {
        (line.get_label(), line.get_color())
        for panel in panels
        for line in panel.lines
        if line.get_label() in ("ours", "theirs")
    }
    assert len(colours) == 2


def test_long_names_above_panels_lose_their_middle() -> None:
    names = ("a-camera-that-has-a-very-long-name-1", "a-camera-that-has-a-very-long-name-2", "snow")
    figure = forgetting({"ours": made_record(stream=made_stream(names))})
    lay_out(figure)
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[2] == "snow"
    for title, end in zip(titles[:2], "12", strict=True):
        assert re.fullmatch(rf"a-camera.*….*name-{end}", title)


def test_pool_growth_stacks_active_on_frozen() -> None:
    record = made_record()
    axes = pool_growth(record).axes[0]
    pools = [stage["ended"]["pool"] for stage in record["stages"]]
    frozen, active = axes.containers
    assert [bar.get_height() for bar in frozen] == [pool["frozen"] for pool in pools]
    assert [bar.get_height() for bar in active] == [pool["active"] for pool in pools]
    assert [bar.get_y() for bar in active] == [pool["frozen"] for pool in pools]
    assert texts(axes) == ["", "31", "62", "32", "33", "34"]


def test_drift_shows_batches_mean_band_and_growth() -> None:
    record = made_record()
    axes = drift(record).axes[0]
    met = [stage["begun"]["drift"] for stage in record["stages"][1:]]
    dots = [line for line in axes.lines if line.get_label() == "one batch"]
    means = [line for line in axes.lines if line.get_label() == "stage mean"]
    for facts, dot, mean in zip(met, dots, means, strict=True):
        assert np.allclose(dot.get_ydata(), np.mean(facts["scores"], axis=1))
        assert np.allclose(mean.get_ydata(), facts["score"])
    (band,) = axes.collections  # the last stage has none
    heights = np.array(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (0.4, 3.1)
    assert texts(axes) == ["+33", "+34", "prompts"]
    assert axes.get_ylim()[1] > max(np.max(facts["scores"]) for facts in met)


def test_losses_and_weights_of_every_epoch() -> None:
    rows = made_log()
    top, bottom = losses(rows).axes
    for axes, kind in ((top, "losses"), (bottom, "weights")):
        for term in ("ce", "real"):
            points = line(axes, term)
            drawn = {x: y for x, y in points if not np.isnan(y)}
            assert drawn == {
                epoch: row[kind][term] for epoch, row in enumerate(rows, 1) if term in row[kind]
            }
            assert np.isnan(points[points[:, 0] == 4.5, 1]).all()  # no line from stage to stage


@pytest.mark.parametrize("values", [(1.04, 1.05), (1.0, 1.0), (0.2, 0.9), (0.05, 40.0)])
def test_the_axis_of_weights_fits_them(values: tuple[float, float]) -> None:
    rows = made_log()
    for row, weight in zip(rows[2:], values * 2, strict=True):
        row["weights"] = dict.fromkeys(row["weights"], weight)
    bottom = losses(rows).axes[1]
    low, high = bottom.get_ylim()
    assert low < min(values)
    assert max(values) < high
    assert high / low == pytest.approx(max(1.2, 1.1 * max(values) / min(values)))
    assert bottom.get_yscale() == "log"
    assert len(bottom.get_yticks()) >= 3
    assert all(low <= tick <= high for tick in bottom.get_yticks())


@pytest.mark.parametrize("small", [3e-5, 0.004, 0.7])
def test_small_losses_are_seen(small: float) -> None:
    rows = made_log()
    for row in rows[2:]:
        row["losses"]["real"] = small
    rows[2]["losses"]["real"] = 0.0  # exactly 0 stays at the bottom
    for figure in (losses(rows), losses_by_step(rows, made_traces(rows))):
        top = figure.axes[0]
        heights = top.transAxes.inverted().transform(
            top.transData.transform([(1, 0.0), (1, small), (1, 3.0)])
        )[:, 1]
        assert heights[0] == pytest.approx(0)
        assert heights[1] > 0.1, "not squashed onto zero"
        assert heights[2] < 1
        assert 0 in top.get_yticks()


def test_one_step_without_loss_does_not_stretch_the_axis() -> None:
    rows = made_log()
    traces = made_traces(rows)
    usual = losses_by_step(rows, traces).axes[0].get_yticks()
    traces[2].losses["real"][0] = 1e-9  # distillation, before anything has changed
    assert np.array_equal(losses_by_step(rows, traces).axes[0].get_yticks(), usual)


def test_losses_that_are_all_zero_can_be_drawn() -> None:
    rows = [{**row, "losses": {"ce": 0.0}, "weights": {}} for row in made_log()]
    assert losses(rows).axes[0].get_ylim()[1] > 0


def test_which_stages_have_no_weights() -> None:
    rows = made_log()
    assert unweighed(rows) == " (stage 1 has none)"
    assert unweighed(rows[2:]) == ""
    rows[2]["weights"] = rows[3]["weights"] = {}
    assert unweighed(rows) == " (stages 1, 2 have none)"


def test_losses_without_weights_have_one_panel() -> None:
    assert len(losses(made_log(weighed=False)).axes) == 1
    assert len(losses(made_log(1)).axes) == 1


def steps_of(axes: Axes, term: str) -> list[list[tuple[float, float]]]:
    """Of every stage, the points of the line of one term."""
    found = [np.array(each.get_xydata()) for each in axes.lines if each.get_label() == f"_{term}"]
    return [[(float(x), float(y)) for x, y in points] for points in found]


def test_losses_and_weights_of_every_step() -> None:
    rows = made_log()
    traces = made_traces(rows)
    top, bottom = losses_by_step(rows, traces).axes
    for axes, kind in ((top, "losses"), (bottom, "weights")):
        for term in ("ce", "real"):
            expected = [
                [(6 * (stage - 1) + at, float(value)) for at, value in enumerate(values[term], 1)]
                for stage, trace in traces.items()
                if term in (values := getattr(trace, kind))
            ]
            assert steps_of(axes, term) == expected, "a line a stage, a point a step"
            assert axes.get_ylim()[1] > max(y for points in expected for _, y in points)
        borders = [each.get_xdata()[0] for each in axes.lines if len(each.get_xdata()) == 2]  # type: ignore[index, arg-type]
        assert borders == [6.5, 12.5]
    means = line(top, "ce")
    assert means[:, 0].tolist() == [2, 5, 8, 11, 14, 17], "the middle of each epoch's three steps"
    assert means[:, 1].tolist() == [row["losses"]["ce"] for row in rows]
    later = line(top, "real")[:, 1]
    assert np.isnan(later[:2]).all(), "stage 1 has no such loss"
    assert later[2:].tolist() == [row["losses"]["real"] for row in rows[2:]]
    assert texts(top) == ["stage", "1", "2", "3"]


@pytest.mark.parametrize("size", [1, 2, 4, 10])
def test_many_steps_are_drawn_as_means(size: int) -> None:
    values = np.array([4, 8, np.nan, 2, np.nan, np.nan, np.nan, np.nan, 1], np.float32)
    x, y = group_means(values, size)
    for place, start in enumerate(range(0, len(values), size)):
        group = values[start : start + size]
        there = group[~np.isnan(group)]
        expected = there.mean() if len(there) else np.nan
        assert np.isclose(y[place], expected, equal_nan=True)
        assert x[place] == np.mean(np.arange(start, start + len(group)))
    assert len(x) == len(y) == -(-len(values) // size)


def test_steps_without_weights_have_one_panel() -> None:
    rows = made_log(weighed=False)
    assert len(losses_by_step(rows, made_traces(rows)).axes) == 1


def every_figure() -> dict[str, Figure]:
    record = made_record()
    return {
        "samples": samples(made_stream()),
        "matrix": accuracy_matrix(record, "mine"),
        "forgetting": forgetting({"ours": record, "theirs": record}),
        "pool": pool_growth(record),
        "drift": drift(record),
        "losses": losses(made_log()),
        "steps": losses_by_step(made_log(), made_traces(made_log())),
    }


def test_svg_is_the_same_every_time_and_says_what_it_is() -> None:
    again = every_figure()
    for name, figure in every_figure().items():
        svg = to_svg(figure, f'"{name}" <of> mine')
        assert svg == to_svg(again[name], f'"{name}" <of> mine')
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == f'"{name}" <of> mine'
        assert root[0].text == f'"{name}" <of> mine'


def test_svg_takes_ink_from_the_page_and_keeps_text() -> None:
    svg = to_svg(accuracy_matrix(made_record(), "mine"), "R")
    assert "currentColor" in svg
    assert "#010101" not in svg
    assert "after snow" in svg
    assert "system-ui, sans-serif" in svg
    assert "<style" not in svg
    assert "<metadata" not in svg


def test_svgs_on_one_page_share_no_names() -> None:
    names = [
        re.findall(r'\bid="([^"]+)"', to_svg(figure, title))
        for title, figure in every_figure().items()
    ]
    flat = [name for each in names for name in each]
    assert len(flat) == len(set(flat))


def test_names_are_taken_literally() -> None:
    record = made_record(stream=made_stream(("$x_1$", "a & <b>", "$")))
    svg = to_svg(accuracy_matrix(record, "$1 & $2"), "R")
    assert {"$x_1$", "a & <b>", "$", "$1 & $2"} <= set(ElementTree.fromstring(svg).itertext())
