"""One answer to "is anything new?": page, gate, terminal and exit code have it from here."""

from dataclasses import replace

import pytest

from conformance.commands.gate.decide import decide
from conformance.commands.gate.files import headline
from conformance.errors import ExitCode
from conformance.judge.expectations import Entry, KnownGaps, Match, conclude, mark_findings
from conformance.report.sections.findings import headline_of
from conformance.spec.records import Finding, Verdict
from tests.known_runs import CELLS, TODAY, results

WHOLE = KnownGaps(
    (Entry(Match(model="llama", backend="hf"), Verdict.WRONG, "why", TODAY, link="x"),)
)
COLUMN = {cell: Verdict.WRONG for cell in CELLS if (cell.model, cell.backend) == ("llama", "hf")}
FIRST = next(iter(COLUMN))


@pytest.mark.parametrize(
    ("verdicts", "known", "code", "words"),
    [
        ({}, KnownGaps(), 0, "Nothing unexpected. 12 cells as expected."),
        (COLUMN, WHOLE, 0, "Nothing unexpected. 12 cells as expected; 1 known gap."),
        (COLUMN, KnownGaps(), 1, f"{len(COLUMN)} unexpected in 1 model."),
        (COLUMN | {FIRST: Verdict.MATCH}, WHOLE, 1, "1 known gap is gone (1 cell no longer fail"),
        ({FIRST: Verdict.UNSUPPORTED}, KnownGaps(), 1, "1 unexpected in 1 model."),
    ],
)
def test_run_page_gate_and_exit_code_agree(verdicts, known, code, words):
    run = mark_findings(results(verdicts), known, TODAY)
    decision = decide(results(verdicts), known, TODAY)
    assert run.footer.exit_code == decision.exit_code == code
    assert headline_of(run).startswith(words)
    gate = "The gate is closed. " if code else "The gate is open. "
    assert headline(decision) == f"{gate}{headline_of(run)}"


def test_an_expired_entry_is_said_and_closes():
    (entry,) = WHOLE.entries
    known = replace(WHOLE, entries=(replace(entry, expires=TODAY.replace(year=2020)),))
    run = mark_findings(results(COLUMN), known, TODAY)
    assert run.footer.exit_code is ExitCode.UNEXPECTED
    assert "1 known gap is expired" in headline_of(run)


def test_entries_of_one_reason_are_one_gap():
    (entry,) = WHOLE.entries
    halves = [replace(entry, match=replace(entry.match, case=cell.case)) for cell in COLUMN]
    run = mark_findings(results(COLUMN), KnownGaps(tuple(halves)), TODAY)
    assert len(run.gaps) == 1
    assert {cell.gap for cell in run.cells if cell.finding is Finding.KNOWN} == {0}


def test_flaky_and_numerics_close_only_where_they_are_asked_for():
    cells = results().cells
    for finding, option in ((Finding.FLAKY, "strict"), (Finding.NUMERICS, "strict_numerics")):
        some = (replace(cells[0], finding=finding), *cells[1:])
        assert conclude(some).exit_code is ExitCode.OK
        assert conclude(some).headline.startswith("Nothing unexpected.")
        strict = conclude(some, **{option: True})
        assert strict.exit_code is ExitCode.UNEXPECTED
        assert "Nothing unexpected" not in strict.headline


def test_a_known_gap_is_said_in_its_cell_and_another_verdict_or_cell_is_not_known():
    found = mark_findings(results(COLUMN), WHOLE, TODAY)
    assert all(bool(cell.expected) == (cell.verdict is Verdict.WRONG) for cell in found.cells)
    assert any("why" in cell.expected for cell in found.cells)
    for other in (dict.fromkeys(COLUMN, Verdict.CRASH), COLUMN | {CELLS[-1]: Verdict.WRONG}):
        assert mark_findings(results(other), WHOLE, TODAY).footer.exit_code is ExitCode.UNEXPECTED
