"""Faults of reading: a block sees another value than the layer's stream or part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.commands.selftest.fault import VLLM, FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.operators import (
    blurred,
    bulk,
    halves_swapped,
    in_float32,
    last_bit,
    noisy,
    reversed_rows,
    scaled,
    shifted,
    zeros,
)
from conformance.spec.records import Precision, Side, Verdict

EVERY = ("first", "middle", "last")
OFF = (Verdict.WRONG, Verdict.DRIFT)

SERVED = FaultFamily(
    side=Side.NNSIGHT,
    point=Point.SERVED,
    cases="read_all.pair",
    verdicts=Verdict.WRONG,
    places="middle",
)
#: Other numbers of rows, which the adapter would take for padding.
READ = FaultFamily(**SERVED.common | {"point": Point.READ, "verdicts": Verdict.STRUCTURE})


@READ.fault(
    "alias",
    places="",
    verdicts=Verdict.ALIASED,
    quick=True,
    met="nnsight on vLLM: the fused norm writes over what was saved",
)
def overwritten(value: Tensor, now: Moment) -> Tensor:
    """Every stream read before is overwritten by the one read last, as a buffer that the engine
    uses again would be.
    """
    for earlier in now.memory.setdefault(len(value), []):
        earlier.copy_(value)
    now.memory[len(value)].append(value)
    return value


@READ.fault("stream-shape", places=EVERY)
def extra_row(value: Tensor, now: Moment) -> Tensor:
    """A read has one row too many, which broadcasts silently in what follows."""
    return torch.cat([value, value[-1:]])


@READ.fault("flat-rows", places=EVERY)
def row_alone(value: Tensor, now: Moment) -> Tensor:
    """A read gives the first token's row alone: `output[0]` where there is no batch axis."""
    return value[0]


@READ.fault("prefix-cache", doses=(1, 4), says=("lacks the row", "alone"))
def without_first(value: Tensor, now: Moment) -> Tensor:
    """The first rows are missing, as those of tokens that the prefix cache served."""
    return value[int(now.dose) :]


@READ.fault("chunked", doses=(1, 3), says=("lacks the row", "alone"))
def last_chunk(value: Tensor, now: Moment) -> Tensor:
    """Only the last rows are there, as those of the last chunk of a split prompt."""
    return value[-int(now.dose) :]


READ.add(
    "chunked-prompt",
    last_chunk,
    "Of a prompt that is split into chunks only the last rows are read.",
    cases="chunked.all",
    doses=(1, 16),
    backends="hf",
)


@SERVED.fault(
    "half-stream",
    says="without the residual",
    backends=VLLM,
    places=EVERY,
    quick=True,
    met="nnsight #630, vLLM-Hook #11",
)
def half(value: Tensor, now: Moment) -> Any:
    """Of a layer that returns (branch, residual) only the first summand is read."""
    output = now.raw()
    if not (isinstance(output, (tuple, list)) and len(output) == 2):
        raise Inexpressible("a layer's output has no second summand")
    if torch.equal(output[0], value):
        raise Inexpressible("the first part is the whole stream")
    return output[0].clone()


@SERVED.fault(
    "layer-off",
    says="previous layer",
    places=("middle", "last", ""),
    verdicts=(Verdict.WRONG, Verdict.ALIASED),
    quick=True,
    everywhere=True,
)
def previous_layer(value: Tensor, now: Moment) -> Tensor:
    """A read gives the stream after the layer before."""
    earlier = now.memory.get(len(value), value)
    now.memory[len(value)] = value
    return earlier.clone() if now.acts_here else value


@SERVED.fault("input-residual", says="own contribution", places=("middle", "last"), everywhere=True)
def without_input(value: Tensor, now: Moment) -> Tensor:
    """A read gives what the layer added, without what came into it."""
    earlier = now.memory.get(len(value))
    now.memory[len(value)] = value
    return value - earlier if now.acts_here and earlier is not None else value


@SERVED.fault("positions-as-rows", says="token positions")
def positions(value: Tensor, now: Moment) -> Tensor:
    """A read gives token positions in the shape of activations."""
    rows = torch.arange(len(value), dtype=value.dtype, device=value.device)
    return rows[:, None].expand_as(value).clone()


