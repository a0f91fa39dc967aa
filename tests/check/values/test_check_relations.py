"""How one value follows from another."""

import torch

from conformance.check.values import relations

VALUE = torch.linspace(-6, 6, 50)


def test_a_multiple_is_found_and_none_is_fitted_to_a_few_numbers():
    assert relations.multiple(VALUE / 2, VALUE) == 0.5
    assert relations.multiple(VALUE.clamp(-3, 3), VALUE) is None
    assert relations.multiple(torch.tensor(3.0), torch.tensor(4.0)) is None
