"""What blocks left of values, compared when a step is over."""

import pytest
import torch
from nnsight.modeling.vllm.batching import VLLMBatcher

from conformance.engines.vllm.relay.changed_values import EndedVisit, find_readers
from conformance.engines.vllm.relay.record import Reader, digest, snapshot
from conformance.engines.vllm.relay.replay import compare_readers

#: Two requests: two rows and three.
GROUPS = {0: [0, 2], 1: [2, 3]}


def visited(edit=None):
    """A visit of five rows, in which `edit` changes its value in place, and that value."""
    value = (torch.randn(5, 4), torch.randn(5, 4).bfloat16())
    before = snapshot(value)
    if edit:
        edit(value)
    return EndedVisit(GROUPS, 5, before, snapshot(value)), value


def edit_second_request(value):
    value[1][3] += 1


def readers(*visits):
    batcher = VLLMBatcher(None)
    batcher.total = 2  # by then one row a request
    return find_readers(visits, batcher)


def test_only_rows_that_were_edited_have_a_digest():
    visit, value = visited(edit_second_request)
    none, one, again = readers(visited()[0], visit, visited()[0])
    assert none == again == (Reader(0, None), Reader(1, None))
    assert one == (Reader(0, None), Reader(1, digest(tuple(part[2:] for part in value))))


def test_a_value_of_another_shape_is_an_edit():
    (found,) = readers(EndedVisit(GROUPS, 5, (torch.zeros(5, 4),), (torch.zeros(5, 3),)))
    assert all(reader.digest is not None for reader in found)


def test_what_is_written_after_a_visit_is_no_edit_of_it():
    visit, value = visited()
    value[0].zero_()
    assert [reader.digest for reader in readers(visit)[0]] == [None, None]


@pytest.mark.parametrize(
    ("owners", "copies", "words"),
    [
        ([(0, None), (1, 5)], [(0, None), (1, 5)], {}),
        ([(0, None)], [(0, None), (1, 7)], {1: "lives, did not ask for it"}),
        ([(0, None), (1, 7)], [(0, None)], {1: "another stage did not ask"}),
        ([(0, None), (1, 7)], [(0, None), (1, 8)], {1: "is not the edit"}),
        ([(0, None)], [(0, 8)], {0: "is not the edit"}),
    ],
)
def test_a_copy_that_does_something_else_than_the_owners_is_an_error(owners, copies, words):
    found = compare_readers([Reader(*one) for one in owners], [Reader(*one) for one in copies])
    assert found.keys() == words.keys()
    assert all(words[row] in found[row] for row in words)
