"""Hypotheses about how a tensor can be wrong, each with its prediction.

Here: values that the reference holds elsewhere; `transformations` computes others from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from conformance.judge.diagnosis import transformations
from conformance.judge.diagnosis.predictions import Hypothesis, Scene, differ_only_in, predict
from conformance.records import Site

#: Longer batches are not searched for a shifted span.
_LONGEST_BATCH = 256


def propose(scene: Scene) -> Iterator[Hypothesis]:
    """Yield every hypothesis that applies, simple ones first."""
    yield from transformations.algebra(scene)
    yield from _elsewhere(scene)
    yield from transformations.branches(scene)
    yield from _other_rows(scene)
    if scene.site.name == "logits":
        yield from transformations.logits(scene)
    yield from transformations.ingredients(scene)


def general(kind: str, words: str) -> str:
    """Return words that cover several observations, each with its own prompt, factor or order."""
    return {
        "other-prompt": "another prompt's rows",
        "permuted": "rows in another order",
        "scaled": "a multiple of the right value",
    }.get(kind, words)


def _elsewhere(scene: Scene) -> Iterator[Hypothesis]:
    """Propose the value of another layer, step, run, prompt or name."""
    own_site = scene.site
    for site, known in scene.known.items():
        if site == own_site or known.rows.shape[1] != scene.rows.shape[1]:
            continue
        source = ""
        if (
            site.layer is not None
            and own_site.layer is not None
            and differ_only_in(site, own_site, "layer")
        ):
            kind = f"layer{site.layer - own_site.layer:+d}"
            words = f"the value of {_apart(site.layer - own_site.layer, 'layer')}"
            source = f"layer {site.layer}"
        elif differ_only_in(site, own_site, "step"):
            kind = f"step{site.step - own_site.step:+d}"
            words = f"the value of {_apart(site.step - own_site.step, 'step')}"
            source = f"step {site.step}"
        elif differ_only_in(site, own_site, "run"):
            kind, words = f"{site.run}-run", f"the {site.run} run's value"
        elif differ_only_in(site, own_site, "prompt"):
            kind, words = "other-prompt", f"the rows of prompt {site.prompt}"
        elif replace(site, name=own_site.name, layer=own_site.layer) == own_site:
            if _same_by_own_name(scene, site):
                continue
            layer = "" if site.layer is None else f" of layer {site.layer}"
            kind, words = f"name:{site.name}", f"the value of {site.name!r}{layer}"
        else:
            continue
        yield predict(scene, kind, words, known.rows, known.noise, source)


def _same_by_own_name(scene: Scene, site: Site) -> bool:
    """Return whether the reference holds this value under the observation's own name too."""
    counterpart = scene.known.get(replace(site, name=scene.site.name))
    return counterpart is not None and torch.equal(counterpart.rows, scene.known[site].rows)


def _apart(distance: int, what: str) -> str:
    """Describe a distance: +1 → "the next layer", -2 → "the layer 2 further back"."""
    if abs(distance) == 1:
        return f"the {'next' if distance > 0 else 'previous'} {what}"
    return f"the {what} {abs(distance)} further {'on' if distance > 0 else 'back'}"


def _other_rows(scene: Scene) -> Iterator[Hypothesis]:
    """Propose other rows of the batch: shifted, one row for all, or permuted."""
    own_site = scene.site
    prompts = sorted(
        (
            site
            for site in scene.known
            if site == own_site or differ_only_in(site, own_site, "prompt")
        ),
        key=lambda site: site.prompt,
    )
    widths = {scene.known[site].rows.shape[1] for site in prompts}
    count, total = len(scene.own.rows), sum(len(scene.known[site].rows) for site in prompts)
    if len(widths) != 1 or total > _LONGEST_BATCH or total < 2:
        return
    batch = torch.cat([scene.known[site].rows for site in prompts])
    noise = torch.cat([scene.known[site].noise for site in prompts])
    inside_own = torch.arange(count)
    for shift in (1, -1, 2, -2):
        source = inside_own + shift
        valid = (source >= 0) & (source < count)
        words = f"the row of {_apart(shift, 'token')}"
        own, rows = source.clamp(0, count - 1), scene.own.rows
        if int(valid.sum()) * 2 >= count:
            yield _predict_rows(scene, f"token{shift:+d}", words, rows, scene.own.noise, own, valid)
    start = sum(len(scene.known[site].rows) for site in prompts[: prompts.index(own_site)])
    for shift in sorted(range(-start - count + 1, total - start), key=abs):
        source = torch.arange(start + shift, start + shift + count)
        inside = (source >= 0) & (source < total)
        if shift and int(inside.sum()) * 2 >= count:
            source = source.clamp(0, total - 1)
            words = f"rows of the batch {abs(shift)} further {'on' if shift > 0 else 'back'}"
            yield _predict_rows(scene, f"span{shift:+d}", words, batch, noise, source, inside)
    if count == 1:
        return
    everywhere = torch.ones(count, dtype=torch.bool)
    for kind, token in (("first-row", 0), ("last-row", count - 1)):
        source = torch.full((count,), start + token)
        words = f"token {token}'s row at every token"
        yield _predict_rows(scene, kind, words, batch, noise, source, everywhere)
    if len(scene.rows) == count:
        nearest = torch.cdist(scene.rows, batch).argmin(dim=1)
        if len(set(nearest.tolist())) < count:  # a permutation has each row once
            return
        words = f"rows in another order ({', '.join(map(str, (nearest - start).tolist()))})"
        yield _predict_rows(scene, "permuted", words, batch, noise, nearest, everywhere)


def _predict_rows(
    scene: Scene,
    kind: str,
    words: str,
    batch: Tensor,
    noise: Tensor,
    source: Tensor,
    valid: Tensor,
) -> Hypothesis:
    hypothesis = predict(scene, kind, words, batch[source], noise[source])
    length = min(len(valid), len(hypothesis.valid))
    hypothesis.valid[:length] &= valid[:length]
    return hypothesis
