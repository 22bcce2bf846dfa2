"""Opens pages in a headless browser, at several widths."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTHS = (400, 800, 1400)
"""Widths of a phone, a tablet and a desktop window in pixels."""

# A window has a minimum width and a frame has none, so the page is shown in one frame per width.
# The steps run one after the other in the last frame.
WRAPPER = """<!doctype html><html><head><meta charset="utf-8"></head>
<body>{frames}<pre></pre><script>
addEventListener("load", async () => {{
  const frames = [...document.querySelectorAll("iframe")];
  const views = frames.map(frame => {{
    const root = frame.contentDocument.documentElement;
    const overflowing = [...root.querySelectorAll("body *")].filter(each =>
      !each.closest(".scroll") && !each.closest("svg") && !each.closest(".sr-only")
      && each.getBoundingClientRect().right > frame.clientWidth + 1);
    const text = root.querySelector("figure svg text");
    return {{
      width: frame.contentWindow.innerWidth,
      page_width: root.scrollWidth,
      overflowing: overflowing.map(each => each.outerHTML.slice(0, 80)),
      text_sizes: [...root.querySelectorAll("figure svg text")].map(each =>
        parseFloat(getComputedStyle(each).fontSize) * each.ownerSVGElement.getScreenCTM().a),
      figure_widths: [...root.querySelectorAll("figure svg")].map(svg => svg.clientWidth),
      text_colour: getComputedStyle(root.querySelector("h1")).color,
      figure_text_colour: text && getComputedStyle(text).fill,
      background: getComputedStyle(root.querySelector("body")).backgroundColor,
    }};
  }});
  const page = frames.at(-1).contentDocument;
  const answers = [];
  for (const step of {steps}) {{
    answers.push(step(page));
    await new Promise(done => setTimeout(done));
  }}
  document.querySelector("pre").textContent = JSON.stringify({{ views, answers }});
}});
</script></body></html>"""


@dataclass(frozen=True)
class View:
    """A page at one width."""

    width: int
    page_width: int
    overflowing: list[str]
    """Elements that end beyond the edge of the page and cannot be scrolled."""
    text_sizes: list[float]
    """Pixels of every text in a figure, as it is shown."""
    figure_widths: list[int]
    text_colour: str
    figure_text_colour: str | None
    """None if there is no figure."""
    background: str

    @property
    def dark(self) -> bool:
        return _brightness(self.text_colour) > _brightness(self.background)

    @property
    def dark_figures(self) -> bool:
        colour = self.figure_text_colour or self.text_colour
        return _brightness(colour) > _brightness(self.background)


@dataclass(frozen=True)
class OpenedPage:
    """What the browser reports about a page."""

    views: list[View]
    """One per width."""
    answers: list[Any]
    """Result of each step."""
    console: list[str]
    """Messages on the browser's console."""


@dataclass(frozen=True)
class Browser:
    program: str
    folder: Path
    """Folder for the page and the browser's profile."""

    def show(self, page: str, *, dark: bool = False, steps: str = "[]") -> OpenedPage:
        """Open a page at all widths; `steps` is a JavaScript list of functions of the document."""
        frames = "".join(
            f'<iframe style="border: 0; width: {width}px; height: 900px" '
            f'srcdoc="{html.escape(page)}"></iframe>'
            for width in WIDTHS
        )
        file = self.folder / "page.html"
        file.write_text(WRAPPER.format(frames=frames, steps=steps), "utf-8")
        done = subprocess.run(
            [
                self.program,
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
                f"--user-data-dir={self.folder / 'profile'}",
                "--window-size=1500,1000",
                "--virtual-time-budget=10000",
                "--dump-dom",
                file.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        answer = re.search(r"<pre>(.*)</pre><script>", done.stdout)
        assert answer is not None, done.stderr
        found = json.loads(html.unescape(answer[1]))
        return OpenedPage(
            [View(**view) for view in found["views"]],
            found["answers"],
            [line for line in done.stderr.splitlines() if "CONSOLE" in line],
        )


def _brightness(colour: str) -> int:
    """Sum of the channels of a computed colour such as `rgb(21, 24, 28)`."""
    return sum(map(int, re.findall(r"\d+", colour)[:3]))
