"""A known gap is said in its cell, and is no failure of the run."""

from conformance.errors import ExitCode
from conformance.expectations import Entry, KnownGaps, Match, marked
from conformance.records import Verdict
from tests.known_runs import CELLS, TODAY, results

GAP = KnownGaps((Entry(Match(model="llama", backend="hf"), Verdict.WRONG, "why", TODAY, link="x"),))
COLUMN = {one: Verdict.WRONG for one in CELLS if (one.model, one.backend) == ("llama", "hf")}


def ended(verdicts, known=GAP):
    return marked(results(verdicts), known, TODAY)


def test_a_run_of_known_gaps_is_as_expected():
    found = ended(COLUMN)
    assert found.footer.exit_code is ExitCode.OK
    assert all(bool(cell.expected) == (cell.verdict is Verdict.WRONG) for cell in found.cells)
    assert any("why" in cell.expected for cell in found.cells)


def test_another_verdict_or_another_cell_is_not():
    assert ended(COLUMN, KnownGaps()).footer.exit_code is ExitCode.UNEXPECTED
    worse = dict.fromkeys(COLUMN, Verdict.CRASH)
    assert ended(worse).footer.exit_code is ExitCode.UNEXPECTED
    assert ended(COLUMN | {CELLS[-1]: Verdict.WRONG}).footer.exit_code is ExitCode.UNEXPECTED
