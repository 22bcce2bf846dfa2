"""A real browser shows the page, at the widths of a telephone, a tablet and a desk."""

from __future__ import annotations

import pytest

from sodap.reporting import demo_page

from .browser import WIDTHS, Browser
from .made_records import made_log, made_record, made_stream


def a_page() -> str:
    """With names and a command that want more room than a telephone has, all tables open."""
    names = ("a domain with a rather long name", "rain", "fog")
    stream = made_stream(names)
    record = made_record(stream=stream)
    record["command"] = ["/a/very/long/path/" * 20 + "sodap", "demo"]
    return demo_page(
        stream,
        {"residual-sodap": record, "sequential": made_record(prompts=False, stream=stream)},
        {"residual-sodap": made_log(), "sequential": made_log(weighed=False)},
    ).replace("<details>", "<details open>")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_width_shows_the_whole_page(browser: Browser, dark: bool) -> None:
    shown = browser.show(a_page(), dark=dark)
    assert shown.complaints == []
    for width, look in zip(WIDTHS, shown.looks, strict=True):
        assert look.width == width
        assert look.needed <= width
        assert look.wide == []
        assert look.figures
        assert all(200 < figure <= width for figure in look.figures)
        assert look.dark == look.dark_figures == dark


SCROLLED = """[
  page => { page.defaultView.frameElement.style.width = "250px"; return null; },
  page => [...page.querySelectorAll(".scroll")].map(box => {
    const words = [...box.closest("section").querySelectorAll("caption, .caption, figcaption, dl")];
    const places = () => words.map(each => each.getBoundingClientRect().left);
    const before = places();
    box.scrollLeft = 10000;
    return [box.scrollLeft, before, places()];
  }),
]"""


@pytest.mark.slow
def test_captions_stay_while_a_table_scrolls(browser: Browser) -> None:
    _, boxes = browser.show(a_page(), steps=SCROLLED).answers
    assert sum(way > 0 for way, _, _ in boxes) >= 3
    for _, before, after in boxes:
        assert after == before
