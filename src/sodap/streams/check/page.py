"""The result of a check as one HTML page without external files."""

from __future__ import annotations

from base64 import b64encode

from jinja2 import Environment, PackageLoader, StrictUndefined

from sodap.streams.check.result import KINDS, CheckResult

MAX_LINES = 200
"""Longest list on the page; the JSON file has everything."""


def check_page(result: CheckResult) -> str:
    """Render the content of `check.html`."""
    environment = Environment(
        loader=PackageLoader("sodap.streams.check"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["uri"] = lambda jpeg: f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
    template = environment.get_template("check.html.j2")
    return template.render(result=result, kinds=KINDS, max_lines=MAX_LINES)
