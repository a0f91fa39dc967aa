"""A reference's run may stand for a shorter one only where both choose the same tokens."""

from types import SimpleNamespace

import pytest
import torch

from conformance.engines.reference.ensemble import BF16, FLOAT32, REFERENCE_RUN
from conformance.engines.reference.model import PromptRun, ReferenceModel

#: What each step finds best, and what was taken: the first token was forced.
BEST, TAKEN = (3, 1, 2), (5, 1, 2)


def run() -> PromptRun:
    logits = [torch.nn.functional.one_hot(torch.tensor(best), 8).float() for best in BEST]
    return PromptRun(
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


MEMBERS = (REFERENCE_RUN, *FLOAT32, *BF16)


def projected(rows, direction):
    """What each member leaves of these rows."""
    left = []
    for member in MEMBERS:
        model = SimpleNamespace(member=member)
        kinds = (value.to(member.dtype) for value in (rows, direction))
        left.append(ReferenceModel.project_out(model, *kinds))
    return left


@pytest.mark.parametrize("width", [3, 64])
def test_of_a_row_along_the_direction_no_zero_by_chance_is_left_on_every_member(width):
    """The judge would hold every engine to the zero, and an engine's own rounding is none."""
    chance = torch.Generator().manual_seed(5)
    for direction in torch.randn(1000, width, generator=chance):
        left = projected(direction[None] * 0.5, direction)
        assert any(rows.any() for rows in left[: 1 + len(FLOAT32)])
        for member, rows in zip(MEMBERS, left, strict=True):
            rounding = 4 * torch.finfo(member.dtype).eps
            assert rows.dtype == member.dtype
            assert rows.float().norm() < rounding * direction.norm()


def test_other_rows_are_what_plain_arithmetic_makes_of_them():
    rows, direction = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(6))
    expected = rows - (rows @ direction[0])[:, None] * direction[0] / direction[0].square().sum()
    for member, left in zip(MEMBERS, projected(rows, direction[0]), strict=True):
        near = 1e-5 if member.dtype == torch.float32 else 0.05
        assert torch.allclose(left.float(), expected, atol=near), member.name
