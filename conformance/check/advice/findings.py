"""What differs, in words: since where, what a value holds instead, and the line to mend."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from conformance.check.advice import requests
from conformance.check.advice.edits import (
    HALVES,
    Edit,
    alias_edit,
    is_layer,
    is_norm_input,
    layer_edit,
    logits_edit,
    norm_edit,
    read_edit,
    suspect,
    swapped,
    token_edit,
)
from conformance.check.advice.errors import weights
from conformance.check.advice.finding import LEFT_OUT, UNLIKE_LINE, Finding, once
from conformance.check.advice.reads import arrangement, batch_axis
from conformance.check.advice.reads.appended import appended
from conformance.check.advice.reads.computed_values import computed
from conformance.check.advice.reads.left_out_parts import left_out
from conformance.check.advice.reads.other_sources import other_reads
from conformance.check.advice.reads.unlike_lines import UnlikeLine, unlike_lines
from conformance.check.advice.unlike_names import unlike_names
from conformance.check.advice.writes.causes import ordered
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.source import UserFile
from conformance.check.values import compare, naming, relations
from conformance.check.values.compare import Values
from conformance.check.values.divergence import parting
from conformance.check.values.identify import Held, identify, identify_part
from conformance.check.values.known_values import UNWRITTEN, Known, catalogue, same_prompt
from conformance.check.values.naming import Names
from conformance.judge.cell import Judgement
from conformance.records import Judged, Precision, Site

#: What a value can be for no other reason than a write somewhere else.
_FOLLOW = frozenset({"scaled", "structure", "unwritten"})

#: What holds however little is known of what was meant.
_READS = frozenset({"positions", "ids"})

#: What is no matter of how a value is computed, or says that already.
_TOLD = frozenset(
    {"alias", "axis", "capped", "half", "left-out", "missing", "swapped", "unsaved", "weights"}
)

#: Of what nothing but that it differs is known, and how its shape or its number does.
_VAGUE = frozenset({"unknown", "structure", "missing", "scaled"})

#: The whole residual stream.
_WHOLE = frozenset({"stream", "unedited"})

#: More are not shown: the first ones are what the others follow from.
_MOST = 6


def findings(
    file: UserFile,
    seen: Values,
    mine: Values,
    judgement: Judgement,
    layer_list: str,
    *,
    dual: bool,
    flat: bool = True,
) -> tuple[Finding, ...]:
    """What explains the values that differ in float32, the cause before what follows from it.
    `dual`: the engine's layers return a stream in two halves; `flat`: without a batch axis.
    """
    known = catalogue(seen, layer_list)
    reference = compare.honest(seen, Precision.FLOAT32)
    truth = {Site.parse(site): value for site, value in reference["truth"].items()}
    alike, _ = compare.made_alike(compare.returned(mine), reference)
    values = {Site.parse(site): value for site, value in alike.items()}
    places = Places(file, file.function_for("vllm"), dual=dual and file.ported, flat=flat)
    unlike = requests.prompts(judgement, places, compare.layers(mine), compare.layers(seen))
    if unlike:
        return unlike
    natural = compare.layers(seen, "natural")
    part = parting(compare.layers(mine), compare.layers(seen), known, natural)
    judged = {Site.parse(one.site): one for one in judgement.observations}
    explain = _Explaining(places, truth, values, known, judged, written=written(seen))
    explain.lengths = tuple(map(len, compare.prompt_ids(compare.layers(seen))))
    explain.names = naming.read(seen)
    names: dict[str, Site] = {}
    for site in compare.wrong(judgement):
        names.setdefault(site.name, site)
    right = _right(judgement, reference["truth"], compare.returned(mine))
    explain.wrong, explain.right = tuple(names), right
    shown = list(names.values())[:_MOST]
    reads = [_outside(places, site.name, explain.read(site), right) for site in shown]
    drawn = requests.drawn(places) if requests.generated(truth, names, file) else []
    if any(_of_other_lengths(values, truth, name) for name in names):
        drawn = drawn or requests.other_lengths(places)
    if drawn or (drawn := appended(places)):
        return tuple(drawn)
    told = [one for one in reads if one.kind != "unknown"]
    if part is None:
        follow = all(one.kind in _FOLLOW for one in told)
        written_so = _written_so(places) if follow and explain.written else []
        elsewhere: list[Finding] = []
        if not told:
            elsewhere = (
                _elsewhere(places, dict(zip(shown, reads, strict=True)))
                or requests.reordered(places, compare.layers(mine), compare.layers(seen))
                or _by_names(places, shown, reads)
            )
        if told or not elsewhere:
            pairs = zip(shown, reads, strict=True)
            told = [
                each
                for site, one in pairs
                if not told or one.kind != "unknown"
                for each in explain.by_line(site, one)
                if each.kind != "unknown"
            ]
        return once([*written_so, *(told or elsewhere or _beside(places, shown, reads))])
    # What no write changes on transformers is read in a wrong place; all else follows.
    causes = [
        one
        for site, one in zip(shown, reads, strict=True)
        if one.kind not in {"unknown", *_FOLLOW} and not _alike_without(places, site, one)
    ]
    unknown = {
        site.name: one
        for site, one in zip(shown, reads, strict=True)
        if one.kind in {"unknown", *_FOLLOW - {"unwritten"}}
    }
    return ordered(part, places, causes, dual=dual, unknown=unknown)


def _of_other_lengths(
    values: Mapping[Site, Tensor], truth: Mapping[Site, Tensor], name: str
) -> bool:
    """Has a name fewer, or more, entries here, or one of another shape?"""
    mine, meant = (
        {site: value.shape for site, value in each.items() if site.name == name}
        for each in (values, truth)
    )
    return mine != meant


def _alike_without(places: Places, site: Site, one: Finding) -> bool:
    """Do runs give the same only since the write that tells them apart is another one? What is
    computed of a run is no memory that the next one overwrites.
    """
    return one.kind == "alias" and not places.kept_as_read(site.name)


def _right(judgement: Judgement, truth: Values, mine: Values) -> frozenset[str]:
    """The names of which all values are right, and of one shape on both sides."""
    wrong = {site.name for site in compare.wrong(judgement)}
    found = {Site.parse(one.site).name for one in judgement.observations} - wrong
    unlike = {
        Site.parse(site).name
        for site in truth.keys() | mine.keys()
        if site not in truth or site not in mine or truth[site].shape != mine[site].shape
    }
    return frozenset(found - unlike)


def _outside(places: Places, name: str, one: Finding, right: Collection[str]) -> Finding:
    """The same, with the line where the function computes it otherwise, of what is right."""
    known = one.kind in _TOLD or (one.edit is not None and bool(one.edit.after))
    told = None if known else computed(places, name, right)
    if told is None:
        return one
    return replace(
        one, kind="computed", words=f"{one.words}. {_capital(told.words)}", edit=told.edit
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _elsewhere(places: Places, reads: Mapping[Site, Finding]) -> list[Finding]:
    """Of values that are nothing known: the reads that they are made of and `hf`'s are not."""
    found: list[Finding] = []
    for site, one in reads.items():
        if one.edit is not None and one.edit.why:
            continue  # what it is known for
        for number, other in enumerate(other_reads(places, site.name)):
            begin = "" if number else f"{one.words}. It is made of another read: "
            words = f"{begin}{other.words}{', too' if number else ''}"
            found.append(replace(one, kind=other.kind, words=words, edit=other.edit))
    return found