SERVED.add(
    "merged-proj",
    halves_swapped,
    "The halves of the width have changed places, as a merged projection's may.",
    says="halves of the width",
    places=EVERY,
)
SERVED.add(
    "token-off",
    shifted,
    "The rows of the stream are shifted by one token.",
    says=("row of the", "another order"),
    doses=(1, -1),
)
SERVED.add(
    "raw-rows",
    shifted,
    "The rows of a module's output are shifted by one token.",
    cases=("raw.read_first", "raw.read_sum"),  # a model's layers have one of the two layouts
    doses=1,
)
SERVED.add(
    "permuted",
    reversed_rows,
    "The rows of the stream are in reverse order.",
    says="another order",
    places=EVERY,
)
SERVED.add(
    "scaled",
    scaled,
    "The stream is multiplied by a constant.",
    says=("times the right", "twice", "half", "opposite sign"),
    doses=(1.005, 1.05, 2.0, -1.0),
    verdicts=OFF,
    quick=True,
)
SERVED.add("zeros", zeros, "A read gives zeros.", says="zero", places=EVERY)
SERVED.add(
    "blurred",
    blurred,
    "Every row of a read carries a random error of a given share of its length.",
    doses=(0.0003, 0.003, 0.01, 0.03, 0.1, 1.0),
    places=EVERY,
    verdicts=OFF,
    quick=True,
)


@SERVED.fault(
    "blurred-above-floor",
    doses=1.5,
    # In bf16 alone, each layer is also judged by what it should compute from its own input.
    verdicts=OFF,
    quick=True,
    # Float32 has one limit for the median and any token; the median is a gate only in bf16.
    precision=Precision.BF16,
)
def blurred_above_floor(value: Tensor, now: Moment) -> Tensor:
    """Every row of a read carries a random error of a multiple of the baseline one, which only many
    tokens together show.
    """
    assert now.layer is not None  # noqa: S101 - a read has a layer
    return noisy(value, now.dose * max(now.noise[now.layer], 0.00166))


@SERVED.fault("one-token", doses=(0.003, 0.1, 1.0), places=EVERY, quick=True)
def one_token(value: Tensor, now: Moment) -> Tensor:
    """One token's row of a read carries a random error."""
    if len(value) > 1:
        value[1:2] = noisy(value[1:2], now.dose)
    return value


@SERVED.fault("massive-off", doses=1.0, architectures="llama")
def massive(value: Tensor, now: Moment) -> Tensor:
    """The largest number of the stream, a massive activation, is off."""
    value.view(-1)[value.abs().argmax()] *= 1 + now.dose
    return value


@SERVED.fault(
    "massive-bf16",
    doses=0.03,
    models="smollm2-135m",
    architectures="llama",
    verdicts=OFF,
    precision=Precision.BF16,
)
def every_massive(value: Tensor, now: Moment) -> Tensor:
    """In bf16 alone all massive activations are 3 % too large."""
    massive = ~bulk(value)
    if not massive.any():
        raise Inexpressible("no activation is massive")
    return torch.where(massive, value * (1 + now.dose), value)


SERVED.add(
    "pp-dtype-read",
    in_float32,
    "A read gives float32 where the model computes in bf16.",
    verdicts=Verdict.DTYPE,
    places=EVERY,
    quick=True,
    precision=Precision.BF16,
)


@SERVED.fault("not-finite", verdicts=Verdict.NONFINITE, quick=True)
def not_finite(value: Tensor, now: Moment) -> Tensor:
    """One number of a read is NaN."""
    value[0, 0] = torch.nan
    return value


@SERVED.fault(
    "wrong-donor",
    cases="cross_consume.early-last",
    says=("of prompt", "rows of"),
    places="",
    quick=True,
)
def other_donor(value: Tensor, now: Moment) -> Tensor:
    """A value consumed from an early layer is another prompt's."""
    by_length = now.memory.setdefault(now.layer, {})
    by_length[len(value)] = value.clone()
    donor = next((rows for length, rows in by_length.items() if length != len(value)), None)
    if donor is None or now.layer is None or now.layer >= now.layers // 2:
        return value
    count = min(len(donor), len(value))
    return torch.cat([donor[:count], value[count:]])


#: Reads next to the hidden states that the engine returns by itself. vLLM refuses several stages.
BESIDE: dict[str, Any] = {"cases": "extract.alone", "backends": ("hf", "vllm-pp1"), "alone": True}

SERVED.add(
    "read-beside",
    previous_layer,
    "A block reads the layer before, while the engine hands out the right one.",
    says="previous layer",
    everywhere=True,
    **BESIDE,
)
SERVED.add(
    "read-bit",
    last_bit,
    "The last bit of one number differs between a read and what the engine hands out.",
    side=Side.UNDECIDED,  # nobody could tell which of the two values is wrong
    **BESIDE,
)


@SERVED.fault(
    "hidden-extract",
    point=Point.EXTRACTED,
    side=Side.ENGINE,
    verdicts=Verdict.STRUCTURE,
    doses=1,
    met="vLLM's extract_hidden_states under chunked prefill",
    **BESIDE,
)
def fewer_rows(value: Tensor, now: Moment) -> Tensor:
    """The hidden states that the engine hands out by itself lack the last row."""
    return value[: -int(now.dose)]
