"""docs/data-sets.md agrees with the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sodap.streams.catalogue import find_source, source_names

DOCUMENT = (Path(__file__).parents[3] / "docs/data-sets.md").read_text("utf-8")

OWN = {"folder", "table"}


def section(name: str) -> str:
    found = re.search(rf"^### `{name}`\n(.*?)(?=^##)", DOCUMENT, flags=re.M | re.S)
    assert found, f"docs/data-sets.md has no section on {name}"
    return found[1]


@pytest.mark.parametrize("name", sorted(set(source_names()) - OWN - {"core50_sample"}))
def test_facts_agree(name: str) -> None:
    source, text = find_source(name), section(name)
    rows = dict(re.findall(r"^\| (\S[^|]*?) \| (.*?) \|$", text, flags=re.M))
    assert rows["Title"] == source.title
    assert rows["Licence"] == source.licence
    assert rows["Citation"] in (source.citation, "as for `deepdrid`")
    assert rows["From"].strip("<>") in source.advice
    assert f"{name}/" in text
    if source.totals and name != "derm7pt":
        totals = ", ".join(f"{label}: {count}" for label, count in source.totals.items())
        assert rows["Totals"] == totals
        assert re.search(rf"^\| \[`{name}`\].* {sum(source.totals.values()):,} \|", DOCUMENT, re.M)
    if by_class := rows.get("By class"):
        counts = dict.fromkeys(source.classes, 0)
        for grade, count in source.totals.items():
            counts["Normal" if grade == "0" else "PDR" if grade == "4" else "NPDR"] += count
        assert by_class == ", ".join(f"{label} {count}" for label, count in counts.items())


@pytest.mark.parametrize("name", source_names())
def test_every_source_is_mentioned(name: str) -> None:
    assert f"`{name}`" in DOCUMENT
