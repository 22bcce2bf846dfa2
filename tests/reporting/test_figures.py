"""Figures show the numbers that they are given."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sodap.evaluation import reliability
from sodap.reporting.figures.accuracy import accuracy_matrix, calibration, forgetting
from sodap.reporting.figures.images import samples
from sodap.reporting.figures.prompts import drift, drift_by_layer, pool_growth
from sodap.reporting.figures.svg import lay_out, to_png, to_svg
from sodap.reporting.figures.training import group_means, losses
from sodap.reporting.pages.training import without_weights

from .records import (
    CLASSES,
    DOMAINS,
    a_log,
    a_trace,
    edited,
    grey_stream,
    prompt_stages,
    results_matrix,
)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def labels(axes: Axes, which: str) -> list[str]:
    axis = axes.xaxis if which == "x" else axes.yaxis
    return [label.get_text() for label in axis.get_ticklabels()]


def line(axes: Axes, label: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Points `[N, 2]` of all lines with this label."""
    found = [line for line in axes.lines if line.get_label() == label]
    return np.concatenate([np.array(each.get_xydata()) for each in found])


def dotted(axes: Axes) -> list[list[float]]:
    return [np.array(line.get_ydata()).tolist() for line in axes.lines if line.is_dashed()]


# ------------------------------------------------------------------ images


def test_samples_have_a_row_per_domain_and_a_column_per_class() -> None:
    axes = samples(grey_stream()).axes[0]
    sheet = np.asarray(axes.images[0].get_array())
    assert labels(axes, "x") == list(CLASSES)
    assert labels(axes, "y") == list(DOMAINS)
    for domain, row in enumerate(np.split(sheet, len(DOMAINS))):
        for label, part in enumerate(np.split(row, len(CLASSES), axis=1)):
            opaque = part[part[..., 3] == 255]
            assert len(opaque) == 2 * 8 * 8  # both images, though there is space for five
            assert (opaque[:, :3] == 10 * domain + label).all()


def test_samples_have_more_space_between_classes_than_between_images() -> None:
    sheet = np.asarray(samples(grey_stream(("snow",))).axes[0].images[0].get_array())
    width = sheet.shape[1] // 2
    taken = sheet[:, :width, 3].max(axis=0) > 0  # the first class has two of five images
    assert np.flatnonzero(taken).tolist() == [*range(8), *range(11, 19)]
    assert width == 5 * 8 + 4 * 3 + 12


def test_samples_of_large_images_and_many_classes_stay_small() -> None:
    classes = tuple(f"class {index}" for index in range(12))
    figure = samples(grey_stream(classes=classes, size=300))
    sheet = np.asarray(figure.axes[0].images[0].get_array())
    assert labels(figure.axes[0], "x") == list(classes[:10])
    assert sheet.shape[1] < 600


def test_samples_leave_a_missing_class_clear() -> None:
    stream = grey_stream(("snow",))
    test = stream.domains[0].test
    keep = test.labels == 0
    object.__setattr__(test, "images", test.images[keep])
    object.__setattr__(test, "labels", torch.zeros(int(keep.sum()), dtype=torch.int64))
    sheet = np.asarray(samples(stream).axes[0].images[0].get_array())
    cat, dog = np.split(sheet, 2, axis=1)
    assert cat[..., 3].any()
    assert not dog[..., 3].any()


# ------------------------------------------------------------------ accuracy


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_accuracy_matrix_writes_r(stages: int) -> None:
    R = results_matrix(stages)
    axes = accuracy_matrix(R, DOMAINS, "mine").axes[0]
    assert axes.get_title() == "mine"
    assert texts(axes) == [f"{value:.3f}" for row in R for value in row]
    assert labels(axes, "x") == list(DOMAINS)
    assert labels(axes, "y") == [f"after {name}" for name in DOMAINS[:stages]]


