"""Hypotheses about how a tensor can be wrong, each with its prediction.

A failed observation may hold a value that the reference holds elsewhere, or one computed from the
reference: branches of a layer, multiples, caps, wrong ingredients. Most need only the cell's other
observations. Those about a layer's two branches need what the reference may record under the member
`aux`:

    mlp.<layer>        [tokens, width]  what the layer's second branch adds to the stream
    attention.<layer>  [tokens, width]  what its first branch adds; computed here from the
                                        others if the stream before the layer is known
    normed.<layer>     [tokens, width]  the stream after the layer, through the next norm
    embedding          [tokens, width]  the stream before the first layer
    uncapped           [vocabulary]     logits before the soft cap and scale

Sites and shapes are those of ordinary observations ("aux|clean/p0/s0/mlp.3"), in float32. All are
optional; any other name is tried unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics
from conformance.spec.records import Site

#: Longer batches are not searched for a shifted span.
_LONGEST_BATCH = 256
#: Soft caps in use: Gemma-2 has 30 on logits and 50 on attention scores.
_CAPS = (15.0, 20.0, 30.0, 50.0)
#: The fewest numbers to which a factor is fitted: one that fits a single number says nothing.
_FITTED = 8
#: Auxiliary observations with hypotheses of their own.
_SPECIAL = frozenset({"mlp", "attention", "normed", "uncapped", "logits"})


@dataclass(frozen=True, eq=False)
class NoisyRows:
    """A value of the reference [T, D], and its noise over the baseline runs [T]."""

    rows: Tensor
    noise: Tensor

    @cached_property
    def bulk(self) -> Tensor:
        """Which dimensions of each row are not massive: bool [T, D]."""
        return metrics.bulk(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One observation that is off, and all values it may have been confused with."""

    site: Site
    rows: Tensor
    known: Mapping[Site, NoisyRows]
    auxiliary: Mapping[Site, Tensor]

    @property
    def own(self) -> NoisyRows:
        return self.known[self.site]


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """A prediction of what a wrong observation holds.

    `kind` names it for programs, `words` complete the sentence "it holds …". `source` is the layer
    or step of the reference that holds the value, if there is one. rows [T, D] is the prediction,
    noise [T] its uncertainty; `valid` excludes rows that it says nothing about.
    """

    kind: str
    words: str
    rows: Tensor
    noise: Tensor
    valid: Tensor
    source: str = ""


def predict(
    scene: Scene, kind: str, words: str, rows: Tensor, noise: Tensor, source: str = ""
) -> Hypothesis:
    """Return a prediction, cut or padded to the length of the observation."""
    length, count = len(scene.rows), min(len(scene.rows), len(rows))
    valid = torch.arange(length) < count
    if len(rows) < length:
        rows = torch.cat([rows, torch.zeros_like(rows[:1]).expand(length - count, -1)])
        noise = torch.cat([noise, torch.ones_like(noise[:1]).expand(length - count)])
    return Hypothesis(kind, words, rows[:length], noise[:length], valid, source)


def differ_only_in(site: Site, other: Site, field: str) -> bool:
    """Return whether the two sites differ in this field and no other."""
    return replace(site, **{field: getattr(other, field)}) == other


def propose(scene: Scene) -> Iterator[Hypothesis]:
    """Yield every hypothesis that applies, simple ones first."""
    yield from algebra(scene)
    yield from _elsewhere(scene)
    yield from branches(scene)
    yield from _other_rows(scene)
    if scene.site.name == "logits":
        yield from logits(scene)
    yield from ingredients(scene)


def _elsewhere(scene: Scene) -> Iterator[Hypothesis]:
    """Propose the value of another layer, step, run, prompt or name."""
    own = scene.site
    for site, known in scene.known.items():
        if site == own or known.rows.shape[1] != scene.rows.shape[1]:
            continue
        source = ""
        layered = site.layer is not None and own.layer is not None
        if layered and differ_only_in(site, own, "layer"):
            kind, words, source = _at_distance("layer", site.layer or 0, own.layer or 0)
        elif differ_only_in(site, own, "step"):
            kind, words, source = _at_distance("step", site.step, own.step)
        elif differ_only_in(site, own, "run"):
            kind, words = f"{site.run}-run", f"the {site.run} run's value"
        elif differ_only_in(site, own, "prompt"):
            kind, words = "other-prompt", f"the rows of prompt {site.prompt}"
        elif replace(site, name=own.name, layer=own.layer) == own:
            # The reference may hold this value under the observation's own name too.
            counterpart = scene.known.get(replace(site, name=own.name))
            if counterpart is not None and torch.equal(counterpart.rows, known.rows):
                continue
            layer = "" if site.layer is None else f" of layer {site.layer}"
            kind, words = f"name:{site.name}", f"the value of {site.name!r}{layer}"
        else:
            continue
        yield predict(scene, kind, words, known.rows, known.noise, source)


