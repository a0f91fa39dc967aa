"""What an error said is compared as words."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.judge.measures import structure


def bytes_of(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


@given(st.text(), st.text())
def test_two_texts_agree_when_they_are_the_same(left: str, right: str) -> None:
    assert (structure.other_text(bytes_of(left), bytes_of(right)) == "") is (left == right)


def test_a_difference_quotes_both_also_at_equal_length() -> None:
    said = structure.other_text(bytes_of("nothing"), bytes_of("nothung"))
    assert said == "says 'nothing' instead of 'nothung'"


def test_only_rows_of_bytes_are_texts() -> None:
    assert structure.is_text(bytes_of("x"))
    assert not structure.is_text(torch.zeros(3, dtype=torch.int64))
    assert not structure.is_text(torch.zeros(3, 2, dtype=torch.uint8))
