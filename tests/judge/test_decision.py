"""A cell's verdict from what its two precisions say."""

from __future__ import annotations

import itertools

import pytest

from conformance.judge.decide import decide
from conformance.records import Answer, Precision, Verdict

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


@pytest.mark.parametrize("meaning", PASSING)
def test_drift_is_shown_and_is_no_failure(meaning: Verdict) -> None:
    found = decide(both(meaning, Verdict.DRIFT))
    assert found.verdict is Verdict.DRIFT and not found.verdict.fails


@pytest.mark.parametrize(("meaning", "numerics"), list(itertools.product(NEUTRAL, Verdict)))
def test_where_float32_is_refused_bf16_decides_alone(meaning: Verdict, numerics: Verdict) -> None:
    found = decide(both(meaning, numerics))
    assert found.verdict is numerics and found.leading.precision is BF16
    assert "meaning" in (found.beside.reason if found.beside else "")


@pytest.mark.parametrize("verdict", Verdict)
def test_a_single_precision_is_its_own_judge(verdict: Verdict) -> None:
    for precision in Precision:
        found = decide([Answer(precision, verdict, "only")])
        assert found.verdict is verdict and found.beside is None


def test_a_failure_never_becomes_a_pass() -> None:
    for meaning, numerics in itertools.product(Verdict, repeat=2):
        found = decide(both(meaning, numerics))
        if found.verdict.passes:
            assert meaning.passes or (meaning.neutral and numerics.passes)
            assert not numerics.fails or numerics is Verdict.VACUOUS
