"""Find the first layer whose stream differs, and the write that explains it.

A read in the wrong place does not change the layers. A wrong write changes every layer from there
on, and the difference at the first of them shows what the write did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from conformance.commands.check.checked import CheckFinding
from conformance.commands.check.values.compare import (
    Values,
    is_alike,
    is_near,
    layers,
    multiple,
    prompts,
)
from conformance.commands.check.values.known_values import Known
from conformance.judge.cell.diagnosis.extent import ranges
from conformance.judge.cell.measures import metrics
from conformance.spec.records import Site

#: The relative distance of a row in float32 above which a layer's stream differs.
OFF = 2e-3

#: The largest relative distance for a hypothesis on the two halves of a stream.
_HALVES = 5e-3

#: The effect of a write into only one of a stream's two halves, by kind.
_REACHED = {
    "first-half": "the write reached the MLP output only: the residual was left as it was",
    "second-half": "the write reached the residual only: the MLP output was left as it was",
}


#: Kinds of findings that say only that there is a difference: after a write, and without one.
UNEXPLAINED = ("write", "engine")


def _named(which: Tensor) -> str:
    """Return a name for these tokens, bool [tokens], that are not all."""
    tokens = torch.nonzero(which).flatten().tolist()
    return f"token{'s' if len(tokens) > 1 else ''} {ranges(tokens)}"


def compare_rows(rows: Tensor, other: Tensor) -> Tensor:
    """Return a mask of the rows that differ, bool [tokens]; all False if the shapes differ."""
    if rows.shape != other.shape:
        return torch.zeros(len(rows), dtype=torch.bool)
    size = other.double().norm(dim=-1).clamp_min(1e-6)
    found: Tensor = (rows.double() - other.double()).norm(dim=-1) > OFF * size
    return found


def pairs(mine: Mapping[Site, Tensor], reference: Mapping[Site, Tensor]) -> dict[int, int]:
    """Map the engine's sequences to transformers' ones with the same prompt ids, in order."""
    waiting, found = prompts(reference), dict[int, int]()
    for sequence, ids in prompts(mine).items():
        alike = [other for other, its in waiting.items() if its == ids]
        for other in alike[:1]:
            found[sequence] = other
            del waiting[other]
    return found


def parting(
    mine: Mapping[Site, Tensor], seen: Values, known: Sequence[Known]
) -> CheckFinding | None:
    """Return the first difference of the streams, by step, sequence and layer. `mine` are the
    engine's streams and ids, `seen` all observations on transformers, `known` their catalogue.
    """
    reference = layers(seen)
    same = pairs(mine, reference)
    sites = [site for site in mine if site.name == "stream" and site.prompt in same]
    for site in sorted(sites, key=lambda one: (one.step, one.prompt, one.layer or 0)):
        other = replace(site, prompt=same[site.prompt])
        far = compare_rows(mine[site], reference.get(other, mine[site]))
        if not bool(far.any()):
            continue
        kind, words = _cause(mine, seen, known, site, other)
        writes, layer = written(seen), site.layer or 0
        words = f"{words}, " if words else "the layers compute something else "
        words += "since " if writes else "the engine computes another model since "
        step = f", step {site.step}" if site.step else ""
        words += f"layer {layer}{step} ({'every token' if bool(far.all()) else _named(far)})"
        kind = kind or UNEXPLAINED[0 if writes else 1]
        return CheckFinding(kind, words, layer=layer, step=site.step, prompt=other.prompt)
    return None


def _cause(
    mine: Mapping[Site, Tensor], seen: Values, known: Sequence[Known], site: Site, other: Site
) -> tuple[str, str]:
    """Return kind and words for the first difference, which is at `site` on the engine and at
    `other` on transformers.

    If the stream that transformers' layer returned in the edited run differs from the clean run's,
    an earlier write has changed the layer, and the difference there explains nothing.
    """
    reference, natural = layers(seen), layers(seen, "natural")
    tokens: dict[int, list[int]] = defaultdict(list)
    for each in sorted(reference, key=lambda one: one.step):
        if each.name == "ids":
            tokens[each.prompt] += reference[each].flatten().tolist()
    own = tokens.get(other.prompt)
    alike = (number for number, one in tokens.items() if one == own)
    place = min(alike, default=other.prompt), site.step  # only its first run has clean values
    clean = {
        each.layer: rows
        for each, rows in layers(seen, "clean").items()
        if each.name == "stream" and (each.prompt, each.step) == place
    }
    ours, theirs, base = mine[site], reference[other], clean.get(site.layer)
    if base is None or base.shape != ours.shape:
        return "", ""
    if bool(compare_rows(natural.get(other, base), base).any()):
        return "", ""
    far = compare_rows(ours, theirs)
    made, meant = compare_rows(ours, base), compare_rows(theirs, base)
    if bool(made.any()) and bool(meant.any()):
        rows = [each.double()[far] for each in (ours, theirs, base)]
        halves = {
            one.kind: one.rows.double()[far]
            for one in reversed(known)  # the first of a kind counts
            if one.at == (*place, site.layer) and not one.written and one.rows.shape == base.shape
        }
        both = [halves[kind] for kind in ("mlp", "residual") if kind in halves]
        half = _one_half(*rows[:2], *both) if len(both) == 2 else None
        return _other_tokens(made, meant, far) or half or _gained(*rows)
    # In later steps, attention carries earlier writes on, so layers explain nothing there.
    if not site.step:
        wrote, due = _first_write(mine, site, clean), _first_write(reference, other, clean)
        if wrote is not None and due is not None:
            words = f"the write is at layer {wrote}, and on transformers at layer {due}"
            return "other-layer", words
    step = f" in step {site.step}" if any(one.step for one in reference) else ""
    if not bool(made.any()):
        return "dropped", f"the write had no effect{step}"
    return "elsewhere", f"on transformers nothing is written{step}"


def _other_tokens(made: Tensor, meant: Tensor, far: Tensor) -> tuple[str, str] | None:
    """Return kind and words if a write reached different tokens. Arguments are bool [tokens]."""
    reached, due, off = map(_named, (made, meant, far))
    if not bool((made & meant).any()):
        return "other-tokens", f"the write reached {reached} instead of {due}"
    if not bool((far & made).any()):
        return "partial", f"the write had no effect there: it reached {reached} alone"
    if not bool((far & meant).any()):
        return "too-many", f"the write reached {off} too, which it does not on transformers"
    return None


def _first_write(
    streams: Mapping[Site, Tensor], site: Site, clean: Mapping[int | None, Tensor]
) -> int | None:
    """Return the first layer whose stream differs from the clean run's, None if no layer does."""
    for layer in sorted(clean, key=lambda number: number or 0):
        rows = streams.get(replace(site, layer=layer))
        if rows is not None and bool(compare_rows(rows, clean[layer]).any()):
            return layer
    return None


