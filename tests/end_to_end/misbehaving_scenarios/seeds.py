"""The block leaves the random state and the default type otherwise."""

import torch

from conformance import scenario

from ._parts import observed, read


@scenario()
def seeds(lm, case):
    with lm.trace(case.prompts[0]):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        kept = observed(lm).save()
    return [kept]


seeds.reference(read)
