"""Differences in words: what a wrong value holds instead, and what a write did.

All of it follows from the numbers of the two runs. Which line to change is found by the search,
which runs edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from conformance.commands.check.checked import CheckFinding
from conformance.commands.check.values import compare, returned_names
from conformance.commands.check.values.compare import Values
from conformance.commands.check.values.divergence import UNEXPLAINED, pairs, parting
from conformance.commands.check.values.known_values import (
    UNWRITTEN,
    Known,
    ValuePlace,
    catalogue,
    identify,
    places_of,
)
from conformance.commands.check.values.returned_names import Names
from conformance.judge.cell.judge_cell import Judgement
from conformance.spec.records import Precision, Site

#: The most values described: later ones usually follow from the first.
_MOST = 6

#: Kinds of the two tensors whose sum is the residual stream on vLLM, and of the stream itself.
_HALVES, _WHOLE = ("mlp", "residual"), ("stream", "unedited")

#: Kinds of findings that may only be consequences of an earlier difference.
_FOLLOW = frozenset({"scaled", "structure", "unwritten", "unknown"})


@dataclass(frozen=True)
class Difference:
    """The differences between two runs of a file: findings, the cause first, and search clues.

    `part` is where the layers' own outputs first differ. `meant` are the places at which
    transformers computes what the wrong values should hold; `names` are those values' names.
    """

    findings: tuple[CheckFinding, ...] = ()
    part: CheckFinding | None = None
    meant: tuple[ValuePlace, ...] = ()
    names: tuple[str, ...] = ()


def describe_difference(
    seen: Values, mine: Values, judgement: Judgement, layer_list: str
) -> Difference:
    """Return the findings that explain the values that differ in float32.

    `seen` are the observations on transformers, `mine` those on the engine.
    """
    known = catalogue(seen, layer_list)
    ours, theirs = compare.layers(mine), compare.layers(seen)
    part = parting(ours, seen, known)
    runs = compare.select_runs(seen, Precision.FLOAT32)
    alike, _ = compare.made_alike(compare.returned(mine), runs)
    reference, values = (
        {Site.parse(site): value for site, value in one.items()} for one in (runs["truth"], alike)
    )
    sides = _Sides(reference, values, returned_names.read(seen), known)
    wrong: dict[str, Site] = {}
    for site in compare.wrong(judgement):
        wrong.setdefault(site.name, site)
    judged = {Site.parse(one.site): one.message for one in judgement.observations}
    reads = [sides.describe(site, judged[site]) for site in [*wrong.values()][:_MOST]]
    meant = [sides.reference[site] for site in wrong.values() if site in sides.reference]
    floats = [value for value in meant if value.is_floating_point()]
    places = (place for value in floats for place in places_of(value, known))
    # Another finding is the cause if the layers' difference explains nothing by itself.
    explained = any(one.kind not in _FOLLOW for one in reads)
    later = part is not None and part.kind in UNEXPLAINED and explained
    return Difference(
        _other_prompts(ours, theirs) or ((part,) if part and not later else ()) + tuple(reads),
        part,
        tuple(dict.fromkeys(places)),
        tuple(wrong),
    )


def _other_prompts(
    mine: Mapping[Site, Tensor], seen: Mapping[Site, Tensor]
) -> tuple[CheckFinding, ...]:
    """Return a finding if the two sides did not run the same prompts, else nothing."""
    theirs, ran = compare.prompts(seen), {*pairs(mine, seen).values()}
    number = next((each for each in theirs if each not in ran), None)
    if not compare.prompts(mine) or number is None:
        return ()
    lengths = f"{len(theirs[number])} tokens on transformers"
    words = f"prompt {number} is not run: {lengths}, and no other prompt of these ids on the engine"
    return (CheckFinding("prompt", words, prompt=number),)


@dataclass(frozen=True)
class _Sides:
    """The returned values of both sides, and the catalogue of what transformers computed."""

    reference: Mapping[Site, Tensor]
    values: Mapping[Site, Tensor]
    names: Names
    known: list[Known]

    def describe(self, site: Site, message: str) -> CheckFinding:
        """Return a finding on what a wrong value holds instead; `message` is the judge's."""
        kind, words, layer = self._held_instead(site, message)
        return CheckFinding(kind, words, self.names.of(site), layer, site.step, site.prompt)

    def _held_instead(self, site: Site, message: str) -> tuple[str, str, int | None]:
        """Return the finding's kind, its words, and the layer of the value that was meant."""
        mine, reference = self.values.get(site), self.reference.get(site)
        name = f"`{self.names.of(site)}`"
        if mine is None or reference is None or (reference.numel() and not mine.numel()):
            side = "transformers" if reference is not None else "the engine"
            return "missing", f"`{self.names.whole(site)}` comes back from {side} only", None
        if (other := self._crossed(site, mine)) is not None:
            words = f"{name} holds the value of `{self.names.of(other)}`"
            return "alias" if other.name == site.name else "swapped", words, None
        held, meant = identify(mine, self.known), identify(reference, self.known)
        if held and meant and held.sequence != meant.sequence:
            # Prompts with the same beginning have equal first rows: its own prompt comes first.
            own = [one for one in self.known if one.sequence == meant.sequence]
            held = identify(mine, own) or held
        if held is not None and held.kind != "unedited" and held != meant:
            return _instead(name, held, meant)
        return _unlike(name, mine, reference, message)

    def _crossed(self, site: Site, mine: Tensor) -> Site | None:
        """Return the site of another returned value that this one equals, None if there is none."""
        own = self.reference[site]
        others = (
            other
            for other, value in self.reference.items()
            if compare.is_alike(mine, value) and not compare.is_alike(value, own)
        )
        return next(others, None) if mine.numel() >= compare.FITTED else None


def _instead(name: str, held: Known, meant: Known | None) -> tuple[str, str, int | None]:
    """Return kind, words and layer for a value that holds another known value."""
    if meant is None:
        return held.kind, f"{name} holds {held.what()}", None
    if held.words == f"{meant.words}{UNWRITTEN}":
        return "unwritten", f"{name} is what it is without the write", meant.layer
    if held.words == meant.words and held.sequence != meant.sequence:
        places = f"prompt {held.sequence} instead of prompt {meant.sequence}"
        return "other-prompt", f"{name} holds the rows of {places}", meant.layer
    of, hint = "", ""
    if held.kind in _HALVES and meant.kind in _WHOLE and held.layer == meant.layer:
        of = ", half of the residual stream,"
        hint = " (the layer returns two tensors: the stream is their sum)"
    words = f"{name} holds {held.what()}{of} instead of {meant.what()}{hint}"
    return held.kind, words, meant.layer


def _unlike(name: str, mine: Tensor, reference: Tensor, message: str) -> tuple[str, str, None]:
    """Return kind and words for a value that holds no other known value."""
    if (gain := compare.multiple(mine, reference)) is not None and abs(gain - 1) > 1e-3:
        return "scaled", f"{name} is {gain:.3g} times what it is on transformers", None
    if mine.shape != reference.shape:
        words = f"{name} has shape {list(mine.shape)} instead of {list(reference.shape)}"
        return "structure", words, None
    off = compare.distance(mine, reference)
    far = f", off by {100 * off:.3g} % of its size" if off else ""
    return "unknown", f"{name} differs: {message or 'it is off'}{far}", None
