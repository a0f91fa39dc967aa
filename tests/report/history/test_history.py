"""Stored runs over time: what each came to, with which versions, and with what room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.errors import ConformanceError, ExitCode
from conformance.report.history import document, load_history, summarise
from conformance.report.render import markdown
from conformance.spec.records import Finding, Group, Precision, Results, Verdict
from tests import known_runs
from tests.report import synthetic


def run(name: str, version: str, worst: float, *, fails: bool = False) -> Results:
    """Two cells of one model; one of them may fail."""
    whole = synthetic.one_cell()
    [cell] = whole.cells
    judged = replace(cell.observations[0], verdict=Verdict.MATCH, q_med=0.5, q_max=worst)
    good = replace(
        cell,
        verdict=Verdict.MATCH,
        precision=Precision.FLOAT32,
        beside=None,
        observations=(judged,),
        finding=Finding.PASSED,
    )
    other = f"{good.scenario}[{good.model}-{good.backend}-other]"
    bad = replace(good, id=other, case="other", verdict=Verdict.WRONG, finding=Finding.UNEXPECTED)
    group = Group(cell.model, cell.backend, versions={"nnsight": version})
    return replace(
        whole,
        run=replace(whole.run, id=name, started=f"2026-11-{name[-2:]}T10:00:00+00:00"),
        groups=(group,),
        cells=(good, bad) if fails else (good,),
    )


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    runs = [
        run("20261101", "0.8.0", 10.0),
        run("20261102", "0.8.1", 50.0),
        run("20261103", "0.8.1", 50.0, fails=True),
    ]
    for results in runs:
        known_runs.stored(tmp_path / results.run.id, results)
    (tmp_path / "latest").symlink_to("20261103")
    (tmp_path / "20261104").mkdir()
    (tmp_path / "20261104" / "results.json").write_text("{")
    return tmp_path


def test_runs_come_in_their_order_without_what_cannot_be_read(reports: Path) -> None:
    read: list[str] = []
    found = load_history(reports, 12, read.append)
    assert [each.id for each in found] == ["20261101", "20261102", "20261103"]
    assert [each.id for each in load_history(reports, 1, read.append)] == ["20261103"]
    assert "latest" not in read


def test_the_margin_is_the_share_of_the_float32_limit(reports: Path) -> None:
    results = run("20261101", "0.8.0", 10.0)
    limits = results.environment.thresholds.of(Precision.FLOAT32)
    [(key, margin)] = summarise(results).margins.items()
    assert key == (results.cells[0].model, results.cells[0].backend)
    assert margin == pytest.approx(max(0.5 / limits.k_med, 10.0 / limits.k_max))
    refused = replace(results.cells[0], observations=())
    assert summarise(replace(results, cells=(refused,))).margins == {}


def test_a_change_of_version_and_what_failed_are_seen(reports: Path) -> None:
    text = markdown.document(document(load_history(reports, 12, lambda _: None)))
    assert "nnsight 0.8.1 (was 0.8.0)" in text
    assert text.count("(was ") == 1
    assert "1 unexpected in 1 model." in text
    assert "1/2 · 50 %" in text and "1/1 · 10 %" in text


def test_the_command_writes_the_page_and_says_where(reports: Path) -> None:
    done = CliRunner().invoke(app, ["history", "--reports", str(reports)])
    assert done.exit_code == 0, done.output
    page = reports / "history.html"
    assert done.stdout.rstrip().endswith(str(page))
    assert 'href="20261103/index.html"' in page.read_text(encoding="utf-8")


def test_a_folder_without_runs_is_bad_input(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["history", "--reports", str(tmp_path)])
    assert isinstance(done.exception, ConformanceError)
    assert done.exception.code is ExitCode.BAD_INPUT
