"""What differs, in words: since where, what a value holds instead, and the line to mend."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from conformance.check import compare
from conformance.check.compare import Values
from conformance.check.edits import Edit, layer_edit, read_edit, write_edit
from conformance.check.identify import Held, Known, catalogue, identify, near
from conformance.check.places import Places
from conformance.check.source import UserFile
from conformance.check.writes import Parting, parting
from conformance.judge.cell import Judgement
from conformance.judge.measures.structure import PROMPT_IDS
from conformance.records import Judged, Precision, Site, record

#: What a value can be for no other reason than a write somewhere else.
_FOLLOW = frozenset({"scaled", "structure", "unwritten"})

#: What holds however little is known of what was meant.
_READS = frozenset({"positions", "ids"})

#: The whole residual stream.
_WHOLE = frozenset({"stream", "unedited"})

#: More are not shown: the first ones are what the others follow from.
_MOST = 6


@record()
class Finding:
    """One thing that differs. `kind` is for programs, `name` the user's own for the value."""

    kind: str
    words: str
    name: str = ""
    layer: int | None = None
    step: int = 0
    prompt: int = 0
    edit: Edit | None = None


def findings(
    file: UserFile, seen: Values, mine: Values, judgement: Judgement, layer_list: str
) -> tuple[Finding, ...]:
    """What explains the values that differ in float32, the cause before what follows from it."""
    known = catalogue(seen, layer_list)
    reference = compare.honest(seen, Precision.FLOAT32)
    truth = {Site.parse(site): value for site, value in reference["truth"].items()}
    alike, _ = compare.made_alike(compare.returned(mine), reference)
    values = {Site.parse(site): value for site, value in alike.items()}
    places = Places(file, file.function_for("vllm"))
    unlike = _prompts(judgement, places)
    if unlike:
        return unlike
    part = parting(compare.layers(mine), compare.layers(seen), known)
    judged = {Site.parse(one.site): one for one in judgement.observations}
    explain = _Explaining(places, truth, values, known, judged)
    names: dict[str, Site] = {}
    for site in compare.wrong(judgement):
        names.setdefault(site.name, site)
    reads = [explain.read(site) for site in list(names.values())[:_MOST]]
    drawn = _drawn(places) if _generated(truth, names) else []
    if drawn:
        return tuple(drawn)
    told = [one for one in reads if one.kind != "unknown"]
    if part is None:
        return tuple(told or reads[:1])
    # What no write changes on transformers is read in a wrong place; all else follows.
    causes = [one for one in told if one.kind not in _FOLLOW]
    return (_written(part, places), *causes)


def _prompts(judgement: Judgement, places: Places) -> tuple[Finding, ...]:
    """Other prompts make all that follows another thing, so nothing else is said."""
    for relation in judgement.relations:
        if relation.name == PROMPT_IDS and not relation.holds:
            words = (
                f"the prompts have other tokens ({relation.detail}): a template, or a first token "
                "that one side adds"
            )
            calls = places.calls("trace", "generate", "invoke")
            edit = Edit(calls[0].lineno, places.file.line(calls[0].lineno)) if calls else None
            return (Finding("prompt", words, edit=edit),)
    return ()


