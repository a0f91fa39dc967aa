"""From rows to rates and bars."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.records import Precision, Side, Verdict, from_json, to_json
from conformance.records.injected import SCHEMA, Ending, Kind, Limit, Row, SelfTest
from conformance.report.sections.section import Table, texts
from conformance.report.sections.selftest import section
from conformance.selftest.show import complaint
from conformance.selftest.table import bars, clopper_pearson, totals

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


def broken(rows, clean=300, alarms=0):
    return bars(rows, totals(rows, clean, alarms))


def test_all_caught_and_nothing_flagged_holds():
    assert broken([ROW] * 60) == ()


def test_two_per_cent_may_be_missed_and_no_more():
    assert broken([ROW] * 98 + [MISSED] * 2) == ()
    assert any("98%" in said for said in broken([ROW] * 97 + [MISSED] * 3))


def test_caught_with_another_verdict_does_not_count():
    other = replace(ROW, verdict=Verdict.DTYPE, right_verdict=False)
    assert any("98%" in said for said in broken([ROW] * 40 + [other]))


def test_a_fault_that_is_never_caught_is_a_bar_of_its_own():
    blind = replace(MISSED, fault="dtype")
    assert broken([ROW] * 1000 + [blind]) == ("dtype on hf is never caught",)


def test_doses_below_the_bound_are_not_missed_but_one_must_be_above():
    below = replace(ROW, ending=Ending.BELOW, verdict=Verdict.MATCH, right_verdict=False)
    assert broken([ROW] * 60 + [below] * 60) == ()
    assert broken([ROW] * 60 + [replace(below, fault="blurred")])


def test_one_false_alarm_is_too_many():
    assert any("false alarm" in said for said in broken([ROW] * 60, alarms=1))
    alarm = replace(ROW, fault="repeat", ending=Ending.ALARM)
    assert any("false alarm" in said for said in broken([ROW] * 60 + [alarm]))


def test_a_tenth_of_the_explanations_may_be_wrong():
    right = replace(ROW, right_diagnosis=True)
    wrong = replace(ROW, right_diagnosis=False)
    assert broken([right] * 9 + [wrong]) == ()
    assert any("explained" in said for said in broken([right] * 8 + [wrong] * 2))


def test_three_per_cent_may_be_blamed_wrongly_beside_fault_free_columns_and_apart():
    right = replace(ROW, right_side=True, right_apart=True)
    for wrong in (replace(right, right_side=False), replace(right, right_apart=False)):
        assert broken([right] * 97 + [wrong] * 3) == ()
        [said] = broken([right] * 96 + [wrong] * 4)
        assert "attributed to the right side" in said
        assert ("without a fault-free column" in said) is (wrong.right_side is True)


def limit(most, size=1.0, kind=Kind.GAIN):
    given = ("llama", "hf", "steering", "all", Precision.FLOAT32, kind, 10)
    return Limit(*given, half=1e-5, most=most, size=size)


def test_a_detection_limit_beyond_the_bar_is_a_bar_of_its_own():
    rows = [ROW] * 60
    counted = totals(rows, 300, 0)
    later = Kind.LATER_OFF_AXIS
    assert bars(rows, counted, [limit(1e-3), limit(8e-3, size=0.005, kind=later)]) == ()
    small = limit(8e-3, size=0.005)
    for beyond in (limit(2e-3), limit(None), small, limit(0.05, size=0.005, kind=later)):
        [said] = bars(rows, counted, [limit(1e-4), beyond])
        assert "95 % of the trials" in said


def test_in_bf16_no_limit_is_asked():
    counted = totals([ROW] * 60, 300, 0)
    coarse = [replace(limit(share), precision=Precision.BF16) for share in (0.5, None)]
    assert bars([ROW] * 60, counted, coarse) == ()
    assert bars([ROW] * 60, counted, [limit(None)])


def test_most_of_a_whole_self_test_must_act_inside_of_engine_nnsight_or_relay():
    inside = replace(ROW, inside=True)
    absent = replace(ROW, ending=Ending.ABSENT)

    def said(rows, *, whole):
        return bars(rows, totals(rows, 300, 0), whole=whole)

    enough = [inside] * 60 + [ROW] * 40
    assert said(enough, whole=True) == ()
    assert said([*enough, *[absent] * 10], whole=True) == (), "only what was really injected counts"
    [words] = said([inside] * 59 + [ROW] * 41, whole=True)
    assert "60% injected inside" in words and "59 of 100" in words
    assert said([inside] * 59 + [ROW] * 41, whole=False) == ()


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
        [["steering", "float32", "hf", "1e-05 / 2e-02"]],
        [["clean", "bf16", "hf", "1e-05 / 1e-01"]],
    ]
    assert len(shown([*alike, worse])[0].rows) == 2


def shown(limits):
    """The tables of detection limits in the section that the page and the terminal show."""
    table = SelfTest(
        schema=SCHEMA,
        run="r",
        date="d",
        quick=True,
        thresholds="t",
        rows=(ROW,),
        alarms=(),
        totals=totals([ROW], 10, 0),
        broken=(),
        limits=tuple(limits),
    )
    blocks = section(table).blocks
    return [block for block in blocks if isinstance(block, Table) and "limit" in block.title]


def test_no_row_at_all_is_no_success():
    assert broken([])


def test_every_miss_is_said_with_its_reason():
    assert complaint(ROW) == ""
    assert "within noise" in complaint(MISSED)
    assert "attributed to engine" in complaint(
        replace(ROW, right_side=False, attribution=Side.ENGINE)
    )


def test_the_stored_table_is_read_back_as_it_was():
    found = SelfTest(
        schema=SCHEMA,
        run="r",
        date="d",
        quick=True,
        thresholds="t",
        rows=(ROW, MISSED),
        alarms=(),
        totals=totals([ROW, MISSED], 10, 0),
        broken=(),
    )
    assert from_json(SelfTest, to_json(found)) == found


def test_none_of_n_alarms_bounds_their_rate():
    assert clopper_pearson(0, 300) == pytest.approx((0.0, 1 - 0.05 ** (1 / 300)))


def test_all_of_n_is_the_mirror_of_none():
    low, high = clopper_pearson(40, 40)
    assert (low, high) == pytest.approx((0.05 ** (1 / 40), 1.0))


def test_a_published_value():
    # Clopper and Pearson's own example: 10 of 100 at 95 %.
    assert clopper_pearson(10, 100) == pytest.approx((0.0490, 0.1762), abs=5e-5)


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
