"""A cell's verdict from what its two precisions say."""

from __future__ import annotations

import itertools

import pytest

from conformance.judge.cell.both_precisions import decide
from conformance.spec.records import Answer, Judged, Precision, Relation, Verdict

FLOAT32, BF16 = Precision.FLOAT32, Precision.BF16


def both(meaning: Verdict, numerics: Verdict) -> list[Answer]:
    return [Answer(FLOAT32, meaning, "meaning"), Answer(BF16, numerics, "numerics")]


def expected(meaning: Verdict, numerics: Verdict) -> tuple[Verdict, Precision]:
    """The verdict, and the precision that decides."""
    if meaning.neutral:  # float32 is refused: bf16 decides alone
        return numerics, BF16
    if meaning.fails or numerics is Verdict.VACUOUS:  # in bf16, a check may have no power
        return meaning, FLOAT32
    if numerics.passes or (meaning is numerics is Verdict.DRIFT):
        return (meaning if meaning is Verdict.DRIFT else numerics), FLOAT32
    return numerics, BF16  # drift, what only bf16 shows, and a refusal


@pytest.mark.parametrize(("meaning", "numerics"), list(itertools.product(Verdict, repeat=2)))
def test_float32_decides_correctness_and_bf16_the_rest(meaning: Verdict, numerics: Verdict) -> None:
    for answers in itertools.permutations(both(meaning, numerics)):
        found = decide(list(answers))
        assert (found.verdict, found.leading.precision) == expected(meaning, numerics)
        assert found.beside is not None and found.beside.precision is not found.leading.precision
        if found.verdict is numerics and numerics.neutral and not meaning.neutral:
            assert "numerics" in found.reason and str(meaning) in found.reason


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
            assert not numerics.neutral
