"""A real browser without a window: what a page looks like in it, and what it says of the page."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTHS = (400, 800, 1400)
"""Of a telephone, a tablet and a desk, in pixels."""

# A browser window has a least width, a frame has none: the page is put into one frame per width.
# The steps are done in the last one, in order.
WRAPPER = """<!doctype html><html><head><meta charset="utf-8"></head>
<body>{frames}<pre></pre><script>
addEventListener("load", async () => {{
  const frames = [...document.querySelectorAll("iframe")];
  const looks = frames.map(frame => {{
    const root = frame.contentDocument.documentElement;
    const wide = [...root.querySelectorAll("body *")].filter(each =>
      !each.closest(".scroll") && !each.closest("svg") && !each.closest(".unseen")
      && each.getBoundingClientRect().right > frame.clientWidth + 1);
    const letters = root.querySelector("figure svg text");
    return {{
      width: frame.contentWindow.innerWidth,
      needed: root.scrollWidth,
      wide: wide.map(each => each.outerHTML.slice(0, 80)),
      figures: [...root.querySelectorAll("figure svg")].map(svg => svg.clientWidth),
      ink: getComputedStyle(root.querySelector("h1")).color,
      letters: letters && getComputedStyle(letters).fill,
      paper: getComputedStyle(root.querySelector("body")).backgroundColor,
    }};
  }});
  const page = frames.at(-1).contentDocument;
  const answers = [];
  for (const step of {steps}) {{
    answers.push(step(page));
    await new Promise(done => setTimeout(done, 20));
  }}
  document.querySelector("pre").textContent = JSON.stringify({{ looks, answers }});
}});
</script></body></html>"""


@dataclass(frozen=True)
class Look:
    """A page at one width."""

    width: int
    needed: int
    """The width that the page takes."""
    wide: list[str]
    """Elements that reach beyond the page's edge, where nothing lets them scroll."""
    figures: list[int]
    """Widths of the figures."""
    ink: str
    letters: str | None
    """The colour of a figure's letters; None where there is no figure."""
    paper: str

    @property
    def dark(self) -> bool:
        return _brightness(self.ink) > _brightness(self.paper)

    @property
    def dark_figures(self) -> bool:
        return _brightness(self.letters or self.ink) > _brightness(self.paper)


@dataclass(frozen=True)
class Shown:
    """A page that was opened."""

    looks: list[Look]
    """One a width."""
    answers: list[Any]
    """What each step gave back."""
    complaints: list[str]
    """What the browser wrote on its console."""


@dataclass(frozen=True)
class Browser:
    program: str
    folder: Path
    """For the page and for what the browser keeps."""

    def show(self, page: str, *, dark: bool = False, steps: str = "[]") -> Shown:
        """Open a page in every width; `steps` is a list of functions of the page, in JavaScript."""
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
        return Shown(
            [Look(**look) for look in found["looks"]],
            found["answers"],
            [line for line in done.stderr.splitlines() if "CONSOLE" in line],
        )


def _brightness(colour: str) -> int:
    """Of a computed colour such as `rgb(21, 24, 28)`."""
    return sum(map(int, re.findall(r"\d+", colour)[:3]))
