"""How one value follows from another."""

import torch

from conformance.check.values import relations

VALUE = torch.linspace(-6, 6, 50)


def test_a_cap_is_found_and_nothing_else_is_one():
    capped = 3 * torch.tanh(VALUE / 3)
    assert abs(relations.cap(capped, VALUE) - 3) < 1e-3
    assert relations.cap(VALUE, VALUE) is None
    assert relations.cap(VALUE.clamp(-3, 3), VALUE) is None
    assert relations.cap(VALUE / 2, VALUE) is None


def test_nothing_is_fitted_to_a_few_numbers():
    few = torch.tensor([8.0, 1e-5])
    assert relations.cap(torch.tensor([2.0, 1e-5]), few) is None
    assert relations.multiple(torch.tensor(3.0), torch.tensor(4.0)) is None
    assert relations.multiple(VALUE / 2, VALUE) == 0.5


def test_rows_that_sum_to_one_are_probabilities():
    scores = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    assert relations.probabilities(scores.softmax(-1))
    assert not relations.probabilities(scores)