class _Explaining:
    def __init__(
        self,
        places: Places,
        truth: dict[Site, Tensor],
        values: dict[Site, Tensor],
        known: list[Known],
        judged: dict[Site, Judged],
    ) -> None:
        self.places = places
        self.truth = truth
        self.values = values
        self.known = known
        self.judged = judged

    def read(self, site: Site) -> Finding:
        """What the value of this site holds instead of what it should."""
        blank = Finding("unknown", "", compare.shown(site), site.layer, site.step, site.prompt)
        mine, truth = self.values.get(site), self.truth.get(site)
        if mine is None or truth is None:
            return self._absent(blank, mine, site)
        later = self._overwritten(site, mine)
        if later:
            edit = read_edit(self.places, site.name, "alias")
            words = f"`{blank.name}` holds {later}: a buffer that was overwritten later. Clone it"
            return replace(blank, kind="alias", words=words, edit=edit)
        if self._live(site, mine, truth):
            edit = read_edit(self.places, site.name, "alias")
            words = (
                f"`{blank.name}` was kept as a view of a live buffer, and holds what was written "
                "there later. Clone it before it is saved"
            )
            return replace(blank, kind="alias", words=words, edit=edit)
        held, meant = identify(mine, self.known), identify(truth, self.known)
        if held is not None and held.kind != "unedited" and (meant is None or held != meant):
            return self._instead(blank, site, held, meant)
        return self._unlike(blank, site, mine, truth)

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
            if later and value.shape == mine.shape and _same(mine, value):
                return f"the value of `{compare.shown(other)}`"
        return ""

    def _live(self, site: Site, mine: Tensor, truth: Tensor) -> bool:
        """Does it hold zeros, or nothing known, that the trace itself wrote in its place?"""
        statement = self.places.origin(site.name)
        if statement is None or ".clone(" in self.places.file.segment(statement):
            return False
        read = {(one.module, one.value) for one in self.places.accesses(statement)}
        later = [one for one in self.places.writes() if one.line > statement.lineno]
        written = any((one.module, one.value) in read for one in later)
        unchanged = mine.shape == truth.shape and _same(mine, truth)
        return written and not unchanged and identify(mine, self.known) is None

    def _instead(self, blank: Finding, site: Site, held: Held, meant: Held | None) -> Finding:
        which = f" of {held.rows}" if held.rows else ""
        should = f" instead of {meant.words}{_of(meant)}" if meant else ""
        halved = meant is not None and held.kind in {"mlp", "residual"} and meant.kind in _WHOLE
        if halved and meant is not None and held.layer == meant.layer:
            should = f": half of the residual stream, {should.strip()}"
        both = meant is not None and held.words == meant.words
        if both and held.sequence != (meant.sequence if meant else 0):
            words = f"`{blank.name}` holds another prompt's rows: those of prompt {held.sequence}"
            edit = read_edit(self.places, site.name, "other-prompt")
            return replace(blank, kind="other-prompt", words=words, edit=edit)
        if meant is None and held.kind not in _READS:
            words = f"`{blank.name}` is what it is without the write: {held.words}{which}"
            return replace(blank, kind="unwritten", words=words)
        words = f"`{blank.name}` holds {held.words}{which}{should}"
        if both and held.rows:
            words = f"`{blank.name}` holds {held.rows} alone{should}"
        edit = self._edit(site, held, meant)
        why = edit.why if edit else ""
        return replace(blank, kind=held.kind, words=words + (f" ({why})" if why else ""), edit=edit)

    def _edit(self, site: Site, held: Held, meant: Held | None) -> Edit | None:
        shifts = meant is not None and held.kind == meant.kind and held.layer != meant.layer
        if shifts and meant is not None and held.layer is not None and meant.layer is not None:
            return layer_edit(self.places, site.name, meant.layer - held.layer)
        part = held.rows if meant is not None and held.words == meant.words else ""
        return read_edit(self.places, site.name, held.kind, part)

    def _unlike(self, blank: Finding, site: Site, mine: Tensor, truth: Tensor) -> Finding:
        edit = read_edit(self.places, site.name, "")
        gain = _multiple(mine, truth)
        if gain is not None:
            words = f"`{blank.name}` is {gain:.3g} times what it is on transformers"
            return replace(blank, kind="scaled", words=words, edit=edit)
        if mine.shape != truth.shape:
            shapes = f"shape {list(mine.shape)} instead of {list(truth.shape)}"
            return replace(blank, kind="structure", words=f"`{blank.name}` has {shapes}", edit=edit)
        judged = self.judged.get(site)
        said = judged.message if judged else "differs"
        far = f", {judged.error:.2g} of its size off" if judged and judged.error else ""
        return replace(blank, words=f"`{blank.name}` differs: {said}{far}", edit=edit)


def _of(held: Held) -> str:
    return f" of {held.rows}" if held.rows else ""


def _same(mine: Tensor, other: Tensor) -> bool:
    if not mine.is_floating_point():
        return False
    width = mine.shape[-1] if mine.ndim else 1
    return near(mine.double().reshape(-1, width), other.double().reshape(-1, width))


def _multiple(mine: Tensor, truth: Tensor) -> float | None:
    if mine.shape != truth.shape or not mine.is_floating_point():
        return None
    ours, theirs = mine.double(), truth.double()
    gain = float((ours * theirs).sum() / theirs.square().sum().clamp_min(1e-30))
    if abs(gain) < 1e-6:
        return None
    return gain if (ours - gain * theirs).norm() <= 1e-3 * ours.norm() else None


def _written(part: Parting, places: Places) -> Finding:
    edit = write_edit(places, part.layer, part.kind)
    words = f"the layers differ since {part.place()}"
    if part.words:
        words += f": {part.words}"
    if edit is not None and edit.why:
        words += f" ({edit.why})"
    kind = part.kind or "write"
    return Finding(kind, words, layer=part.layer, step=part.step, prompt=part.sequence, edit=edit)


def _generated(truth: dict[Site, Tensor], names: dict[str, Site]) -> bool:
    """Is something off that follows from which tokens were generated?"""
    later = any(site.step for site in truth)
    return any(
        later or not truth[site].is_floating_point() for site in names.values() if site in truth
    )


def _drawn(places: Places) -> list[Finding]:
    """vLLM draws at temperature 1 unless it is told otherwise; transformers here does not."""
    if not places.file.ported:
        return []
    for call in places.calls("trace", "generate"):
        if not any(keyword.arg == "temperature" for keyword in call.keywords):
            before = places.file.line(call.lineno)
            segment = places.file.segment(call)
            inner = segment[:-1].rstrip().rstrip(",")
            after = before.replace(segment, f"{inner}, temperature=0.0)")
            words = (
                "vLLM draws its tokens at temperature 1.0, and 16 of them, unless it is told "
                "otherwise"
            )
            return [Finding("defaults", words, edit=Edit(call.lineno, before, after))]
    return []
