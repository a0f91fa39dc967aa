"""A list of equal shapes and one tensor hold the same numbers: no difference of meaning."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.check.values.compare import made_alike

TOKENS = torch.arange(8)


def listed(tensor, name="tokens"):
    return {f"p0/s{step}/{name}": row for step, row in enumerate(tensor)}


def alike(mine, reference):
    return made_alike(mine, {"truth": reference, "eager": reference})


def test_a_list_there_is_one_tensor_as_on_transformers():
    found, notes = alike(listed(TOKENS), {"p0/s0/tokens": TOKENS})
    assert torch.equal(found["p0/s0/tokens"], TOKENS) and len(found) == 1
    assert notes == ("`tokens` is a list of 8 there and one tensor on transformers",)


def test_one_tensor_there_is_a_list_as_on_transformers():
    found, notes = alike({"p0/s0/tokens": TOKENS}, listed(TOKENS))
    assert found.keys() == listed(TOKENS).keys()
    assert all(torch.equal(found[key], value) for key, value in listed(TOKENS).items())
    assert notes == ("`tokens` is a list of 8 on transformers and one tensor there",)


@given(st.integers(2, 5), st.integers(1, 5), st.integers(1, 5))
def test_what_has_other_numbers_of_entries_stays_as_it_is(count, width, other):
    rows = torch.zeros(count, width)
    mine = listed(rows)
    if (count, width) != (count, other):
        found, notes = alike(mine, {"p0/s0/tokens": torch.zeros(count, other)})
        assert found.keys() == mine.keys() and not notes
    found, notes = alike(mine, {"p0/s0/tokens": torch.zeros(count + 1, width)})
    assert found.keys() == mine.keys() and not notes
