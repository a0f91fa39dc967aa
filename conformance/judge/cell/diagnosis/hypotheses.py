"""Hypotheses about how a tensor can be wrong, each with its prediction.

Here: values that the reference holds elsewhere; `transformations` computes others from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from conformance.judge.cell.diagnosis import transformations
from conformance.judge.cell.diagnosis.predictions import Hypothesis, Scene, differ_only_in, predict

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
