"""What an index shows about the package: its page, links and Python versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def page(project: dict[str, Any]) -> str:
    return (ROOT / str(project["readme"])).read_text("utf-8")


def addresses(text: str) -> list[str]:
    """Targets of all links and images, as a Markdown parser sees them."""
    found = []
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in block.children or []:
            target = token.attrGet("href" if token.type == "link_open" else "src")
            if target is not None:
                found.append(str(target))
    return found


def test_an_index_page_has_no_links_to_files(page: str) -> None:
    """An index has only this page: a link to docs/ would lead nowhere, and a picture be missing."""
    assert page.startswith("# sodap\n")
    assert addresses(page)
    assert all(address.startswith("https://") for address in addresses(page))
    assert addresses("see [here](docs/data.md) and ![there](img/demo.png)") == [
        "docs/data.md",
        "img/demo.png",
    ]


def test_the_example_of_the_page_is_that_of_the_readme(page: str) -> None:
    """Which the tests of the documents run."""
    readme = (ROOT / "README.md").read_text("utf-8").splitlines()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    assert [line for line in example.splitlines() if line not in readme] == []


def test_versions_and_links_are_true(project: dict[str, Any]) -> None:
    least = re.fullmatch(r">=3\.(\d+)", project["requires-python"])
    assert least is not None
    classifiers = project["classifiers"]
    named = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", c) for c in classifiers]
    versions = [int(found[1]) for found in named if found]
    assert versions
    assert min(versions) == int(least[1])
    cited = re.search(r"arXiv:(\d+\.\d+)", (ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited is not None
    assert project["urls"] == {"Paper": f"https://arxiv.org/abs/{cited[1]}"}, "no other is known"
