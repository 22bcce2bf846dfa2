"""A real browser shows the page, at the widths of a telephone, a tablet and a desk."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sodap.reporting import demo_page

from .made_records import made_log, made_record, made_stream

WIDTHS = (400, 800, 1400)

# A browser window has a least width, a frame has none: the page is put into one frame per width.
WRAPPER = """<!doctype html><html><head><meta charset="utf-8"></head>
<body>{frames}<pre></pre><script>
addEventListener("load", () => {{
  const measured = [...document.querySelectorAll("iframe")].map(frame => {{
    const root = frame.contentDocument.documentElement;
    return {{
      inner: frame.contentWindow.innerWidth,
      needed: root.scrollWidth,
      figures: [...root.querySelectorAll("figure svg")].map(svg => svg.clientWidth),
      ink: getComputedStyle(root.querySelector("svg text")).fill,
      paper: getComputedStyle(root.querySelector("body")).backgroundColor,
    }};
  }});
  document.querySelector("pre").textContent = JSON.stringify(measured);
}});
</script></body></html>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        if "CI" in os.environ:
            pytest.fail("this test needs the program 'chromium', and CI must not go without it")
        pytest.skip("there is no program 'chromium' here; install it to see the page in a browser")
    return found


def opened(
    chromium: str, page: str, folder: Path, *, dark: bool
) -> tuple[list[dict[str, Any]], str]:
    """What the page looks like in every width, and what the browser said about it."""
    frames = "".join(
        f'<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{html.escape(page)}">'
        "</iframe>"
        for width in WIDTHS
    )
    file = folder / "page.html"
    file.write_text(WRAPPER.format(frames=frames), "utf-8")
    done = subprocess.run(
        [
            chromium,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--enable-logging=stderr",
            "--v=0",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1500,1000",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer = re.search(r"<pre>(.*)</pre><script>", done.stdout)
    assert answer is not None, done.stderr
    return json.loads(html.unescape(answer[1])), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_width_shows_the_whole_page(chromium: str, tmp_path: Path, dark: bool) -> None:
    names = ("a domain with a rather long name", "rain", "fog")
    stream = made_stream(names)
    record = made_record(stream=stream)
    record["command"] = ["/a/very/long/path/" * 20 + "sodap", "demo"]
    page = demo_page(
        stream,
        {"residual-sodap": record, "sequential": made_record(prompts=False, stream=stream)},
        {"residual-sodap": made_log(), "sequential": made_log(weighed=False)},
    ).replace("<details>", "<details open>")
    measured, said = opened(chromium, page, tmp_path, dark=dark)
    assert "CONSOLE" not in said
    for width, seen in zip(WIDTHS, measured, strict=True):
        assert seen["inner"] == width
        assert seen["needed"] <= width
        assert all(200 < figure <= width for figure in seen["figures"])
        assert (brightness(seen["ink"]) > brightness(seen["paper"])) == dark


def brightness(colour: str) -> int:
    """Of a computed colour such as `rgb(21, 24, 28)`."""
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


def test_the_browser_would_report_a_mistake(chromium: str, tmp_path: Path) -> None:
    page = "<svg><text>wide</text></svg><div style='width: 2000px'>x</div><script>no()</script>"
    measured, said = opened(chromium, page, tmp_path, dark=False)
    assert "CONSOLE" in said
    assert all(seen["needed"] > width for width, seen in zip(WIDTHS, measured, strict=True))
