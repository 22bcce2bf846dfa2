"""The evidence page in a real browser: no error, no overflow, and what a click does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sodap.reporting.loading import ShownRun, find_runs
from sodap.reporting.pages.comparison import comparison_sections
from sodap.reporting.pages.report import report_page
from sodap.reporting.pages.sections import sections_of
from sodap.runs import load_config, run
from tests.conftest import make_stream

from .browser import WIDTHS, Browser


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ShownRun]:
    home = tmp_path_factory.mktemp("runs")
    stream = make_stream(3, 3)
    changes = ["epochs=1", "batch_size=16", "device=cpu"]
    for name, recipe, seed in (("a", "default", 0), ("b", "sequential", 0), ("c", "ridge", 1)):
        config = load_config(recipe, [*(changes if recipe != "ridge" else ()), f"seed={seed}"])
        run(config, home / name, stream=stream, command=["a very long command"] * 20)
    return find_runs([home])


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("many", [False, True], ids=["one run", "several"])
def test_every_width_shows_the_whole_page(
    browser: Browser, runs: list[ShownRun], dark: bool, many: bool
) -> None:
    page = (
        report_page(runs, comparison_sections(runs))
        if many
        else report_page(runs[:1], sections_of(runs[0]))
    )
    shown = browser.show(page.replace("<details>", "<details open>"), dark=dark)
    assert shown.complaints == []
    for width, look in zip(WIDTHS, shown.looks, strict=True):
        assert look.width == width
        assert look.needed <= width
        assert look.wide == []
        assert all(200 < figure <= width for figure in look.figures)
        assert look.dark == dark


LETTERS = """[
  page => [...page.querySelectorAll("figure svg")].filter(svg => svg.querySelector("text")).map(
    svg => Math.max(...[...svg.querySelectorAll("text")].map(
      text => parseFloat(getComputedStyle(text).fontSize) * svg.getScreenCTM().a))),
  page => [...page.querySelectorAll("table")].filter(table => {
    const words = page.getElementById(table.getAttribute("aria-labelledby"));
    return !words || !words.textContent.trim() || words.closest(".scroll");
  }).length,
]"""


@pytest.mark.slow
def test_letters_are_as_large_in_every_figure(browser: Browser, runs: list[ShownRun]) -> None:
    """And the caption of a table stands still while the table scrolls."""
    run = replace(runs[0], stream=make_stream(3, 3), no_stream="")
    page = report_page([run], sections_of(run))
    assert "whose routing is shown" in page
    sizes, scrolling = browser.show(page, steps=LETTERS).answers
    assert max(sizes) < 1.5 * min(sizes)
    assert scrolling == 0


STEPS = """[
  page => {
    const table = page.querySelector("#runs table");
    window.column = name => [...table.tHead.rows[0].cells].findIndex(
      head => head.textContent.trim() === name);
    window.read = name => [...table.tBodies[0].rows].filter(row => !row.hidden).map(
      row => row.cells[column(name)].textContent.trim());
    window.click = name => table.tHead.rows[0].cells[column(name)].querySelector("button").click();
    window.cards = () => [...page.querySelectorAll("div[data-tag]")].map(card => !card.hidden);
    return [read("AvgACC"), cards(), page.querySelector("output").value];
  },
  page => { click("AvgACC"); return read("AvgACC"); },
  page => { click("AvgACC"); return read("AvgACC"); },
  page => { click("Method"); return read("Method"); },
  page => {
    const select = [...page.querySelectorAll("form.filters select")].find(
      each => [...each.options].some(option => option.value === "sequential"));
    select.value = "sequential";
    select.dispatchEvent(new Event("input", { bubbles: true }));
    return [read("Method"), cards(), page.querySelector("output").value];
  },
  page => { page.querySelector("form.filters input[type=reset]").click(); return null; },
  page => {
    const field = page.querySelector("form.filters input[type=search]");
    const all = read("Method");
    field.value = "RIDGE";
    field.dispatchEvent(new Event("input", { bubbles: true }));
    return [all, read("Method")];
  },
  page => page.querySelectorAll("#runs th[aria-sort]").length,
]"""


@pytest.mark.slow
def test_clicks_sort_and_filter(browser: Browser, runs: list[ShownRun]) -> None:
    shown = browser.show(report_page(runs, comparison_sections(runs)), steps=STEPS)
    assert shown.complaints == []
    first, up, down, methods, chosen, _, searched, sorted_heads = shown.answers
    assert first[1:] == [[True, True, True], "3 of 3 shown"]
    assert up == sorted(first[0], key=float)
    assert down == sorted(first[0], key=float, reverse=True)
    assert methods == ["residual-sodap", "ridge", "sequential"]
    assert chosen == [["sequential"], [False, True, False], "1 of 3 shown"]
    assert searched == [methods, ["ridge"]]
    assert sorted_heads == 1
