"""A parser that checks the tags of a page, and collects what a reader and a browser see."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


class PageReader(HTMLParser):
    """Text, ids, links and addresses of a page; fails if its tags are not balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.parts: list[str] = []
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.addresses: list[str] = []
        self.loose_headers = 0
        """Table headers that do not say what they belong to."""
        self.hosts = re.findall(r"https?://[^\"'\s<]+", page)
        self.feed(page)
        self.close()
        assert self.open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.headings.append(tag)
        if tag == "th" and "scope" not in given:
            self.loose_headers += 1
        if tag == "a":
            self.links.append(given.get("href") or "")
        self.ids += [name for key, name in attrs if key == "id" and name]
        self.addresses += [value for key, value in attrs if re.search("src|href", key) and value]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.parts.append(data)
