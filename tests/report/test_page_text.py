"""The page as text: whole, self-contained, and with nothing in it that a run could close."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conformance.report import html
from conformance.report.render import page as page_of
from conformance.spec.records import Results
from tests.report import hostile, synthetic


class Reader(HTMLParser):
    """Tags, what scripts and styles hold, and every attribute that would fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = (dict(attrs).get("id") or "") if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text += data
        else:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


@pytest.fixture(scope="module")
def rendered(published: Path) -> str:
    return published.read_text("utf-8")


@pytest.fixture(scope="module")
def strange() -> str:
    return html.render(hostile.hostile())


@pytest.mark.parametrize(("name", "groups"), [("rendered", 39), ("strange", 1)])
def test_has_exactly_the_tags_of_the_frame(
    request: pytest.FixtureRequest, name: str, groups: int
) -> None:
    """Whatever the run says, the only scripts are ours and nothing is fetched."""
    page = Reader(request.getfixturevalue(name))
    assert set(page.scripts) == {"", "index", *(f"part-{i}" for i in range(groups))}
    assert sum(tag == "script" for tag, _ in page.tags) == groups + 2
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "embed", "base")]
    for tag, attributes in page.tags:
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
        for key in ("src", "href", "srcset", "action"):
            value = attributes.get(key) or ""
            assert not re.match(r"\s*(https?:|//|javascript:)", value), (tag, value)


def test_the_policy_names_the_only_script_by_its_digest(rendered: str) -> None:
    page = Reader(rendered)
    policy = next(
        attributes["content"] or ""
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert f"script-src '{page_of.digest(page.scripts[''])}'" in policy


def test_the_data_says_what_the_run_says(results: Results, rendered: str) -> None:
    page = Reader(rendered)
    index = unpacked(page.scripts["index"])
    columns = index["cells"]
    names = [index["verdicts"][i][0] for i in columns["verdict"]]
    scenarios = [index["scenarios"][i]["id"] for i in columns["scenario"]]
    # The index goes by groups, in the order in which they begin.
    expected = sorted(
        results.cells,
        key=lambda cell: [(g[0], g[1]) for g in index["groups"]].index(
            (
                [m["id"] for m in index["models"]].index(cell.model),
                [b["id"] for b in index["backends"]].index(cell.backend),
            )
        ),
    )
    assert names == [cell.verdict.value for cell in expected]
    assert scenarios == [cell.scenario for cell in expected]
    assert sum(group[2] for group in index["groups"]) == len(results.cells)
    part = unpacked(page.scripts["part-0"])
    shown = expected[: index["groups"][0][2]]
    assert part["cells"]["observations"] == [len(cell.observations) for cell in shown]
    assert part["cells"]["command"] == [cell.command for cell in shown]
    sites = [observation.site for cell in shown for observation in cell.observations]
    assert part["rows"][0] == sites


def test_markup_of_a_run_is_text_and_a_long_log_is_cut_in_its_middle(strange: str) -> None:
    page = Reader(strange)
    assert hostile.ATTACK in page.text
    assert unpacked(page.scripts["index"])["models"][0]["id"] == hostile.MODEL
    part = unpacked(page.scripts["part-0"])
    assert len(part["log"]) < 100_000
    assert "characters left out" in part["log"]
    assert "characters left out" in part["cells"]["detail"][0]


def test_every_architecture_has_a_page_with_its_own_models_only(
    published: Path, rendered: str, results: Results
) -> None:
    assert published.name == "index.html"
    architectures = {model.architecture for model in results.models}
    pages = {path.stem for path in published.parent.glob("*.html")} - {"index"}
    assert pages == architectures
    own = Reader((published.parent / "llama.html").read_text(encoding="utf-8"))
    data = unpacked(own.scripts["index"])
    assert [model["id"] for model in data["models"]] == ["smollm2", "llama"]
    cells = sum(group[2] for group in data["groups"])
    assert cells == sum(cell.architecture == "llama" for cell in results.cells)
    assert not data["files"]
    whole = Reader(rendered)
    assert unpacked(whole.scripts["index"])["files"]["gpt2"] == "gpt2.html"
    assert "2 stages, values carried by the stage relay" in whole.text and "1 stage" in whole.text


def test_a_name_of_an_architecture_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    run = hostile.hostile()
    names = ("../../up", "index", "..", "a/b", "a b", hostile.ATTACK * 9, "\ud83d")
    cells = tuple(
        replace(run.cells[i % 3], architecture=name, id=f"cell {i}") for i, name in enumerate(names)
    )
    found = html.files(replace(run, cells=cells))
    assert len(set(found.values())) == len(names)
    assert "index.html" not in found.values()
    assert all(re.fullmatch(r"[\w.-]{1,100}\.html", name) for name in found.values()), found
    html.publish(replace(run, cells=cells), tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert len(list((tmp_path / "run").glob("*.html"))) == len(names) + 1


def test_an_unfinished_run_says_so_first_and_is_no_pass() -> None:
    results = synthetic.results(synthetic.Maker(models=synthetic.MODELS[:1]))
    footer = replace(results.footer, planned=results.footer.planned + 100)
    good = tuple(cell for cell in results.cells if cell.verdict.passes)
    partial = html.render(replace(results, cells=good, gaps=(), footer=footer))
    assert "So far: Nothing unexpected." in partial and "✓</span>" not in partial
    assert 'http-equiv="refresh"' in partial and "cells are judged so far" in partial
    whole = html.render(replace(results, cells=good, gaps=()))
    assert 'http-equiv="refresh"' not in whole and "judged so far" not in whole
