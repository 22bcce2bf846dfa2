"""A real browser shows the page, at the widths of a telephone, a tablet and a desk."""

from __future__ import annotations

import pytest

from sodap.reporting import demo_page

from .browser import WIDTHS, Browser
from .made_records import made_log, made_record, made_stream


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_width_shows_the_whole_page(browser: Browser, dark: bool) -> None:
    names = ("a domain with a rather long name", "rain", "fog")
    stream = made_stream(names)
    record = made_record(stream=stream)
    record["command"] = ["/a/very/long/path/" * 20 + "sodap", "demo"]
    page = demo_page(
        stream,
        {"residual-sodap": record, "sequential": made_record(prompts=False, stream=stream)},
        {"residual-sodap": made_log(), "sequential": made_log(weighed=False)},
    ).replace("<details>", "<details open>")
    shown = browser.show(page, dark=dark)
    assert shown.complaints == []
    for width, look in zip(WIDTHS, shown.looks, strict=True):
        assert look.width == width
        assert look.needed <= width
        assert look.wide == []
        assert look.figures
        assert all(200 < figure <= width for figure in look.figures)
        assert look.dark == look.dark_figures == dark
