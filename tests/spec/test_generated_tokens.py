"""Generated tokens: read from observations, and compared as far as they are context."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.spec.generated_tokens import by_member, continuation, differing
from conformance.spec.records import Site

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


def observed(tokens):
    """Observations as a worker writes them: one id a step."""
    return {
        str(Site("tokens", prompt=prompt, step=step, run=run)): torch.tensor([token])
        for run, prompts in tokens.items()
        for prompt, ids in enumerate(prompts)
        for step, token in enumerate(ids)
    }


@given(st.dictionaries(st.sampled_from(["clean", "edited"]), st.tuples(IDS, IDS)))
def test_what_was_generated_is_read_back(tokens):
    expected = {run: tuple(map(tuple, prompts)) for run, prompts in tokens.items()}
    assert continuation(observed(tokens), 2) == expected


def test_only_runs_that_differ_are_forced():
    """Also by their last token, whose likelihood may have been kept."""
    reference = {"clean": ((1, 2, 3),), "edited": ((4, 5, 6),)}
    for ids in ((1, 2, 9), (1, 9, 3), (1, 2)):
        assert differing({"clean": (ids,), "edited": ((4, 5, 6),)}, reference) == {"clean": (ids,)}


def test_other_observations_are_no_tokens():
    assert continuation({"p0/s0/logits": torch.zeros(4)}, 1) == {}


def test_the_reference_is_read_by_member():
    values = {"truth|p0/s0/logits": torch.zeros(1), "eager|p0/s0/logits": torch.ones(1)}
    assert set(by_member(values)) == {"truth", "eager"}
    assert by_member(values)["eager"]["p0/s0/logits"] == 1
