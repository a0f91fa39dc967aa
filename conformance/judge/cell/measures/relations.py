"""Rules without tolerance: bitwise equality within a run and between runs; aliasing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics
from conformance.judge.cell.measures.floor import Floor
from conformance.spec.records import Relation, Site

#: Prefix of the name of the rule that a column is bitwise equal to another.
BITWISE = "bitwise equal to"
#: The rule that a backend observes the same in several environments, for information only: other
#: versions of an engine may compute in another order.
ENVIRONMENTS = "the same bits in every environment"

#: Reference values that differ by less than this multiple of the noise may be equal in bf16.
_TELLS_APART = 10.0
#: How many leading values are compared before all of them are.
_BEGINNING = 4


class Mismatch(NamedTuple):
    """One observation that is not bitwise equal on two sides."""

    site: str
    message: str


def compare_exact(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> tuple[Mismatch, ...]:
    """Return every observation in which two runs are not bitwise equal, sorted by name.

    A difference in dtype counts, and so does an observation that only one side has.
    """
    mismatches = []
    for site in sorted(left.keys() | right.keys()):
        if site not in right:
            mismatches.append(Mismatch(site, "only on the left"))
        elif site not in left:
            mismatches.append(Mismatch(site, "only on the right"))
        elif difference := differ(left[site], right[site]):
            mismatches.append(Mismatch(site, difference))
    return tuple(mismatches)


def same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Return whether two runs are bitwise equal, stopping at the first difference."""
    return left.keys() == right.keys() and all(
        tensor.dtype == right[site].dtype
        and tensor.shape == right[site].shape
        and torch.equal(*_bits(tensor, right[site]))
        for site, tensor in left.items()
    )


def compare_environments(
    observed: Mapping[str, Mapping[str, Tensor]],
) -> dict[str, tuple[Relation, ...]]:
    """Return for each column of a backend which others observed the same bits of a case.

    Columns without observations are left out. A single column has no relation.
    """
    columns = {name: values for name, values in observed.items() if values}
    sets: list[list[str]] = []
    for name, values in columns.items():
        alike = next((names for names in sets if same_bits(columns[names[0]], values)), None)
        if alike is None:
            sets.append(alike := [])
        alike.append(name)
    relations: dict[str, tuple[Relation, ...]] = dict.fromkeys(observed, ())
    for own in columns if len(columns) > 1 else ():
        clauses = []
        for names in sets:
            others = ", ".join(name for name in names if name != own)
            if own not in names:
                first = compare_exact(columns[own], columns[names[0]])[0]
                clauses.append(f"others in {others} ({first.site}: {first.message})")
            elif others:
                clauses.append(f"the same in {others}")
        detail = "; ".join(clauses)
        relations[own] = (Relation(ENVIRONMENTS, len(sets) == 1, detail, gates=False),)
    return relations


def differ(left: Tensor, right: Tensor) -> str:
    """Return how two tensors differ bitwise, "" if they do not. Equal NaNs are equal bits."""
    if left.shape != right.shape:
        return f"shape {list(left.shape)} against {list(right.shape)}"
    if left.dtype != right.dtype:
        return f"{left.dtype} against {right.dtype}"
    bits = _bits(left, right)
    if torch.equal(*bits):
        return ""
    raw = [tensor.detach().reshape(-1) for tensor in (left, right)]
    unequal = (bits[0] != bits[1]).any(dim=-1)
    size = (raw[0].double() - raw[1].double()).abs().nan_to_num(torch.inf)
    worst = int(size.where(unequal, -torch.ones_like(size)).argmax())
    count, index, place = int(unequal.sum()), list[int](), worst
    for length in reversed(left.shape):  # importing torch.unravel_index takes a second
        place, at = divmod(place, length)
        index.insert(0, at)
    largest = float(size[worst])
    return f"{count} of {len(raw[0])} elements differ, by up to {largest:.3g} at {index}"


def _bits(*tensors: Tensor) -> list[Tensor]:
    """Return the bytes of each tensor: uint8 [elements, bytes per element]."""
    raw = [tensor.detach().contiguous().reshape(-1) for tensor in tensors]
    return [tensor.view(torch.uint8).reshape(-1, tensor.element_size()) for tensor in raw]


