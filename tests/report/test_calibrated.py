"""How the thresholds were set: on the page, in the terminal, in results.json."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from conformance import records
from conformance.calibration import CAP_MAX, Score, calibrate
from conformance.records import Calibration, Results
from conformance.report import calibration_section, html
from conformance.report.render import terminal


@pytest.fixture
def calibration() -> Calibration:
    quiet = [Score("llama", f"c{n}", "eager", 1.0, 1.7, "p0/s0/logits") for n in range(300)]
    loud = [Score("<b>loud", "steering.last", "split", 1.1, 9.5, "p0/s0/stream.3")]
    return calibrate(
        [*quiet, *loud], date="2026-03-04", device="a processor", versions={"torch": "2.13.0"}
    )


def with_calibration(results: Results, calibration: Calibration | None) -> Results:
    return replace(results, environment=replace(results.environment, calibration=calibration))


def test_the_page_shows_thresholds_date_cases_and_every_model(
    results: Results, calibration: Calibration
) -> None:
    page = html.render(with_calibration(results, calibration))
    section = page[page.index('id="calibration"') :]
    section = section[: section.index("</section>")]
    for words in (
        "1.25 times the noise floor at the median token and 3 times at the worst",
        "Measured on 2026-03-04 on 301 clean cases of 2 models: 301 honest bf16 runs",
        "1 of them are beyond the thresholds",
        "one false alarm in 300 cases",
        ">1.7×<",
        ">9.5×<",
        "steering.last, split, p0/s0/stream.3",
        "&lt;b&gt;loud needs more than the caps (1.1 and 9.5",
        "that is reported as drift, and not accommodated",
        "more than the caps</span>",
        calibration.digest,
        "torch 2.13.0",
    ):
        assert words in section, words
    assert "<b>loud" not in page
    assert section.index("&lt;b&gt;loud</bdi>") < section.index("llama</bdi>")


def test_without_a_calibration_the_page_claims_none(results: Results) -> None:
    assert 'id="calibration"' not in html.render(with_calibration(results, None))


def test_the_terminal_says_the_same(calibration: Calibration) -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    terminal.blocks([calibration_section.section(calibration)], console)
    text = out.getvalue()
    for sentence in calibration_section.sentences(calibration):
        assert sentence in text
    assert "9.5×" in text
    assert calibration.k_max == CAP_MAX


def test_results_keep_it(results: Results, calibration: Calibration) -> None:
    whole = with_calibration(results, calibration)
    assert records.from_json(Results, records.to_json(whole)).environment.calibration == calibration
