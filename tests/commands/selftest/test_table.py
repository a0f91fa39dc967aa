"""From rows to rates and bars."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.selftest.show import complaint
from conformance.commands.selftest.table import bars, clopper_pearson, totals
from conformance.report.sections.section import Facts, Table, texts
from conformance.report.sections.selftest import section
from conformance.spec.records import Precision, Side, Verdict, from_json, to_json
from conformance.spec.records.injected import SCHEMA, Ending, Kind, Limit, Row, SelfTest

ROW = Row(
    fault="half-stream",
    side=Side.NNSIGHT,
    variant="half-stream.middle",
    model="llama",
    backend="hf",
    scenario="read_all",
    case="pair",
    dose=0.0,
    place="middle",
    ending=Ending.CAUGHT,
    verdict=Verdict.WRONG,
    expected=(Verdict.WRONG,),
    right_verdict=True,
)
MISSED = replace(
    ROW, ending=Ending.MISSED, verdict=Verdict.MATCH, right_verdict=False, reason="within noise"
)


ALARM = replace(ROW, fault="repeat", ending=Ending.ALARM)
OTHER = replace(ROW, verdict=Verdict.DTYPE, right_verdict=False)
BELOW = replace(ROW, ending=Ending.BELOW, verdict=Verdict.MATCH, right_verdict=False)
EXPLAINED, UNEXPLAINED = (replace(ROW, right_diagnosis=right) for right in (True, False))
BLAMED = replace(ROW, right_side=True, right_apart=True)
AMISS, APART_AMISS = replace(BLAMED, right_side=False), replace(BLAMED, right_apart=False)
INSIDE = replace(ROW, inside=True)
ABSENT = replace(ROW, ending=Ending.ABSENT)


def broken(rows, alarms=0, **more):
    return bars(rows, totals(rows, 300, alarms), **more)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([ROW] * 60, None),
        ([ROW] * 98 + [MISSED] * 2, None),
        ([ROW] * 97 + [MISSED] * 3, "98%"),
        ([ROW] * 40 + [OTHER], "98%"),
        ([ROW] * 1000 + [replace(MISSED, fault="dtype")], "dtype on hf is never caught"),
        ([ROW] * 60 + [BELOW] * 60, None),
        ([ROW] * 60 + [replace(BELOW, fault="blurred")], "never caught"),
        ([ROW] * 60 + [ALARM], "false alarm"),
        ([EXPLAINED] * 9 + [UNEXPLAINED], None),
        ([EXPLAINED] * 8 + [UNEXPLAINED] * 2, "explained"),
        ([BLAMED] * 97 + [AMISS] * 3, None),
        ([BLAMED] * 96 + [AMISS] * 4, "attributed to the right side:"),
        ([BLAMED] * 97 + [APART_AMISS] * 3, None),
        ([BLAMED] * 96 + [APART_AMISS] * 4, "right side without a fault-free column"),
        ([INSIDE] * 60 + [ROW] * 40, None),
        ([INSIDE] * 60 + [ROW] * 40 + [ABSENT] * 10, None),  # only what was really injected counts
        ([INSIDE] * 59 + [ROW] * 41, "60% injected inside engine, nnsight or relay: 59 of 100"),
        ([], "98%"),
    ],
)
def test_bars_of_the_rows(rows, words):
    whole = any(row.inside for row in rows)
    if words is None:
        assert broken(rows, whole=whole) == ()
    else:
        [said] = broken(rows, whole=whole)
        assert words in said


def test_one_false_alarm_without_a_fault_is_too_many_and_a_chosen_few_may_act_outside():
    assert any("false alarm" in said for said in broken([ROW] * 60, alarms=1))
    assert broken([INSIDE] * 59 + [ROW] * 41) == ()


def limit(most, size=1.0, kind=Kind.GAIN):
    given = ("llama", "hf", "steering", "all", Precision.FLOAT32, kind, 10)
    return Limit(*given, half=1e-5, most=most, size=size)


def test_a_detection_limit_beyond_the_bar_is_a_bar_of_its_own():
    later, small = Kind.LATER_OFF_AXIS, limit(8e-3, size=0.005)
    held = [limit(1e-3), limit(8e-3, size=0.005, kind=later)]
    assert broken([ROW] * 60, limits=held) == ()
    for beyond in (limit(2e-3), limit(None), small, limit(0.05, size=0.005, kind=later)):
        [said] = broken([ROW] * 60, limits=[limit(1e-4), beyond])
        assert "95 % of the trials" in said


def test_in_bf16_no_limit_is_asked():
    coarse = [replace(limit(share), precision=Precision.BF16) for share in (0.5, None)]
    assert broken([ROW] * 60, limits=coarse) == ()
    assert broken([ROW] * 60, limits=[limit(None)])


def test_the_limits_are_shown_by_scenario_precision_and_backend():
    """The worst case of each; backends with the same figures stand in one row."""
    alike = [replace(limit(2e-4), backend=backend) for backend in ("hf", "vllm-pp1")]
    worse = replace(limit(4e-4), case="other")
    coarse = replace(limit(None), precision=Precision.BF16, largest=256.0)
    later = limit(0.02, kind=Kind.LATER_GAIN)
    read = replace(limit(0.1, kind=Kind.SERVED), scenario="clean", precision=Precision.BF16)
    tables = [
        [[one.words for entry in row for one in texts(entry)] for row in block.rows]
        for block in shown([*alike, coarse, read, later])
    ]
    assert tables == [
        [
            ["steering", "float32", "hf, vllm-pp1", "1e-05 / 2e-04"],
            ["steering", "bf16", "hf", "1e-05 / > 256"],
        ],
        [["steering", "float32", "hf", "1e-05 / 0.02"]],
        [["clean", "bf16", "hf", "1e-05 / 0.1"]],
    ]
    assert len(shown([*alike, worse])[0].rows) == 2


def test_the_faults_that_only_bf16_shows_are_counted_and_named():
    coarse = replace(ROW, fault="pp-dtype", precision=Precision.BF16)
    quiet = replace(coarse, fault="noise-only", ending=Ending.QUIET)
    facts = section(table(rows=(ROW, ROW, coarse, quiet))).blocks
    [pairs] = (dict(block.pairs) for block in facts if isinstance(block, Facts))
    assert pairs["shown by bf16 alone"] == "1 of 2 faults: pp-dtype"


def shown(limits):
    """The tables of detection limits in the section that the page and the terminal show."""
    blocks = section(table(limits=tuple(limits))).blocks
    return [block for block in blocks if isinstance(block, Table) and "limit" in block.title]


def table(rows=(ROW,), **more):
    counted = totals(rows, 10, 0)
    given = {"schema": SCHEMA, "run": "r", "date": "d", "quick": True, "thresholds": "t"}
    return SelfTest(rows=rows, alarms=(), totals=counted, broken=(), **given, **more)


def test_every_miss_is_said_with_its_reason():
    assert complaint(ROW) == ""
    assert "within noise" in complaint(MISSED)
    assert "attributed to engine" in complaint(
        replace(ROW, right_side=False, attribution=Side.ENGINE)
    )


def test_the_stored_table_is_read_back_as_it_was():
    found = table((ROW, MISSED))
    assert from_json(SelfTest, to_json(found)) == found


@pytest.mark.parametrize(
    ("count", "total", "interval"),
    [
        (0, 300, (0.0, 1 - 0.05 ** (1 / 300))),
        (40, 40, (0.05 ** (1 / 40), 1.0)),
        (10, 100, (0.0490, 0.1762)),  # Clopper and Pearson's own example
    ],
)
def test_the_interval_of_a_rate_is_the_published_one(count, total, interval):
    assert clopper_pearson(count, total) == pytest.approx(interval, abs=5e-5)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_more_trials_make_it_narrower(trial):
    count, total = trial
    low, high = clopper_pearson(count, total)
    assert 0 <= low <= count / total <= high <= 1
    wide = clopper_pearson(3 * count, 3 * total)
    assert wide[1] - wide[0] <= high - low


@pytest.mark.parametrize(("count", "total"), [(1, 0), (3, 2), (-1, 5)])
def test_what_is_no_rate_is_refused(count, total):
    with pytest.raises(ValueError, match="is no rate"):
        clopper_pearson(count, total)
