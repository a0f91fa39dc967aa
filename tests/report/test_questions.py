"""Somebody who has never seen the project: the script of questions in docs/report.md.

Answered from the page alone, in a browser, by what is to be seen and by nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.spec.records import Results, Verdict

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

DOC = Path(__file__).parents[2] / "docs" / "report.md"


@pytest.fixture
def page(browser: Browser, published: Path) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.goto(f"file://{published}")
    opened.wait_for_selector("html[data-ready]")
    yield opened
    opened.close()


def planted(results: Results, backend: str) -> dict[str, Verdict]:
    """The models with a failure on this column, and the worst of each: what is to be found."""
    found: dict[str, Verdict] = {}
    for cell in results.cells:
        if cell.backend == backend and cell.verdict.fails:
            found.setdefault(cell.model, cell.verdict)
    return found


def failing_rows(page: Page) -> dict[str, str]:
    """Question 1: the models with a failure in the one column shown, and their findings."""
    page.click("summary:has-text('scenario and backend')")
    page.click("#filter-backend [data-value='vllm-pp2']")
    found = {}
    for row in page.locator("#matrix .row:not(.head):visible").all():
        if row.locator(".tile.wrong, .tile.broken, .tile.doubt").count():
            note = row.locator(".note:visible")
            found[row.locator(".name a").inner_text()] = note.inner_text()
    return found


def test_which_architectures_fail_on_two_stages(page: Page, results: Results) -> None:
    card = page.locator(".backends .card", has_text="vllm-pp2").first.inner_text()
    wanted = planted(results, "vllm-pp2")
    new = [cell.backend == "vllm-pp2" and cell.verdict.fails for cell in results.cells]
    assert f"something new: {sum(new)}" in card
    # Mamba-2 is refused there, which is no failure but not clean either.
    assert f"{len(results.models) - len(wanted) - 1} of {len(results.models)} models clean" in card
    assert set(failing_rows(page)) == set(wanted)


def test_since_which_layer_by_how_much_whose_fault_and_how_to_rerun(
    page: Page, results: Results
) -> None:
    rows = failing_rows(page)
    assert "the write at layer 2 had no effect" in rows["llama"]
    page.locator("#matrix .row:visible", has_text="llama").locator(".note a").first.click()
    page.wait_for_selector("#cell .verdict .copyable")
    said = page.locator("#cell .verdict").inner_text()
    cell = next(c for c in results.cells if c.id == page.locator("#cell h2").inner_text())
    assert (cell.model, cell.backend) == ("llama", "vllm-pp2")

    layer = re.search(r"The first layer that is off is (\d+) \(\S+\), (.+)\.", said)
    assert layer and layer.group(1) == "2"
    assert layer.group(2) == "the first layer of a pipeline stage"
    plot = page.locator("#cell .figures svg").first.get_attribute("aria-label") or ""
    assert "the first is 2" in plot
    assert page.locator("#cell .figures svg .bound").count() >= 1

    size = re.search(r"The worst value is ([\d.]+)× the noise floor at \S+; 16× is allowed", said)
    assert size and float(size.group(1)) == pytest.approx(cell.worst_ratio or 0, rel=0.01)
    affected = page.locator("#cell svg.prompts").get_attribute("aria-label") or ""
    assert "edited run, prompt 0: 5 of 5 token columns beyond the limit" in affected
    assert "clean run, prompt 0: none beyond the limit" in affected

    assert "Culprit: pipeline: the same cell is match on vllm-pp1." in said

    commands = page.locator("#cell .copyable code").all_inner_texts()
    assert commands[0] == cell.command
    assert commands[1] == f"conformance repro '{cell.id}' --run {results.run.id}"


def test_the_document_quotes_what_the_page_says(page: Page) -> None:
    """The sentences in the document are those of the page, numbers included."""
    quoted = re.findall(r'\*"([^"]+)"\*', re.sub(r"\s+", " ", DOC.read_text(encoding="utf-8")))
    assert len(quoted) == 3
    failing_rows(page)
    page.locator("#matrix .row:visible", has_text="llama").locator(".note a").first.click()
    page.wait_for_selector("#cell .verdict .copyable")
    said = " ".join(page.locator("#cell .verdict").inner_text().split())
    missing = [sentence for sentence in quoted if sentence not in said]
    assert missing == [], said


def test_an_architecture_has_a_page_of_its_own(page: Page, results: Results) -> None:
    page.click("#matrix .name a:has-text('smollm2')")
    page.click("#model a:has-text('a page of its own')")
    page.wait_for_selector("html[data-ready]")
    assert page.url.endswith("/llama.html")
    names = page.locator("#matrix .name a").all_inner_texts()
    assert names == [m.id for m in results.models if m.architecture == "llama"]
