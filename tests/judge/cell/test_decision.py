"""A cell's verdict from what its two precisions say."""

from __future__ import annotations

import itertools

import pytest

from conformance.judge.cell.both_precisions import decide
from conformance.spec.records import Answer, Judged, Precision, Relation, Verdict

FLOAT32, BF16 = Precision.FLOAT32, Precision.BF16
BAD = [verdict for verdict in Verdict if verdict.fails]
PASSING = [verdict for verdict in Verdict if verdict.passes]
NEUTRAL = [verdict for verdict in Verdict if verdict.neutral]


def both(meaning: Verdict, numerics: Verdict) -> list[Answer]:
    return [Answer(FLOAT32, meaning, "meaning"), Answer(BF16, numerics, "numerics")]


@pytest.mark.parametrize(("meaning", "numerics"), list(itertools.product(BAD, Verdict)))
def test_what_float32_fails_fails(meaning: Verdict, numerics: Verdict) -> None:
    found = decide(both(meaning, numerics))
    assert found.verdict is meaning and found.leading.precision is FLOAT32
    assert found.beside is not None and found.beside.verdict is numerics


@pytest.mark.parametrize(("meaning", "numerics"), list(itertools.product(PASSING, BAD)))
def test_what_only_bf16_shows_fails_but_for_a_check_without_power(
    meaning: Verdict, numerics: Verdict
) -> None:
    found = decide(both(meaning, numerics))
    if numerics is Verdict.VACUOUS:
        assert found.verdict is meaning
    else:
        assert found.verdict is numerics and found.leading.precision is BF16


OFF = [Verdict.WRONG, Verdict.DRIFT, Verdict.UNKNOWN, Verdict.ALIASED]


def without_power(*observed: Verdict, holds: bool = True) -> list[Answer]:
    """bf16 has too little power for the write, and observes these beside it."""
    sites = [Judged(f"edited/p0/s0/stream.{i}", verdict) for i, verdict in enumerate(observed)]
    relation = Relation("prompts beside others keep their bits", holds=holds)
    return [
        Answer(FLOAT32, Verdict.MATCH, "meaning"),
        Answer(
            BF16, Verdict.VACUOUS, "too small", observations=tuple(sites), relations=(relation,)
        ),
    ]


@pytest.mark.parametrize("shown", OFF)
def test_a_write_that_noise_hides_hides_nothing_else(shown: Verdict) -> None:
    found = decide(without_power(Verdict.MATCH, shown, Verdict.MATCH))
    assert found.verdict is shown and found.leading.precision is BF16
    assert "stream after layer 1" in found.reason
    assert found.leading.harness is (shown is Verdict.UNKNOWN)


def test_nor_a_rule_without_tolerance_that_does_not_hold() -> None:
    found = decide(without_power(Verdict.MATCH, holds=False))
    assert found.verdict is Verdict.WRONG and "keep their bits" in found.reason
    assert decide(without_power(Verdict.MATCH)).verdict is Verdict.MATCH


@pytest.mark.parametrize("meaning", PASSING)
def test_drift_is_shown_and_is_no_failure(meaning: Verdict) -> None:
    found = decide(both(meaning, Verdict.DRIFT))
    assert found.verdict is Verdict.DRIFT and not found.verdict.fails


@pytest.mark.parametrize(("meaning", "numerics"), list(itertools.product(NEUTRAL, Verdict)))
def test_where_float32_is_refused_bf16_decides_alone(meaning: Verdict, numerics: Verdict) -> None:
    found = decide(both(meaning, numerics))
    assert found.verdict is numerics and found.leading.precision is BF16
    assert "meaning" in (found.beside.reason if found.beside else "")


SEEN = [*PASSING, Verdict.DRIFT]


@pytest.mark.parametrize(("meaning", "numerics"), list(itertools.product(SEEN, NEUTRAL)))
def test_a_refusal_in_bf16_is_no_pass(meaning: Verdict, numerics: Verdict) -> None:
    found = decide(both(meaning, numerics))
    assert found.verdict is numerics and found.leading.precision is BF16
    assert "numerics" in found.reason and str(meaning) in found.reason


@pytest.mark.parametrize("verdict", Verdict)
def test_a_single_precision_is_its_own_judge(verdict: Verdict) -> None:
    for precision in Precision:
        found = decide([Answer(precision, verdict, "only")])
        assert found.verdict is verdict and found.beside is None


@pytest.mark.parametrize("numerics", [v for v in Verdict if v is not Verdict.VACUOUS])
def test_a_tie_in_float32_hides_nothing_that_bf16_shows(numerics: Verdict) -> None:
    answers = both(Verdict.DRIFT, numerics)
    for order in itertools.permutations(answers):
        assert decide(list(order)).verdict is (Verdict.DRIFT if numerics.passes else numerics)


def test_a_failure_never_becomes_a_pass() -> None:
    for meaning, numerics in itertools.product(Verdict, repeat=2):
        found = decide(both(meaning, numerics))
        if found.verdict.passes:
            assert meaning.passes or (meaning.neutral and numerics.passes)
            assert not numerics.fails or numerics is Verdict.VACUOUS
            assert not numerics.neutral