def _by_names(places: Places, sites: Sequence[Site], reads: Sequence[Finding]) -> list[Finding]:
    """Of values of which nothing is known the names that they are computed with and `hf` makes
    otherwise.
    """
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    found: list[Finding] = []
    for site, one in zip(sites, reads, strict=True) if theirs is not None else ():
        own, meant = places.made(site.name), theirs.made(site.name) if theirs else None
        if theirs is None or _explained(one):
            continue
        if not isinstance(own, ast.stmt) or not isinstance(meant, ast.stmt):
            continue
        for other in unlike_names(places, theirs, own, meant, f"Line {own.lineno} computes it"):
            words = f"{one.words}. {other.words}"
            if all(other.edit != told.edit for told in found):
                found.append(replace(one, words=words, edit=other.edit))
    return found


def _explained(one: Finding) -> bool:
    """Is more known of a value than that it differs?"""
    return one.kind != "unknown" or (one.edit is not None and bool(one.edit.why))


def _beside(places: Places, sites: Sequence[Site], reads: Sequence[Finding]) -> list[Finding]:
    """The first of values of which nothing is known, with how `hf` makes it where the text has
    something else there.
    """
    for site, one in zip(sites, reads, strict=True):
        own = places.made(site.name) if places.file.ported else None
        meant = Places(places.file, "hf", dual=False).made(site.name) if own else None
        if own is None or meant is None or _explained(one):
            return [one]
        if ast.unparse(own) == ast.unparse(meant):
            return [one]
        line = places.file.line(meant.lineno).strip()
        return [
            replace(one, words=f"{one.words}. `hf` has in its place `{line}`, line {meant.lineno}")
        ]
    return []


