"""Values computed from the reference: branches of a layer, multiples, caps, wrong ingredients.

Most need only the cell's other observations. Those about a layer's two branches need what the
reference may record under the member `aux`:

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
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from conformance.judge.cell.diagnosis.predictions import Hypothesis, Scene, differ_only_in, predict
from conformance.judge.cell.measures import metrics
from conformance.spec.records import Site

#: Soft caps in use: Gemma-2 has 30 on logits and 50 on attention scores.
_CAPS = (15.0, 20.0, 30.0, 50.0)
#: The fewest numbers to which a factor is fitted: one that fits a single number says nothing.
_FITTED = 8
#: Auxiliary observations with hypotheses of their own.
_SPECIAL = frozenset({"mlp", "attention", "normed", "uncapped", "logits"})


def branches(scene: Scene) -> Iterator[Hypothesis]:
    """Propose a branch without, or twice with, the stream that it is added to.

    For an edited run, also propose the clean run's: half a write leaves the other half.
    """
    own_site = scene.site
    runs = {own_site.run: ("", "")}
    if own_site.run == "edited":
        runs["clean"] = ("clean-", " of the clean run")
    for run, (tag, of_run) in runs.items():
        site = replace(own_site, run=run)
        own = scene.known.get(site)
        for name, value in _branch_values(scene, site) if own is not None else ():
            if own is None or value.shape != own.rows.shape:
                continue
            for kind, words, rows in _without_or_twice(name, own.rows, value):
                # A prediction may be longer than the value that the noise was measured on.
                longer = rows.norm(dim=-1) / own.rows.norm(dim=-1).clamp_min(1e-30)
                noise = own.noise * longer.clamp_min(1.0)
                yield predict(scene, tag + kind, words + of_run, rows, noise)
    for site, value in scene.auxiliary.items():
        layer = own_site.layer if site.layer is None else site.layer
        same_place = replace(site, name=own_site.name, layer=layer) == own_site
        if same_place and site.name not in _SPECIAL and value.shape == scene.own.rows.shape:
            yield predict(scene, site.name, f"the {site.name}", value, scene.own.noise)


def _branch_values(scene: Scene, site: Site) -> Iterator[tuple[str, Tensor]]:
    """Yield the known branches of the layer; attention may be the remainder of its contribution."""
    mlp = scene.auxiliary.get(replace(site, name="mlp"))
    attention = scene.auxiliary.get(replace(site, name="attention"))
    before = None
    if site.layer:
        earlier = scene.known.get(replace(site, layer=site.layer - 1))
        before = None if earlier is None else earlier.rows
    elif site.layer == 0:
        before = scene.auxiliary.get(replace(site, name="embedding", layer=None))
    stream = scene.known[site].rows
    alike = [value for value in (before, mlp) if value is not None and value.shape == stream.shape]
    if attention is None and len(alike) == 2:
        attention = stream - alike[0] - alike[1]
    normed = scene.auxiliary.get(replace(site, name="normed"))
    for name, value in (("mlp", mlp), ("attention", attention), ("normed", normed)):
        if value is not None:
            yield name, value


def _without_or_twice(name: str, o: Tensor, value: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    if name == "normed":
        yield "norm-applied", "the stream after the next norm", value
        return
    branch = {"mlp": "MLP", "attention": "attention"}[name]
    yield f"{name}-only", f"the {branch} output without the residual", value
    yield f"{name}-missing", f"the residual without the {branch} output", o - value
    yield f"{name}-twice", f"the stream with the {branch} output counted twice", o + value
    words = f"the stream with the residual before the {branch} counted twice"
    yield f"{name}-residual-twice", words, 2 * o - value


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