def test_accuracy_matrix_colours_only_learned_domains() -> None:
    axes = accuracy_matrix(results_matrix(), DOMAINS, "mine").axes[0]
    cells = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    filled = [to_hex(cell.get_facecolor(), keep_alpha=True)[-2:] == "ff" for cell in cells]
    assert np.array_equal(np.reshape(filled, (3, 3)), np.tri(3, dtype=bool))


def test_forgetting_has_a_line_per_domain_and_method() -> None:
    results = {"ours": results_matrix(), "theirs": results_matrix(level=0.8, loss=0.2)}
    panels = forgetting(results, DOMAINS).axes
    assert [panel.get_title() for panel in panels] == list(DOMAINS)
    for domain, panel in enumerate(panels):
        for name, R in results.items():
            column = np.array(R)[:, domain]
            points = line(panel, name)
            assert np.array_equal(points[:, 0], np.arange(domain + 1, 4))
            assert np.array_equal(points[:, 1], column[domain:])
            assert column[: domain + 1].tolist() in dotted(panel)
    colours = {(each.get_label(), each.get_color()) for panel in panels for each in panel.lines}
    assert len({pair for pair in colours if pair[0] in results}) == 2


def test_long_titles_lose_their_middle() -> None:
    names = ("a-camera-that-has-a-very-long-name-1", "a-camera-that-has-a-very-long-name-2", "snow")
    figure = forgetting({"ours": results_matrix()}, names)
    lay_out(figure)
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[2] == "snow"
    for title, end in zip(titles[:2], "12", strict=True):
        assert re.fullmatch(rf"a-camera.*….*name-{end}", title)


