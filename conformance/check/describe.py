"""What differs, in words: what a value holds instead of what it should, what a write did.

Everything here is read off the numbers of the two runs. Which line to change is a question that a
search answers by running edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from conformance.check.checked import Finding
from conformance.check.values import compare, naming, relations
from conformance.check.values.compare import Values
from conformance.check.values.divergence import Parting, pairs, parting
from conformance.check.values.identify import Held, identify, identify_part
from conformance.check.values.known_values import (
    UNWRITTEN,
    Known,
    Part,
    catalogue,
    places_of,
    same_prompt,
)
from conformance.check.values.naming import Names
from conformance.judge.cell import Judgement
from conformance.records import Precision, Site

#: More are not shown: the first ones are what the others follow from.
_MOST = 6

#: The two tensors whose sum a residual stream is on vLLM, and the stream itself.
_HALVES, _WHOLE = ("mlp", "residual"), ("stream", "unedited")

#: Values that differ only because of something before them.
_FOLLOW = frozenset({"scaled", "structure", "unwritten", "unknown"})


@dataclass(frozen=True)
class Difference:
    """What two runs of a file show: the findings, the cause first, and what a search can use.

    `part` is where the layers themselves part, `meant` where transformers has what the wrong values
    should be, `shift` how many layers below the value that was taken the right one is.
    """

    findings: tuple[Finding, ...] = ()
    part: Parting | None = None
    meant: tuple[Part, ...] = ()
    shift: int = 0
    names: tuple[str, ...] = ()
    known: list[Known] = field(default_factory=list)


def describe_difference(
    seen: Values, mine: Values, judgement: Judgement, layer_list: str
) -> Difference:
    """Return what explains the values that differ in float32, as far as numbers show it.

    `seen` is what transformers observed, `mine` what the engine did.
    """
    known = catalogue(seen, layer_list)
    prompts = _other_prompts(mine, seen)
    part = parting(
        compare.layers(mine), compare.layers(seen), known, compare.layers(seen, "natural")
    )
    reference = compare.honest(seen, Precision.FLOAT32)
    alike, _ = compare.made_alike(compare.returned(mine), reference)
    truth = {Site.parse(site): value for site, value in reference["truth"].items()}
    values = {Site.parse(site): value for site, value in alike.items()}
    wrong: dict[str, Site] = {}
    for site in compare.wrong(judgement):
        wrong.setdefault(site.name, site)
    held = {
        name: _Pair(
            identify(values[site], known) if site in values else None,
            identify(truth[site], known) if site in truth else None,
        )
        for name, site in wrong.items()
    }
    names = naming.read(seen)
    judged = {Site.parse(one.site): one.message for one in judgement.observations}
    reads = [
        _Value(site, names, truth, values, known, held[name], judged.get(site, "")).described()
        for name, site in list(wrong.items())[:_MOST]
    ]
    sites = [site for site in wrong.values() if site in truth and truth[site].is_floating_point()]
    return Difference(
        prompts or _in_order(part, reads, writes=written(seen)),
        part,
        tuple(dict.fromkeys(place for site in sites for place in places_of(truth[site], known))),
        next((shift for h in held.values() if (shift := h.shift)), 0),
        tuple(wrong),
        known,
    )


@dataclass(frozen=True)
class _Pair:
    """What a value holds on the engine, and what on transformers."""

    held: Held | None
    meant: Held | None

    @property
    def shift(self) -> int:
        held, meant = self.held, self.meant
        if held is None or meant is None or held.layer is None or meant.layer is None:
            return 0
        return meant.layer - held.layer


def _other_prompts(mine: Values, seen: Values) -> tuple[Finding, ...]:
    """Say where the two sides did not run the same prompts."""
    ours = compare.prompt_ids(compare.layers(mine))
    theirs = compare.prompt_ids(compare.layers(seen))
    if not ours or len(pairs(compare.layers(mine), compare.layers(seen))) == len(theirs):
        return ()
    number = next((n for n, ids in enumerate(theirs) if ids not in ours), len(theirs) - 1)
    lengths = f"{len(theirs[number])} tokens on transformers"
    words = f"prompt {number} is not run: {lengths}, and no prompt of these ids on the engine"
    return (Finding("prompt", words, prompt=number),)


def _in_order(
    part: Parting | None, reads: Sequence[Finding], *, writes: bool
) -> tuple[Finding, ...]:
    """What the layers show stands before what follows from it."""
    if part is None:
        return tuple(reads)
    explained = [one for one in reads if one.kind not in _FOLLOW]
    if explained and not part.kind:
        return tuple(reads)
    begin = "since " if writes else "the engine computes another model since "
    words = f"the layers compute something else {begin}{part.place()}"
    if part.words:
        words = f"{part.words}, {begin}{part.place()}"
    kind = part.kind or ("write" if writes else "engine")
    cause = Finding(kind, words, layer=part.layer, step=part.step, prompt=part.sequence)
    return (cause, *reads)


@dataclass(frozen=True)
class _Value:
    """A value that differs, with all that is known to have been computed."""

    site: Site
    names: Names
    truth: Mapping[Site, Tensor]
    values: Mapping[Site, Tensor]
    known: list[Known]
    pair: _Pair
    message: str

    def described(self) -> Finding:
        """Return what the value holds instead of what it should."""
        site, name = self.site, self.names.of(self.site)
        blank = Finding("unknown", "", name, prompt=site.prompt, step=site.step)
        mine, truth = self.values.get(site), self.truth.get(site)
        if mine is None or truth is None or (truth.numel() and not mine.numel()):
            side = "transformers" if truth is not None else "the engine"
            words = f"`{self.names.whole(site)}` comes back from {side} only"
            return replace(blank, kind="missing", words=words)
        if (other := self._crossed(mine)) is not None:
            words = f"`{name}` holds the value of `{self.names.of(other)}`"
            later = other.name == site.name
            return replace(blank, kind="alias" if later else "swapped", words=words)
        if relations.cap(mine, truth) is None:
            held, meant = self._held_by_own_prompt()
            if held is not None and held.kind != "unedited" and held != meant:
                return self._instead(blank, held, meant)
            part = identify_part(mine, truth, self.known) if held is meant is None else None
            if part is not None:
                number, held, meant = part
                return self._instead(replace(blank, name=f"{name}[{number}]"), held, meant)
        return self._unlike(blank, mine, truth)

    def _held_by_own_prompt(self) -> tuple[Held | None, Held | None]:
        """Prompts that begin alike have the same first rows: then they are the value's own."""
        held, meant = self.pair.held, self.pair.meant
        if held is not None and meant is not None and held.sequence != meant.sequence:
            own = [one for one in self.known if one.sequence == meant.sequence]
            return identify(self.values[self.site], own) or held, meant
        return held, meant

    def _crossed(self, mine: Tensor) -> Site | None:
        """Return the other returned value that this one holds."""
        truth = self.truth[self.site]
        for other, value in self.truth.items():
            if other == self.site or value.shape != mine.shape or relations.alike(value, truth):
                continue
            if mine.numel() >= relations.FITTED and relations.alike(mine, value):
                return other
        return None

    def _instead(self, blank: Finding, held: Held, meant: Held | None) -> Finding:
        name = f"`{blank.name}`"
        found = replace(blank, kind=held.kind, layer=meant.layer if meant else None)
        if meant is None:
            if relations.probabilities(self.truth[self.site]):
                words = f"{name} holds {held.what()}: vLLM keeps no attention probabilities"
                return replace(found, kind="probabilities", words=words)
            return replace(found, words=f"{name} holds {held.what()}")
        if held.words == f"{meant.words}{UNWRITTEN}":
            return replace(found, kind="unwritten", words=f"{name} is what it is without the write")
        if held.words == meant.words and held.sequence != meant.sequence:
            same = same_prompt(held.sequence, meant.sequence, self.known)
            of = "another run of the same prompt" if same else f"prompt {held.sequence}"
            words = f"{name} holds the rows of {of} instead of prompt {meant.sequence}"
            return replace(found, kind="other-prompt", words=words)
        words = f"{name} holds {held.what()} instead of {meant.what()}"
        if held.kind in _HALVES and meant.kind in _WHOLE and held.layer == meant.layer:
            words = (
                f"{name} holds {held.what()}, half of the residual stream, instead of "
                f"{meant.what()} (the layer returns two tensors: the stream is their sum)"
            )
        return replace(found, words=words)

    def _unlike(self, blank: Finding, mine: Tensor, truth: Tensor) -> Finding:
        name = f"`{blank.name}`"
        if (gain := relations.multiple(mine, truth)) is not None and abs(gain - 1) > 1e-3:
            words = f"{name} is {gain:.3g} times what it is on transformers"
            return replace(blank, kind="scaled", words=words)
        if (cap := relations.cap(mine, truth)) is not None:
            words = f"{name} is transformers' value after a cap of {cap:.3g}"
            return replace(blank, kind="capped", words=words)
        if mine.shape != truth.shape:
            words = f"{name} has shape {list(mine.shape)} instead of {list(truth.shape)}"
            return replace(blank, kind="structure", words=words)
        off = relations.distance(mine, truth)
        far = f", {off:.2g} of its size off" if off else ""
        return replace(blank, words=f"{name} differs: {self.message or 'it is off'}{far}")


def written(seen: Values) -> bool:
    """Return whether a layer on transformers is another one than without the trace's writes.

    Of equal sequences the first alone was computed without them; a later one in which the trace
    wrote is known by its own forward.
    """
    if any(key.startswith("natural|") for key in seen):
        return True
    clean = compare.layers(seen, "clean")
    return any(
        site in clean and clean[site].shape == rows.shape and not relations.same(rows, clean[site])
        for site, rows in compare.layers(seen).items()
        if site.name == "stream"
    )