def _gained(ours: Tensor, theirs: Tensor, clean: Tensor) -> tuple[str, str]:
    """Return kind and words for the size of a change, compared with the intended one, from the
    differing rows [tokens, width].
    """
    made, meant = ours - clean, theirs - clean
    gain = multiple(made, meant, 1e-2)
    if gain is None:
        size, cosine = float(made.norm() / meant.norm()), metrics.cosine(made, meant)
        words = f"the write makes another change, {size:.2g} times as large (cosine {cosine:.2f})"
        return "", words
    if abs(gain - 2) < 0.01:
        return "twice", "the change was made twice: once in each half of the stream"
    return "scaled", f"the change is {gain:.3g} times what it is on transformers"


def _one_half(
    ours: Tensor, theirs: Tensor, branch: Tensor, residual: Tensor
) -> tuple[str, str] | None:
    """Return kind and words if a write of the whole stream replaced or scaled one half alone."""
    whole = branch + residual
    scale = float((theirs * whole).sum() / whole.square().sum())
    scaled = bool((theirs - scale * whole).norm() <= 1e-3 * theirs.norm())
    for told, own, left in zip(
        _REACHED.items(), (branch, residual), (residual, branch), strict=True
    ):
        half_scaled = scaled and is_near(ours, scale * own + left, _HALVES)
        if half_scaled or is_near(ours, theirs + left, _HALVES):
            return told
    return None


def written(seen: Values) -> bool:
    """Return whether the trace changed any layer's stream on transformers. Clean values exist only
    for the first of equal sequences.
    """
    if any(key.startswith("natural|") for key in seen):
        return True
    clean = layers(seen, "clean")
    return any(
        site in clean and clean[site].shape == rows.shape and not is_alike(rows, clean[site])
        for site, rows in layers(seen).items()
        if site.name == "stream"
    )
