"""A reference's run may stand for a shorter one only where both choose the same tokens."""

import pytest
import torch

from conformance.engines.reference.model import Run

#: What each step finds best, and what was taken: the first token was forced.
BEST, TAKEN = (3, 1, 2), (5, 1, 2)


def run() -> Run:
    logits = [torch.nn.functional.one_hot(torch.tensor(best), 8).float() for best in BEST]
    return Run(
        stream=[{0: torch.full((1, 2), float(step))} for step in range(3)],
        logits=logits,
        tokens=[torch.tensor([token]) for token in TAKEN],
        branches=[{}, {}, {}],
        ids=torch.tensor([7, 7]),
    )


@pytest.mark.parametrize(
    ("forced", "steps", "begins"),
    [
        ((5,), 1, True),
        ((5,), 3, True),
        ((5, 1, 2), 3, True),
        # More is forced than is asked for.
        ((5, 1, 2), 2, True),
        # Free, the first step takes another.
        ((), 1, False),
        ((3,), 1, False),
        ((5, 6), 3, False),
        ((5, 6), 1, True),
        ((5,), 4, False),
    ],
)
def test_a_shorter_run_is_the_beginning_of_a_longer_one(forced, steps, begins):
    assert run().goes_on(forced, steps) is begins


def test_the_first_steps_are_cut_from_everything_that_has_steps():
    first = run().first(2)
    assert [len(getattr(first, name)) for name in ("stream", "logits", "tokens", "branches")] == [
        2
    ] * 4
    assert first.parts == []
    assert torch.equal(first.ids, torch.tensor([7, 7]))
    assert torch.equal(first.stream[1][0], torch.ones(1, 2))
