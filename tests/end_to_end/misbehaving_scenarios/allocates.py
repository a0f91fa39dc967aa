"""The block asks for more memory than there is."""

import torch

from conformance import scenario

from ._parts import observed, read


@scenario()
def allocates(lm, case):
    with lm.trace(case.prompts[0]):
        torch.empty(1 << 50)
        kept = observed(lm).save()
    return [kept]


allocates.reference(read)
