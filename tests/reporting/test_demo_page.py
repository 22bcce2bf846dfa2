"""The page tells every number of its records, stands alone, and is well formed."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from sodap.errors import SodapError
from sodap.reporting import demo_page
from sodap.reporting.pages.lead import lead

from .made_records import CLASSES, made_log, made_record, made_stream

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that tags are balanced and collects what a reader and a browser get to see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self.loose_headers = 0
        self.feed(page)
        self.close()
        assert self.open == []

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.headings.append(tag)
        if tag == "th" and "scope" not in dict(attrs):
            self.loose_headers += 1
        self.addresses += [value or "" for name, value in attrs if re.search("src|href", name)]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def two_methods(stages: int = 3) -> str:
    return demo_page(
        made_stream(),
        {
            "ours": made_record(stages),
            "theirs": made_record(stages, level=0.7, loss=0.2, prompts=False),
        },
        {"ours": made_log(stages), "theirs": made_log(stages, weighed=False)},
    )


@pytest.fixture(scope="module")
def page() -> str:
    return two_methods()


def test_is_well_formed_and_accessible(page: str) -> None:
    reader = Reader(page)
    assert reader.headings[0] == "h1"
    assert reader.headings.count("h1") == 1
    assert reader.loose_headers == 0
    assert page.count("<svg ") == page.count('role="img" aria-label="') == 7
    assert page.count("<figure>") == page.count("<figcaption>") == 7
    assert '<html lang="en">' in page
    names = re.findall(r' id="([^"]+)"', page)
    assert len(set(names)) == len(names)
    assert set(re.findall(r' aria-labelledby="([^"]+)"', page)) <= set(names)


def test_stands_alone(page: str) -> None:
    for address in Reader(page).addresses:
        assert address.startswith(("#", "data:image/png;base64,"))
    addresses = set(re.findall(r"https?://[^\"'\s<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "<script" not in page
    assert "@import" not in page
    assert len(page.encode()) < 1_500_000


def test_tells_every_number(page: str) -> None:
    text = Reader(page).words
    ours, theirs = made_record(), made_record(level=0.7, loss=0.2, prompts=False)
    assert lead({"ours": ours, "theirs": theirs}) in text
    for record in (ours, theirs):
        for row in record["R"]["accuracy"]:
            for value in row:
                assert text.count(f"{value:.3f}") >= 2  # in the figure and in the table
        for metric in record["metrics"]["accuracy"].values():
            assert f"{metric:.3f}" in text
        assert f"{record['metrics']['macro_f1']['final_average']:.3f}" in text
        assert f"{sum(stage['seconds'] for stage in record['stages']):.1f}" in text
        assert f"{record['stages'][-1]['trainable_parameters']:,}" in text
    for said in ("20,560 bytes and 0 images", "class means", "theirs keeps nothing", "32, 64, 96"):
        assert said in text
    for said in ("rain 3.00, fog 4.50", "+33", "room for 197 more"):
        assert said in text


def test_tells_how_to_get_it_again(page: str) -> None:
    text = Reader(page).words
    for said in ("sodap demo --out 'my folder'", "seed: 4711", "lr: 0.00123", "commit c0ffee"):
        assert said in text
    for said in ("torch 2.11.0", "3.11.7", "Abacus x 2", "ab12", "4711"):
        assert said in text
    assert "timm None" not in text


def test_is_the_same_every_time(page: str) -> None:
    assert two_methods() == page


def test_one_stage_leaves_forgetting_open() -> None:
    page = two_methods(1)
    text = Reader(page).words
    assert "there is nothing to forget yet" in text
    assert "–" in text
    assert "None" not in text
    assert "Drift score" not in text


def test_without_pool_and_drift_their_section_is_left_out() -> None:
    record, log = made_record(prompts=False), made_log(weighed=False)
    page = demo_page(made_stream(), {"plain": record}, {"plain": log})
    text = Reader(page).words
    assert "How the pool of prompts grows" not in text
    assert "below, the weights" not in text


def test_names_are_escaped() -> None:
    stream = made_stream(("<i>snow</i>", "rain & fog"), ("<b>", "</svg><script>"))
    name = '"ours" <u>'
    page = demo_page(stream, {name: made_record(2, stream=stream)}, {name: made_log(2)})
    reader = Reader(page)
    assert not {"<b>", "<u>", "<i>", "<script"} & set(re.findall(r"<(?:b|u|i)>|<script", page))
    text = reader.words
    for said in (name, "<b>", "</svg><script>", "<i>snow</i>", "rain & fog"):
        assert said in text
    assert unescape(page).count(name) > 5


def test_an_unfinished_run_says_so() -> None:
    record = made_record(2) | {"status": "interrupted", "note": "stopped by the user"}
    page = demo_page(made_stream(), {"ours": record}, {"ours": made_log(2)})
    assert "not complete (interrupted: stopped by the user)" in page
    assert "after 2 of 3 domains" in page


def test_a_run_without_a_result_is_refused() -> None:
    record = made_record() | {"R": {"accuracy": []}}
    with pytest.raises(SodapError, match="ours has not learned a domain yet"):
        demo_page(made_stream(), {"ours": record}, {"ours": []})


def test_classes_are_counted(page: str) -> None:
    assert f"{len(CLASSES)} classes, 3 domains" in page
