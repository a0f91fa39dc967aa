"""What is left out before two values are compared, said once for all of them."""

import torch

from conformance.check.values.compare import made_alike

ROWS, LOGITS = torch.zeros(6, 8), torch.zeros(32)


def noted(mine, reference):
    return made_alike(mine, {"truth": reference, "eager": reference})[1]


def test_an_axis_of_one_is_noted_once_and_names_every_value():
    reference = {f"p0/s0/{name}": ROWS[None] for name in ("first", "second", "third")}
    reference |= {
        "p0/s0/last": LOGITS[None],
        "p0/s0/all.3": ROWS[None],
        "p0/s1/all.3": ROWS[:1][None],
    }
    mine = {name: value[0] for name, value in reference.items()}
    [note] = noted(mine, reference)
    assert note == (
        "`all`, `first`, `second`, `third` are [1, 6, 8] on transformers and [6, 8] there; `last` "
        "is [1, 32] on transformers and [32] there: an axis of one more or less"
    )
    assert noted(reference, reference) == ()


def test_many_values_are_counted():
    reference = {f"p0/s0/v{number}": torch.zeros(1, number + 2) for number in range(12)}
    mine = {name: value[0] for name, value in reference.items()}
    [note] = noted(mine, reference)
    assert note.endswith("; 4 more: an axis of one more or less") and note.count("`") == 16
