"""The browser of the other tests reports mistakes."""

from __future__ import annotations

import pytest

from .browser import WIDTHS, Browser


def test_mistakes_are_reported(browser: Browser) -> None:
    page = """<style>body { background: #222; color: #fff }</style><h1>x</h1>
        <figure><svg width="50"><text fill="#000">x</text></svg></figure>
        <div id="wide" style="width: 2000px">x</div><script>no()</script>"""
    shown = browser.show(page, steps="[() => 6 * 7]")
    assert any("no is not defined" in line for line in shown.console)
    assert shown.answers == [42]
    for width, view in zip(WIDTHS, shown.views, strict=True):
        assert view.width == width
        assert view.page_width >= 2000
        assert [each for each in view.overflowing if 'id="wide"' in each]
        assert view.figure_widths == [50]
        assert view.dark
        assert not view.dark_figures


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_correct_page_is_accepted(browser: Browser, dark: bool) -> None:
    page = """<style>:root { color-scheme: light dark } body { background: Canvas }</style>
        <h1>x</h1><figure><svg width="50"><text fill="CanvasText">x</text></svg></figure>"""
    shown = browser.show(page, dark=dark)
    assert shown.console == []
    assert shown.answers == []
    for view in shown.views:
        assert view.page_width <= view.width
        assert view.overflowing == []
        assert view.dark == view.dark_figures == dark