def equal_within(
    candidate: Mapping[Site, Tensor],
    reference: Mapping[Site, Tensor],
    pair: tuple[str, str],
    alike: Callable[[Site, Site], bool] = lambda *_: False,
) -> Relation:
    """Check that two observations are bitwise equal wherever the reference's are.

    They are compared within each run, prompt and step, layer by layer; an observation without a
    layer is compared with every layer of its partner. A name may pin a layer ("stream.3") or give
    an offset ("input+1"). Pairs that differ in the reference (the clean run of a write) are
    skipped. If no pair is left, the scenario declares a relation that it does not have, and the
    relation does not hold. Differences that `alike` accepts are allowed.
    """
    title = f"{pair[0]} ≡ {pair[1]}"
    pairs = [
        (left, right)
        for left in reference
        if _is_named(left, pair[0])
        for right in reference
        if _is_named(right, pair[1])
        and _partners(left, right, pair)
        and torch.equal(reference[left], reference[right])
    ]
    if not pairs:
        return Relation(title, holds=False, detail="the reference has no such pair")
    broken = []
    for left, right in pairs:
        absent = [str(site) for site in (left, right) if site not in candidate]
        if absent:
            broken.append(f"{', '.join(absent)} not observed")
            continue
        difference = differ(candidate[left], candidate[right])
        if difference and not alike(left, right):
            broken.append(f"{left} and {right}: {difference}")
    return Relation(title, not broken, "; ".join(broken) or f"{len(pairs)} pairs")


def _partners(left: Site, right: Site, pair: tuple[str, str]) -> bool:
    """Return whether the two belong together; layers may differ if a name pins one."""
    if (left.run, left.prompt, left.step) != (right.run, right.prompt, right.step):
        return False
    if any("." in name for name in pair) or left.layer is None or right.layer is None:
        return True
    first, second = (int(name.partition("+")[2] or 0) for name in pair)
    return left.layer - first == right.layer - second


def _is_named(site: Site, name: str) -> bool:
    word, _, layer = name.partition("+")[0].partition(".")
    return site.name == word and (not layer or site.layer == int(layer))


def aliased(candidate: Mapping[Site, Tensor], floors: Mapping[Site, Floor]) -> dict[Site, str]:
    """Return observations that hold one value where the reference has different ones.

    Flagged are all steps of one name, or three layers or more (two if only two were read): a
    reference saved and then overwritten, or a list of one last value. A single pair of equal
    neighbours is left to the distance: it holds another layer's or step's value, not an overwritten
    one.
    """
    messages: dict[Site, str] = {}
    steps: dict[object, list[Site]] = defaultdict(list)
    layers: dict[object, list[Site]] = defaultdict(list)
    for site in floors:
        steps[site.run, site.prompt, site.name, site.layer].append(site)
        if site.layer is not None:
            layers[site.run, site.prompt, site.name, site.step].append(site)
    for group in steps.values():
        identical = _identical(group, candidate, floors)
        if len(group) > 1 and len(identical) == len(group):
            messages |= dict.fromkeys(identical, f"all {len(identical)} steps hold the same value")
    for group in layers.values():
        identical = _identical(group, candidate, floors)
        if len(identical) >= min(3, max(2, len(group))):
            names = ", ".join(str(site.layer) for site in identical)
            messages |= dict.fromkeys(identical, f"layers {names} hold the same value")
    return messages


def _identical(
    group: Sequence[Site], candidate: Mapping[Site, Tensor], floors: Mapping[Site, Floor]
) -> list[Site]:
    """Return the largest set of bitwise equal observations that clearly differ in the reference."""
    sets: list[list[Site]] = []
    alike: dict[object, list[list[Site]]] = defaultdict(list)  # few sets begin alike
    for site in sorted(group, key=lambda s: (s.step, s.layer or 0)):
        tensor = candidate[site]
        if not bool(tensor.any()):
            continue  # zeros mean that a value was lost, not replaced by another
        similar = alike[tensor.shape, tuple(tensor.flatten()[:_BEGINNING].tolist())]
        for members in similar:
            if torch.equal(candidate[members[0]], tensor) and all(
                _apart(floors[member], floors[site]) for member in members
            ):
                members.append(site)
                break
        else:
            similar.append([site])
            sets.append(similar[-1])
    return max(sets, key=len, default=[])


def _apart(left: Floor, right: Floor) -> bool:
    if left.reference.shape != right.reference.shape:
        return True
    distance = metrics.norm(left.reference - right.reference, left.bulk & right.bulk)
    return bool((distance > _TELLS_APART * torch.maximum(left.noise, right.noise)).any())
