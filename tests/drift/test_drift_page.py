"""The examples of docs/drift.md run, and show what the page says about them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sodap.drift import Monitor

PAGE = Path(__file__).parents[2] / "docs" / "drift.md"


def test_the_examples_show_what_the_page_says() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.M | re.S)
    exec("".join(blocks), names)
    assert names["result"].alarm
    assert names["result"].effect_size > names["result"].smallest_visible
    assert names["state"].alarm_at is not None
    reference = names["reference"]
    monitor = Monitor(reference.score(names["held_out"]))
    for row in names["new_rows"]:
        state = monitor.update(reference.score(row[None]))
    assert not state.alarm
