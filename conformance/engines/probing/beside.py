"""Measure whether batching changes a prompt's bits.

A kernel chosen by the number of rows, or a row of padding, may change the order of addition. That
is legitimate, so such an engine is not required to give a request the same bits as when it runs
alone. If no prompt changes by a bit, a neighbour that changes the last bit is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnsight import save
from torch import Tensor

from conformance.engines.probing.repeated import same_bits
from conformance.spec.builtin.probe import PROBE

#: Prompts of several lengths, none from a scenario; some kernels treat one length specially.
PROMPTS = (
    "Nine grey geese walked along the narrow path behind the mill until the light was gone",
    PROBE,
    "Eleven lanterns",
    "Snow fell on the harbour",
)

#: Returns the streams after every layer for each of these prompts, run in one batch.
Observe = Callable[[Sequence[str]], Sequence[Sequence[Tensor]]]


def kept_beside(observe: Observe) -> bool:
    """Return whether each prompt's streams are bitwise the same in a batch as alone. False if there
    are no streams or the engine cannot run the prompts.
    """
    try:
        alone = [[tensor.clone() for tensor in observe([prompt])[0]] for prompt in PROMPTS]
        return all(map(same_bits, alone, observe(PROMPTS)))
    except Exception:  # noqa: BLE001 - scenarios report refused batches
        return False


def in_one_trace(lm: Any, prompts: Sequence[str]) -> list[list[Tensor]]:
    """Return the streams of each prompt from one trace of all prompts."""
    with lm.trace() as tracer:
        found = save([None] * len(prompts))
        for index, prompt in enumerate(prompts):
            with tracer.invoke(prompt):
                found[index] = [layer.stream for layer in lm.layers]
    return list(found)


def from_clients(lm: Any, prompts: Sequence[str]) -> list[list[Tensor]]:
    """Return the streams of each prompt from one trace per prompt, all in flight at once."""
    for prompt in prompts:
        with lm.send(prompt):
            streams = save([layer.stream for layer in lm.layers])  # noqa: F841 - read below
    return [answer["streams"] for answer in lm.received()]
