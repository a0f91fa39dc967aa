"""Drawn ids: are they as likely as draws of their logits?"""

from __future__ import annotations

import pytest
import torch

from conformance.judge.measures.draws import Draws, distribution, likelihood

STEPS, VOCABULARY = 64, 50


def truths(seed: int = 0) -> list[torch.Tensor]:
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
def test_honest_draws_are_likely(draws: Draws, seed: int) -> None:
    found = likelihood(drawn(truths(seed), draws, seed), draws)
    assert found is not None and found.holds, found


def test_padding_the_largest_and_even_draws_are_not() -> None:
    logits = truths()
    largest = [(row, int(row.argmax())) for row in logits]
    evenly = [(row, at % VOCABULARY) for at, row in enumerate(logits)]
    padding = [(row, 0) for row in logits]
    for wrong in (largest, evenly, padding):
        found = likelihood(wrong, Draws())
        assert found is not None and not found.holds, found


@pytest.mark.parametrize("used", [Draws(temperature=0.3), Draws(temperature=4.0)])
def test_another_temperature_shows(used: Draws) -> None:
    found = likelihood(drawn(truths(), used, 3), Draws())
    assert found is not None and not found.holds, found


def test_an_id_outside_of_top_p_shows() -> None:
    logits = truths()
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
