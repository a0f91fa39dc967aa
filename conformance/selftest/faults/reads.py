"""Faults of reading: a block sees another value than the layer's stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.records import Precision, Side, Verdict
from conformance.selftest.fault import ALL, VLLM, Fault, Inexpressible, Moment, Point
from conformance.selftest.faults.shapes import float32, noisy

READ = ("read_all.pair",)
BOTH = ("first", "middle", "last")
WRONG = frozenset({Verdict.WRONG})
SHAPE = frozenset({Verdict.STRUCTURE})


def half(value: Tensor, now: Moment) -> Any:
    """Return the first of two summands."""
    output = now.raw()
    if not (isinstance(output, (tuple, list)) and len(output) == 2):
        raise Inexpressible("a layer's output has no second summand")
    if torch.equal(output[0], value):
        raise Inexpressible("the first part is the whole stream")
    return output[0].clone() if now.acts_here else value


def half_input(value: Tensor, now: Moment) -> Any:
    """Return the first of the two summands of a layer's input."""
    if not now.acts_here:
        return value
    arguments = [*now.raw()[0], *now.raw()[1].values()]
    rows = [part for part in arguments if isinstance(part, Tensor) and part.shape == value.shape]
    if len(rows) < 2 or torch.equal(rows[0], value):
        raise Inexpressible("a layer is given the whole stream")
    return rows[0].clone()


def overwritten(value: Tensor, now: Moment) -> Tensor:
    """Overwrite every value read before with this one, as a live buffer would be."""
    for earlier in now.memory.setdefault(len(value), []):
        earlier.copy_(value)
    now.memory[len(value)].append(value)
    return value


def overwritten_next(value: Tensor, now: Moment) -> Tensor:
    """Overwrite the value read one layer before with this one."""
    earlier = now.memory.get(len(value))
    now.memory[len(value)] = value
    if earlier is not None and now.acts_here:
        earlier.copy_(value)
    return value.clone() if now.acts_here else value


def previous_layer(value: Tensor, now: Moment) -> Tensor:
    earlier = now.memory.get(len(value), value)
    now.memory[len(value)] = value
    return earlier.clone() if now.acts_here else value


def without_input(value: Tensor, now: Moment) -> Tensor:
    """Return the stream without the layer's input."""
    earlier = now.memory.get(len(value))
    now.memory[len(value)] = value
    return value - earlier if now.acts_here and earlier is not None else value


def position_ids(value: Tensor, now: Moment) -> Tensor:
    return torch.arange(len(value)) if now.acts_here else value


def positions(value: Tensor, now: Moment) -> Tensor:
    rows = torch.arange(len(value), dtype=value.dtype, device=value.device)
    return rows[:, None].expand_as(value).clone() if now.acts_here else value


def extra_row(value: Tensor, now: Moment) -> Tensor:
    return torch.cat([value, value[-1:]]) if now.acts_here else value


def row_alone(value: Tensor, now: Moment) -> Tensor:
    return value[0] if now.acts_here else value


def without_first(value: Tensor, now: Moment) -> Tensor:
    return value[int(now.dose) :] if now.acts_here else value


def last_chunk(value: Tensor, now: Moment) -> Tensor:
    return value[-int(now.dose) :] if now.acts_here else value


def in_tuple(value: Tensor, now: Moment) -> Any:
    return (value, value) if now.acts_here else value


