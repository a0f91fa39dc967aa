"""Distances that bf16 noise does not confuse: bulk and massive dimensions, ulps, spread.

Everything here takes and gives float64 tensors; `rows` makes them, and `batches` says of which
observations they are computed together. Formulas: docs/numerics.md#the-floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from conformance.records import Precision, Site

#: Relative L2 error of one rounding to bf16, measured on normal deviates; to float32 it is
#: 2¹⁶ times smaller, as float32 has sixteen more bits of fraction.
ROUNDING: Mapping[Precision, float] = {
    Precision.BF16: 0.00166,
    Precision.FLOAT32: 0.00166 * 2.0**-16,
}
#: A dimension is massive above this multiple of its token's median magnitude.
MASSIVE = 20.0
#: Elements of the truth in one batch: 4 MB of them in float64, ten times that with the runs.
_BATCH = 1 << 19

_FRACTION_BITS: Mapping[Precision, int] = {Precision.BF16: 8, Precision.FLOAT32: 24}
_SMALLEST = 2.0**-133


def least(precision: Precision, terms: int) -> float:
    """The relative error below which no honest run is held to another one.

    One rounding in bf16, whose products kernels add up in float32. In float32 the sums themselves
    round: adding `terms` numbers in another order moves the result by about √terms roundings
    (Higham and Mary 2019), though the few ways that were tried may have added alike.
    """
    if precision is Precision.BF16:
        return ROUNDING[precision]
    return ROUNDING[precision] * math.sqrt(max(terms, 1))


def rows(tensor: Tensor) -> Tensor:
    """The tensor as float64 [tokens, width]; a vector or a number is one row."""
    wide = tensor.detach().to(torch.float64)
    return wide.reshape(1, -1) if wide.ndim < 2 else wide.reshape(-1, wide.shape[-1])


def all_rows(tensors: Sequence[Tensor]) -> Tensor:
    """The rows of many tensors of one width, one below the other; converted together."""
    raw = [t.reshape(1, -1) if t.ndim < 2 else t.reshape(-1, t.shape[-1]) for t in tensors]
    return torch.cat(raw).to(torch.float64)


def shape_of_rows(tensor: Tensor) -> tuple[int, int]:
    """The shape that `rows` gives."""
    width = tensor.shape[-1] if tensor.ndim > 1 else tensor.numel()
    return (tensor.numel() // width if width else 0), width


def batches(tensors: Mapping[Site, Tensor]) -> Iterator[list[Site]]:
    """The observations in groups of one width, logits apart, and of a bounded size."""
    groups: dict[tuple[int, bool], tuple[int, list[Site]]] = {}
    for site, tensor in tensors.items():
        height, width = shape_of_rows(tensor)
        key = (width, site.name == "logits")
        size, members = groups.pop(key, (0, []))
        if members and size + height * width > _BATCH:
            yield members
            size, members = 0, []
        groups[key] = (size + height * width, [*members, site])
    for _, members in groups.values():
        yield members


def bulk(truth: Tensor) -> Tensor:
    """Which dimensions of each row are not massive: bool [tokens, width].

    Where more than half of a row is zero (a ReLU's output) the median is taken over
    what is not, else every other value would count as massive.
    """
    size = truth.abs()
    median = size.median(dim=-1, keepdim=True).values
    sparse = (median == 0).squeeze(-1)
    if bool(sparse.any()):
        present = size[sparse].masked_fill(size[sparse] == 0, torch.nan)
        median[sparse] = present.nanmedian(dim=-1, keepdim=True).values.nan_to_num(0.0)
    return size <= MASSIVE * median


def norm(values: Tensor, mask: Tensor) -> Tensor:
    """The L2 norm of the masked dimensions of each row: [..., tokens]."""
    masked = values if bool(mask.all()) else values * mask
    size: Tensor = torch.linalg.vector_norm(masked, dim=-1)
    return size


def ulp(values: Tensor, precision: Precision = Precision.BF16) -> Tensor:
    """The spacing of a precision's numbers at each value."""
    _, exponent = torch.frexp(values)
    spacing = torch.ldexp(torch.ones_like(values), exponent - _FRACTION_BITS[precision])
    return spacing.clamp_min(_SMALLEST)


def ratio(distance: Tensor, noise: Tensor) -> Tensor:
    """distance / noise, where nothing over nothing is 0 and something over nothing infinite."""
    quotient = distance / noise
    return torch.where(distance == 0, torch.zeros_like(quotient), quotient)


def median(values: Sequence[float]) -> float:
    """The median, the mean of the middle two where there are two; infinities allowed."""
    ordered, count = sorted(values), len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def spread(ratios: Sequence[float]) -> float:
    """P = (Σρ²)² / (T·Σρ⁴): near 1 every token is off alike, near 1/T a single one is."""
    largest = max(ratios)
    if largest == 0:
        return 1.0
    if math.isinf(largest):
        return sum(map(math.isinf, ratios)) / len(ratios)
    squares = [(ratio / largest) ** 2 for ratio in ratios]
    return sum(squares) ** 2 / (len(squares) * sum(square**2 for square in squares))


def cosine(left: Tensor, right: Tensor) -> float:
    """The cosine between two whole tensors; shown, never gated on."""
    sizes = torch.linalg.vector_norm(left) * torch.linalg.vector_norm(right)
    return float((left * right).sum() / sizes) if sizes > 0 else float(torch.equal(left, right))