def _at_distance(what: str, there: int, here: int) -> tuple[str, str, str]:
    """Return the kind, words and source of a value of another layer or step."""
    distance = there - here
    return f"{what}{distance:+d}", f"the value of {_apart(distance, what)}", f"{what} {there}"


def _apart(distance: int, what: str) -> str:
    """Describe a distance: +1 → "the next layer", -2 → "the layer 2 further back"."""
    if abs(distance) == 1:
        return f"the {'next' if distance > 0 else 'previous'} {what}"
    return f"the {what} {_further(distance)}"


def _further(distance: int) -> str:
    return f"{abs(distance)} further {'on' if distance > 0 else 'back'}"


def _other_rows(scene: Scene) -> Iterator[Hypothesis]:
    """Propose other rows of the batch: shifted, one row for all, or permuted."""
    own = scene.site
    alike = [site for site in scene.known if site == own or differ_only_in(site, own, "prompt")]
    prompts = sorted(alike, key=lambda site: site.prompt)
    values = [scene.known[site] for site in prompts]
    count, total = len(scene.own.rows), sum(len(value.rows) for value in values)
    if len({value.rows.shape[1] for value in values}) != 1 or not 2 <= total <= _LONGEST_BATCH:
        return
    batch = torch.cat([value.rows for value in values])
    noise = torch.cat([value.noise for value in values])
    start = sum(len(value.rows) for value in values[: prompts.index(own)])
    everywhere = torch.ones(count, dtype=torch.bool)

    def take(kind: str, words: str, source: Tensor, valid: Tensor = everywhere) -> Hypothesis:
        hypothesis = predict(scene, kind, words, batch[source], noise[source])
        length = min(len(valid), len(hypothesis.valid))
        hypothesis.valid[:length] &= valid[:length]
        return hypothesis

    near = ((s, "token", f"the row of {_apart(s, 'token')}", start, count) for s in (1, -1, 2, -2))
    everything = sorted(range(1 - start - count, total - start), key=abs)
    far = ((s, "span", f"rows of the batch {_further(s)}", 0, total) for s in everything if s)
    for shift, kind, words, first, length in (*near, *far):
        source = torch.arange(start + shift, start + shift + count)
        valid = (source >= first) & (source < first + length)
        if int(valid.sum()) * 2 >= count:
            inside = source.clamp(first, first + length - 1)
            yield take(f"{kind}{shift:+d}", words, inside, valid)
    if count == 1:
        return
    for kind, token in (("first-row", 0), ("last-row", count - 1)):
        yield take(kind, f"token {token}'s row at every token", torch.full((count,), start + token))
    if len(scene.rows) == count:
        nearest = torch.cdist(scene.rows, batch).argmin(dim=1)
        if len(set(nearest.tolist())) == count:  # a permutation has each row once
            order = ", ".join(map(str, (nearest - start).tolist()))
            yield take("permuted", f"rows in another order ({order})", nearest)


def branches(scene: Scene) -> Iterator[Hypothesis]:
    """Propose a branch without, or twice with, the stream that it is added to.

    For an edited run, also propose the clean run's: half a write leaves the other half.
    """
    own_site = scene.site
    runs = {own_site.run: ("", "")}
    if own_site.run == "edited":
        runs["clean"] = ("clean-", " of the clean run")
    for run, (tag, of_run) in runs.items():
        own = scene.known.get(site := replace(own_site, run=run))
        if own is None:
            continue
        for kind, words, rows in _with_branches(scene, site, own.rows):
            # A prediction may be longer than the value that the noise was measured on.
            longer = rows.norm(dim=-1) / own.rows.norm(dim=-1).clamp_min(1e-30)
            noise = own.noise * longer.clamp_min(1.0)
            yield predict(scene, tag + kind, words + of_run, rows, noise)
    for site, value in scene.auxiliary.items():
        layer = own_site.layer if site.layer is None else site.layer
        same_place = replace(site, name=own_site.name, layer=layer) == own_site
        if same_place and site.name not in _SPECIAL and value.shape == scene.own.rows.shape:
            yield predict(scene, site.name, f"the {site.name}", value, scene.own.noise)