def halves_swapped(value: Tensor, now: Moment) -> Tensor:
    return value.roll(value.shape[-1] // 2, dims=-1) if now.acts_here else value


def tokens_shifted(value: Tensor, now: Moment) -> Tensor:
    return value.roll(int(now.dose), dims=0) if now.acts_here else value


def reversed_rows(value: Tensor, now: Moment) -> Tensor:
    return value.flip(0) if now.acts_here else value


def scaled(value: Tensor, now: Moment) -> Tensor:
    return value * now.dose if now.acts_here else value


def zeros(value: Tensor, now: Moment) -> Tensor:
    return torch.zeros_like(value) if now.acts_here else value


def blurred(value: Tensor, now: Moment) -> Tensor:
    return noisy(value, now.dose) if now.acts_here else value


def blurred_above_floor(value: Tensor, now: Moment) -> Tensor:
    """Add noise of `dose` times a baseline run's error, which only many tokens together show."""
    assert now.layer is not None  # noqa: S101 - a read has a layer
    return noisy(value, now.dose * max(now.noise[now.layer], 0.00166)) if now.acts_here else value


def one_token(value: Tensor, now: Moment) -> Tensor:
    if not now.acts_here or len(value) < 2:
        return value
    value[1:2] = noisy(value[1:2], now.dose)
    return value


def massive(value: Tensor, now: Moment) -> Tensor:
    """Change the largest number of the value by the share `dose`."""
    if now.acts_here:
        place = value.abs().argmax()
        value.view(-1)[place] *= 1 + now.dose
    return value


def in_float32(value: Tensor, now: Moment) -> Tensor:
    return float32(value) if now.acts_here else value


def not_finite(value: Tensor, now: Moment) -> Tensor:
    if now.acts_here:
        value[0, 0] = torch.nan
    return value


def other_donor(value: Tensor, now: Moment) -> Tensor:
    """Return another prompt's rows at this layer, as many as it has."""
    by_length = now.memory.setdefault(now.layer, {})
    by_length[len(value)] = value.clone()
    donor = next((rows for length, rows in by_length.items() if length != len(value)), None)
    if donor is None or now.layer is None or now.layer >= now.layers // 2:
        return value
    count = min(len(donor), len(value))
    return torch.cat([donor[:count], value[count:]])


def _fault(name: str, act: Any, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.NNSIGHT,
        "point": Point.SERVED,
        "cases": READ,
        "verdicts": WRONG,
        "places": ("middle",),
    }
    return Fault(id=name, act=act, **(defaults | more))


FAULTS = (
    _fault(
        "alias",
        overwritten,
        point=Point.READ,
        verdicts=frozenset({Verdict.ALIASED}),
        places=("",),
        quick=True,
        summary=(
            "Every stream read before is overwritten by the one read last, as a "
            "buffer that the engine uses again would be."
        ),
        met="nnsight on vLLM: the fused norm writes over what was saved",
    ),
    _fault(
        "alias-next",
        overwritten_next,
        point=Point.READ,
        says=("next layer",),
        places=("middle", "last"),
        summary="The stream read after one layer is overwritten by the next layer's.",
    ),
    _fault(
        "half-stream",
        half,
        says=("without the residual",),
        backends=VLLM,
        places=BOTH,
        quick=True,
        summary=("Of a layer that returns (branch, residual) only the first summand is read."),
        met="nnsight #630, vLLM-Hook #11",
    ),
    _fault(
        "layer-off",
        previous_layer,
        says=("previous layer",),
        places=("middle", "last", ""),
        verdicts=frozenset({Verdict.WRONG, Verdict.ALIASED}),
        quick=True,
        summary="A read gives the stream after the layer before.",
    ),
    _fault(
        "input-residual",
        without_input,
        says=("own contribution",),
        places=("middle", "last"),
        summary="A read gives what the layer added, without what came into it.",
    ),
    _fault(
        "input-positions",
        position_ids,
        point=Point.INPUT,
        cases=("accessors.input",),
        verdicts=SHAPE,
        places=BOTH,
        quick=True,
        summary=(
            "A layer's input is the integer positions, the first positional argument "
            "of vLLM's layers."
        ),
    ),
    _fault(
        "input-half",
        half_input,
        point=Point.INPUT,
        cases=("accessors.input",),
        backends=VLLM,
        places=("middle", "last"),
        summary="A layer's input is one of the two summands that the layer was given.",
    ),
    _fault(
        "positions-as-rows",
        positions,
        says=("token positions",),
        summary="A read gives token positions in the shape of activations.",
    ),
    _fault(
        "stream-shape",
        extra_row,
        point=Point.READ,
        verdicts=SHAPE,
        places=BOTH,
        summary="A read has one row too many, which broadcasts silently in what follows.",
    ),
    _fault(
        "flat-rows",
        row_alone,
        point=Point.READ,
        verdicts=SHAPE,
        places=BOTH,
        summary=(
            "A read gives the first token's row alone: `output[0]` where there is no batch axis."
        ),
    ),
    _fault(
        "prefix-cache",
        without_first,
        point=Point.READ,
        verdicts=SHAPE,
        doses=(1, 4),
        says=("lacks the row", "alone"),
        summary=("The first rows are missing, as those of tokens that the prefix cache served."),
    ),
    _fault(
        "chunked",
        last_chunk,
        point=Point.READ,
        verdicts=SHAPE,
        doses=(1, 3),
        says=("lacks the row", "alone"),
        summary=("Only the last rows are there, as those of the last chunk of a split prompt."),
    ),
    _fault(
        "norm-tuple",
        in_tuple,
        point=Point.PART,
        cases=("accessors.norm",),
        verdicts=SHAPE,
        places=("",),
        summary=("The final norm gives a tuple (normalised, residual) in place of a tensor."),
    ),
    _fault(
        "rowparallel-tuple",
        in_tuple,
        point=Point.PART,
        cases=("accessors.mlp", "accessors.attention"),
        verdicts=SHAPE,
        places=("first", "last"),
        summary="A branch gives a tuple (output, bias) in place of a tensor.",
    ),
    _fault(
        "merged-proj",
        halves_swapped,
        says=("halves of the width",),
        places=BOTH,
        summary=("The halves of the width have changed places, as a merged projection's may."),
    ),
    _fault(
        "merged-proj-branch",
        halves_swapped,
        point=Point.PART,
        cases=("accessors.attention", "accessors.mlp_input"),
        places=("first", "last"),
        summary=("The halves of the width of what a branch takes or gives have changed places."),
    ),
    _fault(
        "embedding-off",
        tokens_shifted,
        point=Point.PART,
        cases=("accessors.embedding", "accessors.attention_input"),
        doses=(1,),
        places=("",),
        summary="The rows of what a part takes or gives are shifted by one token.",
    ),
    _fault(
        "token-off",
        tokens_shifted,
        says=("row of the", "another order"),
        doses=(1, -1),
        summary="The rows of the stream are shifted by one token.",
    ),
    _fault(
        "permuted",
        reversed_rows,
        says=("another order",),
        places=BOTH,
        summary="The rows of the stream are in reverse order.",
    ),
    _fault(
        "scaled",
        scaled,
        says=("times the right", "twice", "half", "opposite sign"),
        doses=(1.005, 1.05, 2.0, -1.0),
        places=("middle",),
        verdicts=frozenset({Verdict.WRONG, Verdict.DRIFT}),
        quick=True,
        summary="The stream is multiplied by a constant.",
    ),
    _fault(
        "zeros",
        zeros,
        says=("zero",),
        places=BOTH,
        summary="A read gives zeros.",
    ),
    _fault(
        "blurred",
        blurred,
        doses=(0.0003, 0.003, 0.01, 0.03, 0.1, 1.0),
        places=("first", "middle", "last"),
        verdicts=frozenset({Verdict.WRONG, Verdict.DRIFT}),
        quick=True,
        summary=("Every row of a read carries a random error of a given share of its length."),
    ),
    _fault(
        "blurred-above-floor",
        blurred_above_floor,
        doses=(1.5,),
        places=("middle",),
        # In bf16 alone, each layer is also judged by what it should compute from its own input.
        verdicts=frozenset({Verdict.DRIFT, Verdict.WRONG}),
        quick=True,
        # Float32 has one limit for the median and any token; the median is a gate only in bf16.
        precision=Precision.BF16,
        summary=(
            "Every row of a read carries a random error of a multiple of the baseline "
            "one, which only many tokens together show."
        ),
    ),
    _fault(
        "one-token",
        one_token,
        doses=(0.003, 0.1, 1.0),
        places=BOTH,
        quick=True,
        summary="One token's row of a read carries a random error.",
    ),
    _fault(
        "massive-off",
        massive,
        doses=(1.0,),
        architectures=("llama",),
        cases=("read_all.pair",),
        places=("middle",),
        summary="The largest number of the stream, a massive activation, is off.",
    ),
    _fault(
        "pp-dtype-read",
        in_float32,
        verdicts=frozenset({Verdict.DTYPE}),
        places=BOTH,
        quick=True,
        precision=Precision.BF16,
        summary="A read gives float32 where the model computes in bf16.",
    ),
    _fault(
        "not-finite",
        not_finite,
        verdicts=frozenset({Verdict.NONFINITE}),
        quick=True,
        summary="One number of a read is NaN.",
    ),
    _fault(
        "wrong-donor",
        other_donor,
        cases=("cross_consume.early-last",),
        says=("of prompt", "rows of"),
        places=("",),
        quick=True,
        backends=ALL,
        summary="A value consumed from an early layer is another prompt's.",
    ),
)
