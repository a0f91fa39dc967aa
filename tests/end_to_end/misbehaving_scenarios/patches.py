"""The block changes what a function of torch does."""

import torch

from conformance import scenario

from ._parts import observed, read


@scenario()
def patches(lm, case):
    with lm.trace(case.prompts[0]):
        torch.nn.functional.silu = torch.relu
        torch.nn.functional.softmax = lambda value, *rest, **more: value * 0
        kept = observed(lm).save()
    return [kept]


patches.reference(read)
