"""The block asks for memory without end."""

import torch

from conformance import scenario

from ._parts import observed, read


@scenario()
def allocates(lm, case):
    with lm.trace(case.prompts[0]):
        held = []
        while len(held) < 4096:
            held.append(torch.empty(1 << 30, dtype=torch.uint8))
        kept = observed(lm).save()
    return [kept]


allocates.reference(read)