@pytest.mark.parametrize("count", [1, 3, 4, 5])
@pytest.mark.parametrize("name", ["03-deepdrid_uwf", "a-camera-that-has-a-very-long-name"])
def test_calibration_errors_are_complete_under_long_names(name: str, count: int) -> None:
    found = [reliability([0.2, 0.9, 0.8], [False, True, place > 2]) for place in range(count)]
    figure = calibration(found, [f"{name}{place}" for place in range(count)])
    lay_out(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    titled = [axes for axes in figure.axes if axes.get_title()]
    boxes = [axes.title.get_window_extent(renderer) for axes in titled]
    for axes, each, box in zip(titled, found, boxes, strict=True):
        assert axes.get_title().endswith(f"\nECE {each.error:.3f}")
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width
        others = [*boxes, *(label.get_window_extent(renderer) for label in figure.texts)]
        assert sum(box.overlaps(other) for other in others) == 1, "only itself"


def test_bins_without_a_right_answer_can_be_seen() -> None:
    """What was hidden: a bar of height 0. A model that is always wrong is drawn as well."""
    sure = [0.3] * 4 + [0.9] * 60 + [0.55]
    figure = calibration([reliability(sure, [False] * 65)], ["snow"])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    above, below = figure.axes
    (dots,) = [line for line in above.lines if line.get_marker() == "o"]
    assert np.allclose(np.array(dots.get_xydata()), [[0.3, 0], [0.55, 0], [0.9, 0]])
    assert not dots.get_clip_on(), "half of a dot at 0 would be cut off"
    (gaps,) = above.collections
    ends = [np.asarray(path.vertices)[1, 1] for path in gaps.get_paths()]
    assert ends == pytest.approx([0.3, 0.55, 0.9])
    assert [bar.get_height() for bar in below.containers[0]] == [4, 1, 60]
    box = below.get_window_extent()
    single = below.containers[0][1].get_window_extent()
    assert single.height > 0.05 * box.height, "one image beside 60"


# ------------------------------------------------------------------ prompts


def test_pool_growth_stacks_active_on_frozen() -> None:
    stages = prompt_stages().stages
    axes = pool_growth(stages).axes[0]
    pools = [stage.ended.pool for stage in stages if stage.ended.pool]
    frozen, active = axes.containers
    assert [bar.get_height() for bar in frozen] == [pool.frozen for pool in pools]
    assert [bar.get_height() for bar in active] == [pool.active for pool in pools]
    assert [bar.get_y() for bar in active] == [pool.frozen for pool in pools]
    assert texts(axes) == ["", "31", "62", "32", "33", "34"]


def test_drift_shows_batches_mean_band_and_growth() -> None:
    stages = prompt_stages().stages
    axes = drift(stages).axes[0]
    measured = [stage.begun.drift for stage in stages if stage.begun.drift]
    dots = [line for line in axes.lines if line.get_label() == "one batch"]
    means = [line for line in axes.lines if line.get_label() == "stage mean"]
    for found, dot, mean in zip(measured, dots, means, strict=True):
        assert np.allclose(dot.get_ydata(), np.mean(found.scores, axis=1))
        assert np.allclose(mean.get_ydata(), found.score)
    (band,) = axes.collections  # the last stage has none
    heights = np.array(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == (0.4, 3.1)
    assert texts(axes) == ["+33", "+34", "prompts"]
    assert axes.get_ylim()[1] > max(np.max(found.scores) for found in measured)


def test_drift_above_the_band_is_orange() -> None:
    band = {"mean": 0.8, "low": 0.5, "high": 1.0}
    found = {"scores": [[0.9, 1.1]], "null_band": band, "score": 1.0, "added": 3}
    record = edited(prompt_stages(), edits={"stages.1.begun.drift": found})
    picture = np.asarray(drift_by_layer(record.stages[1:2]).axes[0].images[0].get_array())
    inside, above = picture[:, 0]
    assert inside[2] > inside[0]  # more blue than red
    assert above[0] > above[2]


# ------------------------------------------------------------------ training


@pytest.mark.parametrize("values", [(1.04, 1.05), (1.0, 1.0), (0.2, 0.9), (0.05, 40.0)])
def test_the_axis_of_weights_fits_them(values: tuple[float, float]) -> None:
    rows = a_log()
    traces = a_trace(rows)
    for stage in (2, 3):
        for weights in traces[stage].weights.values():
            weights[:3], weights[3:] = values
    bottom = losses(rows, traces).axes[1]
    low, high = bottom.get_ylim()
    assert low < min(values)
    assert max(values) < high
    assert high / low == pytest.approx(max(1.2, 1.1 * max(values) / min(values)))
    assert bottom.get_yscale() == "log"
    assert len(bottom.get_yticks()) >= 3
    assert all(low <= tick <= high for tick in bottom.get_yticks())


@pytest.mark.parametrize("small", [3e-5, 0.004, 0.7])
def test_small_losses_are_visible(small: float) -> None:
    rows = a_log()
    for row in rows[2:]:
        row.losses["real"] = small
    rows[2].losses["real"] = 0.0  # exactly 0 stays at the bottom
    top = losses(rows, a_trace(rows)).axes[0]
    heights = top.transAxes.inverted().transform(
        top.transData.transform([(1, 0.0), (1, small), (1, 3.0)])
    )[:, 1]
    assert heights[0] == pytest.approx(0)
    assert heights[1] > 0.1
    assert heights[2] < 1
    assert 0 in top.get_yticks()


def test_a_step_with_almost_no_loss_does_not_stretch_the_axis() -> None:
    rows = a_log()
    traces = a_trace(rows)
    usual = losses(rows, traces).axes[0].get_yticks()
    traces[2].losses["real"][0] = 1e-9  # distillation before the first update
    assert np.array_equal(losses(rows, traces).axes[0].get_yticks(), usual)


def test_losses_that_are_all_zero_can_be_drawn() -> None:
    rows = [row.model_copy(update={"losses": {"ce": 0.0}, "weights": {}}) for row in a_log()]
    assert losses(rows, a_trace(rows)).axes[0].get_ylim()[1] > 0


def test_stages_without_weights_are_named() -> None:
    rows = a_log()
    assert without_weights(rows) == " (not in stage 1)"
    assert without_weights(rows[2:]) == ""
    rows[2].weights.clear()
    rows[3].weights.clear()
    assert without_weights(rows) == " (not in stages 1, 2)"


def test_without_weights_there_is_one_panel() -> None:
    for rows in (a_log(weighed=False), a_log(1)):
        assert len(losses(rows, a_trace(rows)).axes) == 1


def test_losses_and_weights_of_every_step() -> None:
    rows = a_log()
    traces = a_trace(rows)
    top, bottom = losses(rows, traces).axes
    for axes, kind in ((top, "losses"), (bottom, "weights")):
        for term in ("ce", "real"):
            expected = [
                (6.0 * (stage - 1) + place, float(value))
                for stage, trace in traces.items()
                if term in getattr(trace, kind)
                for place, value in enumerate(getattr(trace, kind)[term], 1)
            ]
            drawn = line(axes, f"_{term}")
            assert [(float(x), float(y)) for x, y in drawn] == expected
            assert axes.get_ylim()[1] > drawn[:, 1].max()
        borders = [each.get_xdata()[0] for each in axes.lines if len(each.get_xdata()) == 2]  # type: ignore[index, arg-type]
        assert borders == [6.5, 12.5]
    means = line(top, "ce")
    assert means[:, 0].tolist() == [2, 5, 8, 11, 14, 17], "the middle of the steps of an epoch"
    assert means[:, 1].tolist() == [row.losses["ce"] for row in rows]
    later = line(top, "real")[:, 1]
    assert np.isnan(later[:2]).all(), "stage 1 has no such loss"
    assert later[2:].tolist() == [row.losses["real"] for row in rows[2:]]
    assert texts(top) == ["1", "2", "3", "stage"]
    assert [text.get_text() for text in top.figure.legends[0].get_texts()] == ["ce", "real"]


@pytest.mark.parametrize("size", [1, 2, 4, 10])
def test_steps_are_averaged_in_groups(size: int) -> None:
    values = np.array([4, 8, np.nan, 2, np.nan, np.nan, np.nan, np.nan, 1], np.float32)
    x, y = group_means(values, size)
    for place, start in enumerate(range(0, len(values), size)):
        group = values[start : start + size]
        known = group[~np.isnan(group)]
        expected = known.mean() if len(known) else np.nan
        assert np.isclose(y[place], expected, equal_nan=True)
        assert x[place] == np.mean(np.arange(start, start + len(group)))
    assert len(x) == len(y) == -(-len(values) // size)


# ------------------------------------------------------------------ SVG and PNG


def every_figure() -> dict[str, Figure]:
    stages, rows = prompt_stages().stages, a_log()
    return {
        "samples": samples(grey_stream()),
        "matrix": accuracy_matrix(results_matrix(), DOMAINS, "mine"),
        "forgetting": forgetting({"ours": results_matrix()}, DOMAINS),
        "pool": pool_growth(stages),
        "drift": drift(stages),
        "losses": losses(rows, a_trace(rows)),
    }


def test_svg_is_deterministic_and_described() -> None:
    again = every_figure()
    ids = []
    for name, figure in every_figure().items():
        title = f'"{name}" <of> mine'
        svg = to_svg(figure, title)
        assert svg == to_svg(again[name], title)
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == title
        assert root[0].text == title
        ids += re.findall(r'\bid="([^"]+)"', svg)
    assert len(ids) == len(set(ids)), "no two figures on a page share an id"


def test_svg_has_the_text_and_the_colour_of_the_page() -> None:
    names = ("$x_1$", "a & <b>", "$")
    svg = to_svg(accuracy_matrix(results_matrix(), names, "$1 & $2"), "R")
    assert "currentColor" in svg
    assert "#010101" not in svg
    assert "system-ui, sans-serif" in svg
    assert "<style" not in svg
    assert "<metadata" not in svg
    found = set(ElementTree.fromstring(svg).itertext())
    assert {*names, "$1 & $2", "after $x_1$"} <= found


def test_png_is_a_picture() -> None:
    assert to_png(forgetting({"ours": results_matrix()}, DOMAINS)).startswith(b"\x89PNG")