def _with_branches(scene: Scene, site: Site, o: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    """Yield what is left if a branch is lost or added twice, with its kind and words.

    Attention may be the remainder of the layer's contribution.
    """
    known = {
        name: scene.auxiliary.get(replace(site, name=name))
        for name in ("mlp", "attention", "normed")
    }
    before = scene.auxiliary.get(replace(site, name="embedding", layer=None))
    if site.layer != 0:
        earlier = scene.known.get(replace(site, layer=site.layer - 1)) if site.layer else None
        before = None if earlier is None else earlier.rows
    fits = {
        name: part for name, part in known.items() if part is not None and part.shape == o.shape
    }
    remains = before is not None and before.shape == o.shape and "mlp" in fits
    if known["attention"] is None and before is not None and remains:
        fits["attention"] = o - before - fits["mlp"]
    for name, branch in (("mlp", "MLP"), ("attention", "attention")):
        if (value := fits.get(name)) is not None:
            yield f"{name}-only", f"the {branch} output without the residual", value
            yield f"{name}-missing", f"the residual without the {branch} output", o - value
            yield f"{name}-twice", f"the stream with the {branch} output counted twice", o + value
            words = f"the stream with the residual before the {branch} counted twice"
            yield f"{name}-residual-twice", words, 2 * o - value
    if "normed" in fits:
        yield "norm-applied", "the stream after the next norm", fits["normed"]


def algebra(scene: Scene) -> Iterator[Hypothesis]:
    """Propose zero, a multiple, a layer's own contribution, positions, or swapped halves."""
    o, noise = scene.own.rows, scene.own.noise
    yield predict(scene, "zero", "zero", torch.zeros_like(o), noise)
    mask = metrics.bulk(o)
    size = float((o * o * mask).sum())
    factor = float((scene.rows * o * mask).sum()) / size if size > 0 else math.nan
    fits = math.isfinite(factor) and abs(factor) > 0.01 and abs(factor - 1) > 0.01
    if fits and int(mask.sum()) >= _FITTED:
        kind, words = _multiple(factor, o.shape[1])
        yield predict(scene, kind, words, factor * o, abs(factor) * noise)
    if scene.site.layer is not None:
        before = scene.known.get(replace(scene.site, layer=scene.site.layer - 1))
        if before is not None and before.rows.shape == o.shape:
            summed_noise = torch.hypot(noise, before.noise)
            words = "the layer's own contribution without the stream before it"
            yield predict(scene, "contribution", words, o - before.rows, summed_noise)
            words = "the stream with the layer's input counted twice"
            yield predict(scene, "input-twice", words, o + before.rows, summed_noise)
    position = torch.arange(len(o), dtype=o.dtype).unsqueeze(1).expand_as(o)
    yield predict(scene, "positions", "token positions instead of activations", position, noise)
    half = o.shape[1] // 2
    swapped = torch.cat([o[:, half:], o[:, :half]], dim=1)
    yield predict(scene, "columns", "its two halves of the width swapped", swapped, noise)


def _multiple(factor: float, width: int) -> tuple[str, str]:
    root = math.sqrt(width)
    for kind, value, words in (
        ("doubled", 2.0, "twice the right value"),
        ("halved", 0.5, "half the right value"),
        ("sign", -1.0, "the right value with the opposite sign"),
        ("embedding-scale", root, "the right value with the embedding's scale once more"),
        ("embedding-scale", 1 / root, "the right value without the embedding's scale"),
    ):
        if abs(factor / value - 1) < 0.02:
            return kind, words
    return "scaled", f"{factor:.3g} times the right value"


def logits(scene: Scene) -> Iterator[Hypothesis]:
    """Propose a soft cap applied twice or left out. Rows are compared without their means."""
    raw = scene.auxiliary.get(replace(scene.site, name="uncapped"))
    if raw is not None and raw.shape == scene.own.rows.shape:
        grown = scene.own.noise * raw.norm() / scene.own.rows.norm().clamp_min(1e-30)
        yield predict(scene, "uncapped", "logits before the soft cap", _centred(raw), grown)
    logits = scene.auxiliary.get(replace(scene.site, name="logits"))
    if logits is None:
        return
    for cap in _CAPS:
        again = cap * torch.tanh(logits / cap)
        words = f"a soft cap of {cap:g} once more"
        yield predict(scene, "softcap", words, _centred(again), scene.own.noise)
        if float(logits.abs().max()) < cap:
            words = f"logits without the soft cap of {cap:g}"
            without = cap * torch.atanh(logits / cap)
            yield predict(scene, "uncapped", words, _centred(without), scene.own.noise)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=-1, keepdim=True)


def ingredients(scene: Scene) -> Iterator[Hypothesis]:
    """Propose a sum or difference computed with another prompt's value."""
    own_site = scene.site
    if own_site.name in {"stream", "logits"}:
        return
    o, noise = scene.own.rows, scene.own.noise
    for site, own in scene.known.items():
        same_place = replace(site, name=own_site.name, layer=own_site.layer) == own_site
        if not same_place or site.name == own_site.name or own.rows.shape[1] != o.shape[1]:
            continue
        for foreign_site, foreign in scene.known.items():
            if foreign_site == site or not differ_only_in(foreign_site, site, "prompt"):
                continue
            count = min(len(o), len(foreign.rows), len(own.rows))
            change = foreign.rows[:count] - own.rows[:count]
            summed_noise = noise[:count] + foreign.noise[:count] + own.noise[:count]
            words = f"what {site.name!r} of prompt {foreign_site.prompt} gives"
            for sign in (1, -1):
                rows = o[:count] + sign * change
                yield predict(scene, f"ingredient:{site.name}", words, rows, summed_noise)
