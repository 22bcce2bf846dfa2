"""The pages in a real browser: no errors, no overflow, sorting and filtering."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sodap.streams.check import CheckResult, check_page

from .browser import WIDTHS, Browser


@pytest.fixture
def pages(report: Path, comparison: Path) -> dict[str, str]:
    """The pages with all tables open."""
    found = {"one run": report, "several runs": comparison}
    return {
        name: path.read_text("utf-8").replace("<details>", "<details open>")
        for name, path in found.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["one run", "several runs"])
def test_the_page_fits_every_width(
    browser: Browser, pages: dict[str, str], dark: bool, name: str
) -> None:
    shown = browser.show(pages[name], dark=dark)
    assert shown.console == []
    for width, view in zip(WIDTHS, shown.views, strict=True):
        assert view.width == width
        assert view.page_width <= width
        assert view.overflowing == []
        assert view.figure_widths
        assert all(figure > 200 for figure in view.figure_widths)
        assert min(view.text_sizes) > 6, "on a phone, wide figures scroll"
        assert view.dark == view.dark_figures == dark


TEXT_SIZES = """[
  page => [...page.querySelectorAll("figure svg")].filter(svg => svg.querySelector("text")).map(
    svg => Math.max(...[...svg.querySelectorAll("text")].map(
      text => parseFloat(getComputedStyle(text).fontSize) * svg.getScreenCTM().a))),
  page => [...page.querySelectorAll("table")].filter(table => {
    const words = page.getElementById(table.getAttribute("aria-labelledby"));
    return !words || !words.textContent.trim() || words.closest(".scroll");
  }).length,
]"""


SCROLLED = """[
  page => { page.defaultView.frameElement.style.width = "250px"; return null; },
  page => [...page.querySelectorAll(".scroll")].map(box => {
    const words = [...box.closest("section").querySelectorAll(".caption, figcaption, dl")];
    const places = () => words.map(each => each.getBoundingClientRect().left);
    const before = places();
    box.scrollLeft = 10000;
    return [box.scrollLeft, before, places()];
  }),
]"""


@pytest.mark.slow
def test_text_has_one_size_in_all_figures(browser: Browser, pages: dict[str, str]) -> None:
    sizes, without_caption = browser.show(pages["one run"], steps=TEXT_SIZES).answers
    assert max(sizes) < 1.5 * min(sizes)
    assert without_caption == 0


@pytest.mark.slow
def test_captions_stay_while_a_table_scrolls(browser: Browser, pages: dict[str, str]) -> None:
    _, boxes = browser.show(pages["several runs"], steps=SCROLLED).answers
    assert sum(scrolled > 0 for scrolled, _, _ in boxes) >= 3
    for _, before, after in boxes:
        assert after == before


BROKEN_WORDS = """[
  page => { page.defaultView.frameElement.style.width = "400px"; return null; },
  page => {
    const broken = [];
    for (const cell of page.querySelectorAll("th, td"))
      for (const node of cell.childNodes) {
        if (node.nodeType !== 3) continue;
        for (const word of node.data.matchAll(/[^\\s-]+/g)) {
          const range = page.createRange();
          range.setStart(node, word.index);
          range.setEnd(node, word.index + word[0].length);
          if (range.getClientRects().length > 1) broken.push(word[0]);
        }
      }
    return broken;
  },
  page => [...page.querySelectorAll(".scroll")].some(box => box.scrollWidth > box.clientWidth),
]"""


@pytest.mark.slow
def test_tables_scroll_on_a_phone_and_break_no_words(browser: Browser) -> None:
    """The page of a check with names that are too long for the screen."""
    classes = ("no diabetic retinopathy", "non-proliferative", "proliferative", "ungradable")
    counts = {
        (domain, split): Counter(dict.fromkeys(classes, 8))
        for domain in ("01-zeiss-cirrus", "02-topcon")
        for split in ("train", "val", "test")
    }
    page = check_page(CheckResult("clinic", classes, counts))
    _, broken, scrolls = browser.show(page, steps=BROKEN_WORDS).answers
    assert broken == []
    assert scrolls
    assert browser.show(page).views[0].page_width <= WIDTHS[0]


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
def test_clicks_sort_and_filter(browser: Browser, pages: dict[str, str]) -> None:
    shown = browser.show(pages["several runs"], steps=STEPS)
    assert shown.console == []
    first, up, down, methods, chosen, _, searched, sorted_heads = shown.answers
    assert first[1:] == [[True] * 5, "5 of 5 shown"]
    assert up == sorted(first[0], key=float)
    assert down == sorted(first[0], key=float, reverse=True)
    assert methods == sorted(methods)
    assert chosen == [["sequential"] * 2, [False, True, True, False, False], "2 of 5 shown"]
    assert searched == [methods, ["ridge"]]
    assert sorted_heads == 1
