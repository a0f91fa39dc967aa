"""Drawn ids: are they as likely as draws of their logits?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.judge_cell import Judgement
from conformance.judge.cell.measures.draws import Draws, distribution, likelihood
from conformance.spec.records import Precision, Verdict
from tests.judge.cell import toy

Members = dict[str, dict[str, Tensor]]

STEPS, VOCABULARY = 64, 50
#: Nearly every id is as likely as another.
WIDE = Draws(temperature=50.0)


def reference_logits(seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [1.6 * torch.randn(VOCABULARY, generator=draw) for _ in range(STEPS)]


def drawn(logits: list[torch.Tensor], draws: Draws, seed: int) -> list[tuple[torch.Tensor, int]]:
    generator = torch.Generator().manual_seed(seed)
    chances = [distribution(row, draws) for row in logits]
    return [
        (row, int(torch.multinomial(chance, 1, generator=generator)))
        for row, chance in zip(logits, chances, strict=True)
    ]


@pytest.mark.parametrize("draws", [Draws(), Draws(temperature=0.6), Draws(top_p=0.7)])
@pytest.mark.parametrize("seed", range(20))
def test_correct_draws_are_likely(draws: Draws, seed: int) -> None:
    found = likelihood(drawn(reference_logits(seed), draws, seed), draws)
    assert found is not None and found.holds, found


def test_padding_the_largest_and_even_draws_are_not() -> None:
    logits = reference_logits()
    largest = [(row, int(row.argmax())) for row in logits]
    evenly = [(row, at % VOCABULARY) for at, row in enumerate(logits)]
    padding = [(row, 0) for row in logits]
    for wrong in (largest, evenly, padding):
        found = likelihood(wrong, Draws())
        assert found is not None and not found.holds, found


@pytest.mark.parametrize("used", [Draws(temperature=0.3), Draws(temperature=4.0)])
def test_another_temperature_shows(used: Draws) -> None:
    found = likelihood(drawn(reference_logits(), used, 3), Draws())
    assert found is not None and not found.holds, found


def test_an_id_outside_of_top_p_shows() -> None:
    logits = reference_logits()
    least = [(row, int(row.argmin())) for row in logits[:1]]
    found = likelihood(least, Draws(top_p=0.5))
    assert found is not None and not found.holds


def test_without_draws_nothing_is_said() -> None:
    assert likelihood([], Draws()) is None


def test_of_equally_likely_ids_at_a_top_ps_end_any_may_be_drawn() -> None:
    logits = torch.log(torch.tensor([0.5, 0.25, 0.25]))
    kept = distribution(logits, Draws(top_p=0.6))
    assert kept.tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert distribution(logits, Draws(top_p=0.4)).tolist() == pytest.approx([1.0, 0.0, 0.0])


def cell(ids: Sequence[int], *, along: bool) -> tuple[dict[str, Tensor], Members]:
    """What a column drew, and the reference in float32: along these ids, or its likeliest."""
    source = torch.Generator().manual_seed(5)
    logits = [2 * torch.randn(60, generator=source) for _ in ids]
    rows = {f"p0/s{step}/logits": row for step, row in enumerate(logits)}
    own = {f"p0/s{step}/sampled": torch.tensor([token]) for step, token in enumerate(ids)}
    greedy = {f"p0/s{step}/sampled": row.argmax().reshape(1) for step, row in enumerate(logits)}
    known = {**rows, **(own if along else greedy)}
    return {**rows, **own}, {"truth": known, "float32_a": known, "float32_b": known}


def judged(ids: Sequence[int], *, along: bool, draws: Draws | None = WIDE) -> Judgement:
    return judged_as(*cell(ids, along=along), draws)


def judged_as(observed: Mapping[str, Tensor], known: Members, draws: Draws | None) -> Judgement:
    return toy.judge(observed, known, precision=Precision.FLOAT32, draws=draws)


def likeliest(count: int) -> list[int]:
    _, known = cell([0] * count, along=False)
    return [int(known["truth"][f"p0/s{step}/sampled"]) for step in range(count)]


def test_ids_along_which_the_reference_was_not_run_are_unknown_and_not_wrong() -> None:
    ids = [*likeliest(2), 7, 8]
    lost = judged(ids, along=False)
    assert (lost.verdict, lost.harness) == (Verdict.UNKNOWN, True)
    assert "not run along the candidate's token of step 2" in lost.reason
    assert judged(ids, along=True).verdict is Verdict.EXACT


def test_the_last_id_that_was_drawn_is_nobodys_context() -> None:
    ids = [*likeliest(3), 7]
    assert judged(ids, along=False).verdict.passes


@pytest.mark.parametrize(("again", "verdict"), [(7, Verdict.MATCH), (8, Verdict.WRONG)])
def test_what_repeats_a_drawn_id_is_held_to_that_id(again: int, verdict: Verdict) -> None:
    ids = [*likeliest(3), 7]
    observed, known = cell(ids, along=False)
    observed |= {
        name.replace("sampled", "again"): value
        for name, value in observed.items()
        if name.endswith("sampled")
    }
    observed["p0/s3/again"] = torch.tensor([again])
    for member in known.values():
        member |= {
            name.replace("sampled", "again"): value
            for name, value in list(member.items())
            if name.endswith("sampled")
        }
    assert judged_as(observed, known, WIDE).verdict is verdict


def test_an_id_that_is_laid_down_or_none_at_all_is_wrong() -> None:
    assert judged([*likeliest(3), 7], along=False, draws=None).verdict is Verdict.WRONG
    assert judged([*likeliest(3), 60], along=False).verdict is Verdict.WRONG
