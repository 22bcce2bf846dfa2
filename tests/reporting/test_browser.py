"""The browser that other tests trust would report a mistake."""

from __future__ import annotations

import pytest

from .browser import WIDTHS, Browser


def test_what_is_wrong_is_seen(browser: Browser) -> None:
    page = """<style>body { background: #222; color: #fff }</style><h1>x</h1>
        <figure><svg width="50"><text fill="#000">x</text></svg></figure>
        <div id="wide" style="width: 2000px">x</div><script>no()</script>"""
    shown = browser.show(page, steps="[() => 6 * 7]")
    assert any("no is not defined" in line for line in shown.complaints)
    assert shown.answers == [42]
    for width, look in zip(WIDTHS, shown.looks, strict=True):
        assert look.width == width
        assert look.needed >= 2000
        assert [each for each in look.wide if 'id="wide"' in each]
        assert look.figures == [50]
        assert look.dark
        assert not look.dark_figures


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_is_right_is_seen(browser: Browser, dark: bool) -> None:
    page = """<style>:root { color-scheme: light dark } body { background: Canvas }</style>
        <h1>x</h1><figure><svg width="50"><text fill="CanvasText">x</text></svg></figure>"""
    shown = browser.show(page, dark=dark)
    assert shown.complaints == []
    assert shown.answers == []
    for look in shown.looks:
        assert look.needed <= look.width
        assert look.wide == []
        assert look.dark == look.dark_figures == dark
