"""Does a prompt have the same bits beside others as alone? Measured when an engine has loaded.

A kernel that is chosen by how many rows there are, or a row of padding, sums in another order:
nothing is wrong then, and a request's numbers are not held to the bits that it has alone. Where
no prompt of several lengths changes by one bit, a neighbour that shows in the last bit is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnsight import save
from torch import Tensor

from conformance.builtin.probe import PROBE
from conformance.engines.probing.repeated import same_bits

#: Of several lengths, none of them a scenario's: one that kernels may take as a whole, and others.
PROMPTS = (
    "Nine grey geese walked along the narrow path behind the mill until the light was gone",
    PROBE,
    "Eleven lanterns",
    "Snow fell on the harbour",
)

#: The streams after every layer of each of these prompts, observed at once.
Observe = Callable[[Sequence[str]], Sequence[Sequence[Tensor]]]


def kept_beside(observe: Observe) -> bool:
    """Are each prompt's streams beside the others, to the last bit, what they are alone? False
    where there are none, and where an engine cannot be asked.
    """
    try:
        alone = [[tensor.clone() for tensor in observe([prompt])[0]] for prompt in PROMPTS]
        return all(map(same_bits, alone, observe(PROMPTS)))
    except Exception:  # noqa: BLE001 - that several prompts are refused is for scenarios to tell
        return False


def in_one_trace(lm: Any, prompts: Sequence[str]) -> list[list[Tensor]]:
    """From one trace of all prompts."""
    with lm.trace() as tracer:
        found = save([None] * len(prompts))
        for index, prompt in enumerate(prompts):
            with tracer.invoke(prompt):
                found[index] = [layer.stream for layer in lm.layers]
    return list(found)


def from_clients(lm: Any, prompts: Sequence[str]) -> list[list[Tensor]]:
    """From a trace of each prompt's own, all under way at once."""
    for prompt in prompts:
        with lm.send(prompt):
            streams = save([layer.stream for layer in lm.layers])  # noqa: F841 - comes home below
    return [answer["streams"] for answer in lm.received()]