def unfilled(
    places: Places, name: str, called: str = "", line: int | None = None
) -> Finding | None:
    """That vLLM gives nothing, or not all, under a name whose value is filled by a block and made
    outside of it, "" for any name, first those that a `line` uses; None for another one. `called`:
    as the user calls it.
    """
    filled = places.filled(name, line)
    if filled is None:
        return None
    edit = Edit(*places.made_there(filled))
    shown = called or name or filled.name
    words = f"`{shown}` does not come back whole from vLLM: {filled.why}"
    return Finding("unsaved", words, shown, edit=edit)


def _written_so(places: Places) -> list[Finding]:
    """Writes that take the batch axis for another one: of one number of a wide row too little may
    change to be seen in it.
    """
    return [
        Finding("axis", f"line {edit.line} writes elsewhere: {edit.why}", edit=edit)
        for edit in batch_axis.written_by(places, places.writes())
    ]


class _Explaining:
    def __init__(
        self,
        places: Places,
        truth: dict[Site, Tensor],
        values: dict[Site, Tensor],
        known: list[Known],
        judged: dict[Site, Judged],
        *,
        written: bool,
    ) -> None:
        self.written = written
        #: The names whose values are wrong, and those of which all are right.
        self.wrong: tuple[str, ...] = ()
        self.right: frozenset[str] = frozenset()
        self.lengths: tuple[int, ...] = ()
        self.names = Names()
        self.places = places
        self.truth = truth
        self.values = values
        self.known = known
        self.judged = judged

    def read(self, site: Site) -> Finding:
        """What the value of this site holds instead of what it should."""
        blank = Finding("unknown", "", self.names.of(site), prompt=site.prompt)
        mine, truth = self.values.get(site), self.truth.get(site)
        lacks = mine is None or (not mine.numel() and truth is not None and truth.numel())
        lost = unfilled(self.places, site.name, self.names.whole(site)) if lacks else None
        if lost is not None:
            return replace(lost, prompt=site.prompt)
        if mine is None or truth is None:
            return self._absent(blank, mine, site)
        arranged = (
            self._fewer(blank, site)
            or self._swapped(blank, site)
            or arrangement.explain(
                blank,
                site,
                self.values,
                self.truth,
                read_edit(self.places, site.name, None),
                self.lengths,
                self.names,
            )
        )
        if arranged is not None:
            return arranged
        later = self._overwritten(site, mine)
        if later:
            edit = alias_edit(self.places, site.name)
            words = f"`{blank.name}` holds {later}: a buffer that was overwritten later. Clone it"
            return replace(blank, kind="alias", words=words, edit=edit)
        if self._live(site, mine, truth):
            edit = alias_edit(self.places, site.name)
            words = (
                f"`{blank.name}` was kept as a view of a live buffer, and holds what was written "
                "there later. Clone it before it is saved"
            )
            return replace(blank, kind="alias", words=words, edit=edit)
        return self._identified(blank, site, mine, truth)

    def _swapped(self, blank: Finding, site: Site) -> Finding | None:
        """Two names of which each has the other's value."""
        for name in self.wrong:
            other = replace(site, name=name)
            both = other in self.values and other in self.truth
            if (
                name == site.name
                or not both
                or relations.alike(self.truth[site], self.truth[other])
            ):
                continue
            crossed = {site: self.values[other], other: self.values[site]}
            edit = swapped(self.places, site.name, name)
            found = all(relations.alike(crossed[one], self.truth[one]) for one in (site, other))
            if found and edit is not None:
                called = self.names.of(other)
                words = f"`{blank.name}` holds what `{called}` should, and that what this should"
                return replace(blank, kind="swapped", words=words, edit=edit)
        return None

    def _fewer(self, blank: Finding, site: Site) -> Finding | None:
        """Some entries of this name have not come back, and the others moved up."""
        here, there = (
            sum(other.name == site.name for other in values) for values in (self.values, self.truth)
        )
        if here >= there:
            return None
        called = self.names.whole(site)
        lost = unfilled(self.places, site.name, called)
        words = f"`{called}` has {here} entries, and {there} on transformers"
        if lost is not None:
            words = f"{words}: {lost.words}"
        elif ".invoke(" in ast.unparse(self.places.function):
            words += (
                ". Of a list to which the blocks of several prompts append, vLLM brings home one "
                "block's entries: make it as long as it gets and put each value at its index, or "
                "have a list for each prompt"
            )
        edit = lost.edit if lost else read_edit(self.places, site.name, None)
        return replace(blank, kind="unsaved" if lost else "missing", words=words, edit=edit)

    def _identified(self, blank: Finding, site: Site, mine: Tensor, truth: Tensor) -> Finding:
        away = weights.behind(self.places, site.name)
        if away is not None:  # its numbers are any
            words = f"`{blank.name}` is computed with numbers that are not there: {away.why}"
            return replace(blank, kind="weights", words=words, edit=away)
        if relations.cap(mine, truth) is not None:  # both are known then, and called the logits
            return self._unlike(blank, site, mine, truth)
        held, meant = identify(mine, self.known), identify(truth, self.known)
        if held is not None and held.kind == "positions" and not truth.is_floating_point():
            held = None  # in the place of an activation it was one that was read
        if held is not None and meant is not None and held.sequence != meant.sequence:
            # Prompts that begin alike have the same first rows: then they are its own.
            own = [one for one in self.known if one.sequence == meant.sequence]
            held = identify(mine, own) or held
        if held is not None and meant is not None and self._reused(site, held, meant):
            words = (
                f"`{blank.name}` holds {held.what()}: a buffer that was overwritten later. Clone it"
            )
            edit = alias_edit(self.places, site.name)
            return replace(blank, kind="alias", words=words, edit=edit)
        if held is not None and held.kind != "unedited" and (meant is None or held != meant):
            return self._instead(blank, site, held, meant)
        part = identify_part(mine, truth, self.known) if held is meant is None else None
        if part is not None:
            number, held, meant = part
            return self._instead(replace(blank, name=f"{blank.name}[{number}]"), site, held, meant)
        return self._axis(blank, site) or self._unlike(blank, site, mine, truth)

    def _absent(self, blank: Finding, mine: Tensor | None, site: Site) -> Finding:
        side = "transformers only" if mine is None else "vLLM only"
        entries = [len([s for s in v if s.name == site.name]) for v in (self.truth, self.values)]
        words = f"`{blank.name}` is there on {side}: {entries[0]} entries against {entries[1]}"
        statement = self.places.origin(site.name)
        edit = (
            Edit(statement.lineno, self.places.file.line(statement.lineno)) if statement else None
        )
        return replace(blank, kind="missing", words=words, edit=edit)

    def _overwritten(self, site: Site, mine: Tensor) -> str:
        """Another entry of the same name, made later, whose value this one holds."""
        for other, value in self.truth.items():
            if other.name != site.name or other.prompt != site.prompt:
                continue
            later = (other.step, other.layer or 0) > (site.step, site.layer or 0)
            if later and value.shape == mine.shape and relations.same(mine, value):
                return f"the value of `{self.names.of(other)}`"
        return ""

    def _live(self, site: Site, mine: Tensor, truth: Tensor) -> bool:
        """Does it hold zeros, or nothing known, that the trace itself wrote in its place?"""
        statement = self.places.origin(site.name)
        if statement is None or not self.places.kept_as_read(site.name):
            return False
        read = {(one.module, one.value) for one in self.places.reads_in(statement, site.name)}
        later = [one for one in self.places.writes() if one.line > statement.lineno]
        written = any((one.module, one.value) in read for one in later)
        unchanged = mine.shape == truth.shape and relations.same(mine, truth)
        return written and not unchanged and identify(mine, self.known) is None

    def _reused(self, site: Site, held: Held, meant: Held) -> bool:
        """Was it kept as it was read, and holds what another part of a later layer computed?
        Memory that nobody needs any more is given to the next.
        """
        if held.kind == meant.kind or held.layer is None or meant.layer is None:
            return False
        statement = self.places.origin(site.name)
        if statement is None or not self.places.kept_as_read(site.name):
            return False
        read = {one.module.rpartition(".")[2] for one in self.places.reads_in(statement, site.name)}
        return held.layer > meant.layer and not any(name in held.words for name in read)

    def _instead(self, blank: Finding, site: Site, held: Held, meant: Held | None) -> Finding:
        lost = self._lost(site) if (held.rows, held.columns) != _rows_of(meant) else None
        edit = lost or read_edit(self.places, site.name, held, meant)
        layer = meant.layer if meant else None
        found = replace(blank, kind=held.kind, layer=layer, edit=edit)
        name = f"`{blank.name}`"
        if meant is None:
            return self._unmeant(found, site, held)
        if held.words == f"{meant.words}{UNWRITTEN}":
            return replace(found, kind="unwritten", words=f"{name} is what it is without the write")
        if held.words == meant.words and same_prompt(held.sequence, meant.sequence, self.known):
            return self._other_run(found, held)
        if held.words == meant.words and held.sequence != meant.sequence:
            words = f"{name} holds another prompt's rows: those of prompt {held.sequence}"
            put = self.places.filling(site.name)
            edit = Edit(put.lineno, self.places.file.line(put.lineno)) if put else found.edit
            return replace(found, kind="other-prompt", words=words, edit=edit)
        if held.words == meant.words and held.columns != meant.columns:
            words = f"{name} holds {held.what()} instead of {meant.columns or 'all of them'}"
            return replace(found, kind="columns", words=words)
        should = f" instead of {meant.what()}"
        if held.kind in HALVES and meant.kind in _WHOLE and held.layer == meant.layer:
            should = f": half of the residual stream,{should}"
        shifts = held.kind == meant.kind and held.layer != meant.layer
        if shifts and held.layer is not None and meant.layer is not None:
            edit = layer_edit(self.places, site.name, meant.layer - held.layer)
        words = f"{name} holds {held.what()}{should}"
        if held.words == meant.words and held.rows:
            words = f"{name} holds {held.rows} alone{should}"
            if meant.at:
                words = f"{name} holds {held.rows}{should}"
        why = edit.why if edit else ""
        return replace(found, words=words + (f" ({why})" if why else ""), edit=edit)

    def _other_run(self, found: Finding, held: Held) -> Finding:
        """It holds what another run of the same prompt has in its place."""
        if any(one.written for one in self.known if one.sequence == held.sequence):
            words = f"`{found.name}` holds what another run of the same prompt has, with its write"
            return replace(found, kind="other-prompt", words=words)
        words = f"`{found.name}` is what it is without the write, as in another run of this prompt"
        return replace(found, kind="unwritten", words=words)

    def _lost(self, site: Site) -> Edit | None:
        """Where a value is computed as if there was a batch axis."""
        return batch_axis.read_by(self.places, self.places.way(site.name))

    def _axis(self, blank: Finding, site: Site) -> Finding | None:
        """That one side counts a batch axis that is not there, or not any more."""
        edit = self._lost(site)
        truth = self.truth[site].shape
        if edit is None and self.places.file.ported and truth and truth[-1] in self.lengths:
            # A column has a number for every token: then layers return no tuple there.
            edit = batch_axis.doubled_by(self.places.file, site.name)
        if edit is None:
            return None
        shape, meant = list(self.values[site].shape), list(truth)
        what = f"has shape {shape} instead of {meant}" if shape != meant else "differs"
        return replace(blank, kind="axis", words=f"`{blank.name}` {what}: {edit.why}", edit=edit)

    def _unmeant(self, found: Finding, site: Site, held: Held) -> Finding:
        """It holds something known, where transformers' own value is nothing that is known."""
        axis = (
            self._axis(found, site) if self.values[site].shape != self.truth[site].shape else None
        )
        if axis is not None:
            return axis
        name, truth = f"`{found.name}`", self.truth[site]
        if held.kind in _READS:
            why = found.edit.why if found.edit else ""
            return replace(found, words=f"{name} holds {held.what()}{f' ({why})' if why else ''}")
        if relations.probabilities(truth):
            words = (
                f"{name} holds {held.what()} instead of attention probabilities, which vLLM's "
                "kernels do not keep"
            )
            return replace(found, kind="probabilities", words=words)
        if self.written:
            words = f"{name} is what it is without the write: {held.what()}"
            return replace(found, kind="unwritten", words=words)
        shape = list(truth.shape)
        words = f"{name} holds {held.what()} instead of something else that is computed, {shape}"
        return replace(found, words=words)

    def _unlike(self, blank: Finding, site: Site, mine: Tensor, truth: Tensor) -> Finding:
        edit = read_edit(self.places, site.name, None)
        gain = relations.multiple(mine, truth)
        if gain is not None:
            words = f"`{blank.name}` is {gain:.3g} times what it is on transformers"
            return replace(blank, kind="scaled", words=words, edit=edit)
        cap = relations.cap(mine, truth)
        if cap is not None:
            words = (
                f"`{blank.name}` is transformers' value capped at {cap:.3g}: vLLM's are after"
                " the model's cap, and what `lm_head` returns is before it"
            )
            return replace(blank, kind="capped", words=words, edit=edit)
        if mine.shape != truth.shape:
            shapes = f"shape {list(mine.shape)} instead of {list(truth.shape)}"
            words = f"`{blank.name}` has {shapes}"
            last = logits_edit(self.places, site.name) if self.places.file.ported else None
            words += f" ({last.why})" if last else ""
            return replace(blank, kind="structure", words=words, edit=last or edit)
        judged = self.judged.get(site)
        said = judged.message if judged else "differs"
        off = relations.distance(mine, truth) if judged and judged.error else None
        far = f", {off:.2g} of its size off" if off else ""
        words = f"`{blank.name}` differs: {said}{far}"
        half = suspect(self.places, site.name) if self._whole_there(site) else None
        half = half or (norm_edit(self.places, site.name) if self._norm_there(site) else None)
        if half is not None:
            words += f". It is computed from half of the residual stream: {half.why}"
            return replace(blank, kind="half", words=words, edit=half)
        lacks = left_out(self.places, site.name)
        if lacks is not None:
            words = f"{words}. {lacks.words}"
            return replace(blank, kind=LEFT_OUT, words=words, edit=lacks.edit)
        return self._unexplained(blank, site, words)

    def _unexplained(self, blank: Finding, site: Site, words: str) -> Finding:
        """Nothing is known of what it holds: where it is made, and what `hf` has in that place."""
        token = None if self.written else token_edit(self.places, site.name)
        sure = [one.edit.line for one in self._lines(site) if one.sure]
        if token is not None and (not sure or token.line in sure):
            words = f"{words}. It is computed from token 0: {token.why}"
            return replace(blank, words=words, edit=token)
        return replace(blank, words=words, edit=self._made(site))

    def by_line(self, site: Site, one: Finding) -> list[Finding]:
        """What is known of a value; where that is no reason and no edit, with each line that `hf`
        has otherwise.
        """
        known = one.kind not in _VAGUE or (
            one.edit is not None and bool(one.edit.after or one.edit.why)
        )
        lines = [] if known else self._lines(site)
        if not lines or (one.kind != "unknown" and not lines[0].sure):
            return [one]
        found = []
        for number, each in enumerate(lines):
            words = each.words if number else f"{one.words}. {_capital(each.words)}"
            found.append(replace(one, kind=UNLIKE_LINE, words=words, edit=each.edit))
        return found

    def _lines(self, site: Site) -> list[UnlikeLine]:
        return unlike_lines(self.places, site.name, self.wrong, self.right)

    def _made(self, site: Site) -> Edit | None:
        """The line that makes a value of which nothing more is known: no read is blamed."""
        made = self.places.made(site.name)
        return Edit(made.lineno, self.places.file.line(made.lineno)) if made else None

    def _whole_there(self, site: Site) -> bool:
        """Is it sure that half of a stream is not what is meant? `hf` may read an MLP's output."""
        file = self.places.file
        if not self.written or not file.ported:
            return True
        reads = Places(file, file.function_for("hf")).reads(site.name)
        return any(one.value == "output" and is_layer(one) for one in reads)

    def _norm_there(self, site: Site) -> bool:
        """Does `hf` read what a norm is given?"""
        file = self.places.file
        return file.ported and any(map(is_norm_input, Places(file, "hf").reads(site.name)))


def _rows_of(meant: Held | None) -> tuple[str, str]:
    return (meant.rows, meant.columns) if meant else ("", "")


def written(seen: Values) -> bool:
    """Is any layer another one on transformers than without the trace's writes?

    Of equal sequences the first alone is there without them; a later one that the trace wrote in
    is known by its own forward.
    """
    if any(key.startswith("natural|") for key in seen):
        return True
    clean = compare.layers(seen, "clean")
    return any(
        site in clean and clean[site].shape == rows.shape and not relations.same(rows, clean[site])
        for site, rows in compare.layers(seen).items()
        if site.name == "stream"
    )
