"""Prompts that are other ones on the two sides: what the evidence says of them."""

import pytest
import torch

from conformance.check import describe
from conformance.check.values import compare
from conformance.judge.measures import structure
from conformance.records import Precision, Site

FIRST, SECOND = (7, 8, 9, 10), (7, 8, 5, 10)


def related(ours, theirs):
    """The relation of the prompts' ids that a comparison of the same values comes to."""
    reference = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    ways = ("float32:truth", "float32:split", "float32:sdpa")
    runs = compare.select_runs({f"{way}|p0/s0/x": reference for way in ways}, Precision.FLOAT32)
    ids, mine = (ours, theirs), {"p0/s0/x": reference}
    told = compare.compare(mine, compare.build_reference(runs, Precision.FLOAT32), ids)
    [one] = [one for one in told.judgement.relations if one.name == structure.PROMPT_IDS]
    return one


def test_the_evidence_numbers_prompts_as_they_are_run():
    first, second, third = (9, 9), (5, 6, 7), (8, 8, 8, 8)
    found = related([first, second, third, third], [first, second, third, second])
    assert not found.holds
    assert found.detail == "prompt 3: 4 ids instead of 3, at position 0 8 instead of 5"


def test_of_ids_that_are_as_many_no_number_is_said():
    assert related([FIRST], [SECOND]).detail == "prompt 0: at position 2 9 instead of 5"
    longer = related([(*FIRST, 3, 4)], [FIRST]).detail
    assert longer == "prompt 0: 6 ids instead of 4, at position 4 3 instead of nothing"


def test_the_same_prompts_in_another_order_are_no_others():
    assert related([SECOND, FIRST], [FIRST, SECOND]).holds


def test_prompts_are_in_the_order_of_their_numbers():
    numbers = [0, 10, 11, 2]  # as a file has them whose keys are sorted as text
    seen = {f"layers|p{n}/s0/ids": torch.tensor([n]) for n in numbers}
    assert compare.prompt_ids(compare.layers(seen)) == [[0], [2], [10], [11]]


@pytest.mark.parametrize(("ran", "missing"), [([0, 1, 0], []), ([0, 1], [2]), ([0, 0], [1])])
def test_the_prompt_that_did_not_run_is_named_also_beside_an_equal_one(ran, missing):
    def ids(numbers):
        return {Site.parse(f"p{n}/s0/ids"): torch.tensor([one]) for n, one in enumerate(numbers)}

    found = describe._other_prompts(ids(ran), ids([0, 1, 0]))
    assert [one.prompt for one in found] == missing
