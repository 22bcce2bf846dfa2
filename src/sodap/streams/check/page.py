"""A result as one page that needs no other file and no network."""

from __future__ import annotations

from base64 import b64encode

from jinja2 import Environment, PackageLoader, StrictUndefined

from sodap.streams.check.result import KINDS, CheckResult

LONGEST = 200
"""Lines of a list on the page; the JSON file has them all."""


def check_page(result: CheckResult) -> str:
    pages = Environment(
        loader=PackageLoader("sodap.streams.check"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    pages.filters["uri"] = lambda jpeg: f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
    return pages.get_template("check.html.j2").render(result=result, kinds=KINDS, longest=LONGEST)
