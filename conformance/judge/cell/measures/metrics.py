"""Distances that are robust against bf16 noise: bulk and massive dimensions, ulps, spread.

Tensors are float64: `rows` converts them, and `batches` groups the observations that are computed
together. Formulas: docs/numerics.md#the-floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from conformance.spec.records import Precision, Site

#: Relative L2 error of one rounding to bf16, measured on normal deviates. For float32 it is 2¹⁶
#: times smaller: float32 has sixteen more fraction bits.
ROUNDING: Mapping[Precision, float] = {
    Precision.BF16: 0.00166,
    Precision.FLOAT32: 0.00166 * 2.0**-16,
}
#: A dimension is massive above this multiple of its token's median magnitude.
MASSIVE = 20.0
#: Elements of the reference in one batch: 4 MB in float64, ten times that with the runs.
_BATCH = 1 << 19

_FRACTION_BITS: Mapping[Precision, int] = {Precision.BF16: 8, Precision.FLOAT32: 24}
_SMALLEST = 2.0**-133


def least(precision: Precision, terms: int) -> float:
    """Return the relative error below which baseline runs are not distinguished.

    In bf16 it is one rounding: kernels accumulate products in float32. In float32 the sums
    themselves round: adding `terms` numbers in another order moves the result by about √terms
    roundings (Higham and Mary 2019), even if the few baseline runs all added in the same order.
    """
    if precision is Precision.BF16:
        return ROUNDING[precision]
    return ROUNDING[precision] * math.sqrt(max(terms, 1))


def rows(tensor: Tensor) -> Tensor:
    """Return the tensor as float64 [tokens, width]; a vector or a number is one row."""
    wide = tensor.detach().to(torch.float64)
    return wide.reshape(1, -1) if wide.ndim < 2 else wide.reshape(-1, wide.shape[-1])


def all_rows(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the float64 rows of many tensors of one width."""
    raw = [t.reshape(1, -1) if t.ndim < 2 else t.reshape(-1, t.shape[-1]) for t in tensors]
    return torch.cat(raw).to(torch.float64)


def shape_of_rows(tensor: Tensor) -> tuple[int, int]:
    """Return the shape of `rows(tensor)`."""
    width = tensor.shape[-1] if tensor.ndim > 1 else tensor.numel()
    return (tensor.numel() // width if width else 0), width


def batches(tensors: Mapping[Site, Tensor]) -> Iterator[list[Site]]:
    """Group the observations by width, logits apart, into batches of bounded size."""
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


def bulk(reference: Tensor) -> Tensor:
    """Return a mask of the dimensions of each row that are not massive, bool [tokens, width].

    If more than half of a row is zero (a ReLU's output), the median is taken over the nonzero
    values; otherwise every nonzero value would count as massive.
    """
    size = reference.abs()
    median = size.median(dim=-1, keepdim=True).values
    sparse = (median == 0).squeeze(-1)
    if bool(sparse.any()):
        present = size[sparse].masked_fill(size[sparse] == 0, torch.nan)
        median[sparse] = present.nanmedian(dim=-1, keepdim=True).values.nan_to_num(0.0)
    return size <= MASSIVE * median


def norm(values: Tensor, mask: Tensor) -> Tensor:
    """Return the L2 norm of the masked dimensions of each row: [..., tokens]."""
    masked = values if bool(mask.all()) else values * mask
    size: Tensor = torch.linalg.vector_norm(masked, dim=-1)
    return size


def ulp(values: Tensor, precision: Precision = Precision.BF16) -> Tensor:
    """Return the spacing of a precision's numbers at each value."""
    _, exponent = torch.frexp(values)
    spacing = torch.ldexp(torch.ones_like(values), exponent - _FRACTION_BITS[precision])
    return spacing.clamp_min(_SMALLEST)


def ratio(distance: Tensor, noise: Tensor) -> Tensor:
    """Return distance / noise, with 0/0 = 0 and x/0 = inf."""
    quotient = distance / noise
    return torch.where(distance == 0, torch.zeros_like(quotient), quotient)


def median(values: Sequence[float]) -> float:
    """Return the median; infinities are allowed."""
    ordered, count = sorted(values), len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def spread(ratios: Sequence[float]) -> float:
    """Return P = (Σρ²)² / (T·Σρ⁴): near 1 if all tokens are off alike, near 1/T if one is."""
    largest = max(ratios)
    if largest == 0:
        return 1.0
    if math.isinf(largest):
        return sum(map(math.isinf, ratios)) / len(ratios)
    squares = [(ratio / largest) ** 2 for ratio in ratios]
    return sum(squares) ** 2 / (len(squares) * sum(square**2 for square in squares))


def cosine(left: Tensor, right: Tensor) -> float:
    """Return the cosine between two whole tensors; reported, never gated on."""
    sizes = torch.linalg.vector_norm(left) * torch.linalg.vector_norm(right)
    return float((left * right).sum() / sizes) if sizes > 0 else float(torch.equal(left, right))
