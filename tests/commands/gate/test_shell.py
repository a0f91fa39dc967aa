"""`conformance gate` and `conformance known update`: exit codes and output on stored runs."""

from __future__ import annotations

import pytest

from conformance.runner.store import RunFolder
from conformance.spec.records import Cell, Verdict
from tests import command
from tests.known_runs import CELLS, cell, results, stored

ENTRY = """\
known:
  # Why: no stages.
  - match: {{ model: {model}, backend: vllm-pp2 }}
    verdict: unsupported
    says: it is unsupported
    reason: no stages
    link: https://example.org
    date: 2026-11-01
    {more}
"""
GAP = {
    one: Verdict.UNSUPPORTED for one in CELLS if (one.model, one.backend) == ("mamba2", "vllm-pp2")
}


def shell(tmp_path, *arguments, known="", **environment):
    (tmp_path / "known.yaml").write_text(known or "known: []\n")
    places = ("--known", tmp_path / "known.yaml", "--reports", tmp_path / "reports")
    return command.run(*arguments, *map(str, places), environment=environment)


GOOD = ENTRY.format(model="mamba2", more="")
BROKEN = cell(verdict=Verdict.UNKNOWN, harness=True)


@pytest.mark.parametrize(
    ("verdicts", "known", "code", "words"),
    [
        pytest.param(GAP, GOOD, 0, "The gate is open", id="as expected"),
        pytest.param(GAP, "", 1, "3 unexpected", id="a refusal nobody expected"),
        pytest.param(GAP | {CELLS[0]: Verdict.WRONG}, GOOD, 1, "1 unexpected", id="unexpected"),
        pytest.param({}, GOOD, 1, "1 known gap is gone (3 cells no longer fail)", id="stale"),
        pytest.param(
            GAP, ENTRY.format(model="mamba3", more=""), 2, "known.yaml:3", id="matches nothing"
        ),
        pytest.param(
            GAP,
            ENTRY.format(model="mamba2", more="expires: 2026-11-02"),
            1,
            "1 known gap is expired",
            id="expired",
        ),
        pytest.param(GAP, GOOD.replace("verdict:", "verdikt:"), 2, "did you mean", id="misspelt"),
    ],
)
def test_a_stored_runs_exit_code(tmp_path, verdicts, known, code, words):
    stored(tmp_path / "reports" / "stored", results(verdicts), CELLS)
    found, said = shell(tmp_path, "gate", "stored", known=known)
    assert (found, words in said) == (code, True), said


def test_a_fault_of_the_harness_is_3_and_an_incomplete_run_is_refused(tmp_path):
    cells = [BROKEN if one.id == BROKEN.id else one for one in results().cells]
    stored(tmp_path / "reports" / "stored", results(cells=cells))
    assert shell(tmp_path, "gate", "stored")[0] == 3
    RunFolder(tmp_path / "reports" / "stored").write_results(results(cells=results().cells[:-1]))
    code, said = shell(tmp_path, "gate", "stored")
    assert (code, "incomplete" in said, "--resume" in said) == (2, True, True), said


def test_what_is_printed_is_readable_at_80_columns_off_a_terminal(tmp_path):
    words = "the stream after the layers of the prompt holds the row of a previous_token; " * 4
    name = "vllm-pp1@nnsight-0a1b2c3"
    cells = [cell(backend=name, verdict=Verdict.WRONG, diagnosis=words), *results().cells]
    planned = [Cell("llama", name, "steering", "first"), *CELLS]
    stored(tmp_path / "reports" / "stored", results(cells=cells), planned)
    code, said = shell(tmp_path, "gate", "stored", COLUMNS="80")
    *lines, answer = said.splitlines()
    assert code == 1, said
    assert max(map(len, lines)) <= 80, said
    assert "unexpected · llama · vllm-pp1@nnsight-0a1b2c3 · steering: first · wrong" in said
    assert "previous_token" in said and "|" not in said
    assert answer == "The gate is closed. 1 unexpected in 1 model. 12 cells as expected."


def test_the_summary_goes_where_a_ci_shows_it(tmp_path):
    stored(tmp_path / "reports" / "stored", results())
    step = tmp_path / "step.md"
    code, said = shell(tmp_path, "gate", "stored", GITHUB_STEP_SUMMARY=str(step))
    assert code == 0, said
    assert step.read_text().startswith("## ✅ The gate is open. Nothing unexpected. 12 cells")
    assert (tmp_path / "reports" / "stored" / "gate" / "junit.xml").is_file()


def test_the_proposed_edit_opens_the_gate(tmp_path):
    new = CELLS[0]
    stored(tmp_path / "reports" / "stored", results({new: Verdict.WRONG}))
    code, said = shell(tmp_path, "known", "update", "stored", known=GOOD)
    assert code == 1, said
    assert "-  - match: { model: mamba2, backend: vllm-pp2 }" in said
    assert "+    verdict: wrong" in said
    assert (tmp_path / "known.yaml").read_text() == GOOD
    code, said = shell(tmp_path, "known", "update", "stored", "--write", known=GOOD)
    assert code == 0, said
    after = (tmp_path / "known.yaml").read_text()
    code, said = shell(tmp_path, "gate", "stored", known=after)
    assert (code, "1 known gap" in said) == (0, True), said
