"""The evidence page in a real browser: no error, no overflow, and what a click does."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sodap.experiments import load_config, run
from sodap.reporting.report import report_page
from sodap.reporting.runs import ShownRun, find_runs
from sodap.reporting.sections import sections_of
from sodap.reporting.sections.comparison import comparison_sections
from tests.conftest import make_stream

from .test_demo_page_in_browser import brightness, chromium

__all__ = ["chromium"]  # the fixture that finds the browser, or skips

WIDTHS = (400, 800, 1400)

# The page is put into one frame per width; `steps` are done in the last one, in order.
WRAPPER = """<!doctype html><html><head><meta charset="utf-8"></head>
<body>{frames}<pre></pre><script>
addEventListener("load", async () => {{
  const frames = [...document.querySelectorAll("iframe")];
  const measured = frames.map(frame => {{
    const root = frame.contentDocument.documentElement;
    const wide = [...root.querySelectorAll("body *")].filter(each =>
      !each.closest(".scroll") && !each.closest("svg") && !each.closest(".unseen")
      && !each.closest("nav") && each.getBoundingClientRect().right > frame.clientWidth + 1);
    return {{
      inner: frame.contentWindow.innerWidth,
      needed: root.scrollWidth,
      wide: wide.map(each => each.outerHTML.slice(0, 80)),
      figures: [...root.querySelectorAll("figure svg")].map(svg => svg.clientWidth),
      ink: getComputedStyle(root.querySelector("h1")).color,
      paper: getComputedStyle(root.querySelector("body")).backgroundColor,
    }};
  }});
  const page = frames.at(-1).contentDocument;
  const seen = [];
  for (const step of {steps}) {{
    seen.push(step(page));
    await new Promise(done => setTimeout(done, 20));
  }}
  document.querySelector("pre").textContent = JSON.stringify({{ measured, seen }});
}});
</script></body></html>"""


def opened(
    chromium: str, page: str, folder: Path, *, dark: bool = False, steps: str = "[]"
) -> tuple[dict[str, Any], str]:
    """What the page looks like in every width, what the steps saw, and what the browser said."""
    frames = "".join(
        f'<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{html.escape(page)}">'
        "</iframe>"
        for width in WIDTHS
    )
    file = folder / "page.html"
    file.write_text(WRAPPER.format(frames=frames, steps=steps), "utf-8")
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
    return json.loads(html.unescape(answer[1])), done.stderr


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
    chromium: str, runs: list[ShownRun], tmp_path: Path, dark: bool, many: bool
) -> None:
    page = (
        report_page(runs, comparison_sections(runs))
        if many
        else report_page(runs[:1], sections_of(runs[0]))
    )
    found, said = opened(chromium, page.replace("<details>", "<details open>"), tmp_path, dark=dark)
    assert "CONSOLE" not in said
    for width, seen in zip(WIDTHS, found["measured"], strict=True):
        assert seen["inner"] == width
        assert seen["needed"] <= width
        assert seen["wide"] == []
        assert all(200 < figure <= width for figure in seen["figures"])
        assert (brightness(seen["ink"]) > brightness(seen["paper"])) == dark


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
def test_clicks_sort_and_filter(chromium: str, runs: list[ShownRun], tmp_path: Path) -> None:
    page = report_page(runs, comparison_sections(runs))
    found, said = opened(chromium, page, tmp_path, steps=STEPS)
    assert "CONSOLE" not in said
    first, up, down, methods, chosen, _, searched, sorted_heads = found["seen"]
    assert first[1:] == [[True, True, True], "3 of 3 shown"]
    assert up == sorted(first[0], key=float)
    assert down == sorted(first[0], key=float, reverse=True)
    assert methods == ["residual-sodap", "ridge", "sequential"]
    assert chosen == [["sequential"], [False, True, False], "1 of 3 shown"]
    assert searched == [methods, ["ridge"]]
    assert sorted_heads == 1


def test_the_browser_would_report_a_mistake(chromium: str, tmp_path: Path) -> None:
    page = "<h1>x</h1><div id='wide' style='width: 2000px'>x</div><script>no()</script>"
    found, said = opened(chromium, page, tmp_path)
    assert "CONSOLE" in said
    assert all("wide" in seen["wide"][-1] for seen in found["measured"])
