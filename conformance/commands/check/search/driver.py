"""A best-first search for a version of a file that agrees, by running candidates on the engine.

The version nearest to agreeing is rewritten next. The diff of a version that agrees is then made
minimal and verified: on other prompts, in both precisions, and with unchanged results on
transformers.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

import libcst as cst

from conformance.commands.check.describe import describe_difference
from conformance.commands.check.engine_errors import find_lines
from conformance.commands.check.search.candidates import Proposal, propose
from conformance.commands.check.search.change import Clues
from conformance.commands.check.search.edits import Found, without_hunks
from conformance.commands.check.search.program import ParsedFile, is_python
from conformance.commands.check.search.rewrites.logits import EMBEDDINGS
from conformance.commands.check.search.rewrites.porting import port_versions, without_old_habits
from conformance.commands.check.search.trial import (
    FileReference,
    Place,
    Tried,
    have_same_reference,
)
from conformance.commands.check.values.compare import zeros
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.scheduling import Further
from conformance.runner.scheduling.open_engines import Request
from conformance.runner.store import gathered_in
from conformance.spec.inputs.user_file import UserFile
from conformance.spec.records import Case, Precision, Status

#: A search that is not limited by the user runs at least so many versions.
_FEWEST_RUNS = 40

#: The number of versions in a batch.
_AT_ONCE = 6

#: The batches by which a version falls back if only its distance is smaller: that can be chance.
_PER_CHANCE = 4

#: The most versions tried from one parent, and the most rewrites in succession.
_OF_ONE, _DEEP, _DEEP_PORT = 150, 4, 12

#: For a file with both functions, the batches before a port of all of `hf`, which is a large edit.
_BEFORE_PORTS = 6

#: A candidate's time limit: _PATIENCE times the file's own run, plus _LEEWAY seconds.
_PATIENCE, _LEEWAY = 5.0, 10.0


@dataclass(order=True)
class _Node:
    """A version that ran, and its untried candidates. `chances` counts its edits that reduced only
    the distance.
    """

    order: tuple[float, ...]
    number: int
    tried: Tried = field(compare=False)
    edits: tuple[Proposal, ...] = field(compare=False)
    untried: Iterator[list[Proposal]] = field(compare=False)
    chances: int = field(compare=False, default=0)
    batches: int = field(compare=False, default=0)


@dataclass
class Search:
    """The search for one file on one engine. It ends at `until` by the monotonic clock, or at
    `latest` if too few versions have run by then.
    """

    place: Place
    file: UserFile
    backend: str
    reference: FileReference
    until: float
    latest: float
    begun: float = field(default_factory=time.monotonic)
    precision: Precision = Precision.FLOAT32
    deep: int = _DEEP
    ran: int = 0
    seen: set[str] = field(default_factory=set)
    seconds: float = 0.0
    note: str = ""

    def steps(self, hints: Sequence[str] = ()) -> Generator[Request, None, Found]:
        """Run the search. First try `hints`, the versions that agree on other engines."""
        if self.file.lacks_a_port:
            clues = self._clues()
            text, words = without_old_habits(ParsedFile(self.file.text, "hf"), clues)
            if words:
                yield from self._mean_instead(text, words)
            self.deep = _DEEP_PORT
            ports = port_versions(ParsedFile(self.file.text, "hf"), clues)
            return (yield from self._improve((yield from self._try(ports)), hints))
        own = self._stored()
        if own.agrees:  # only bf16 differs
            self.precision = Precision.BF16
            own = self._stored()
        return (yield from self._improve([own], hints))

    def _mean_instead(self, text: str, words: str) -> Generator[Request, None, None]:
        """Replace the reference by another version of `hf`, if transformers can run it."""
        case = self._case(text, "hf")
        yield {self.place.job(REFERENCE.id): self._further([case])}
        if seen := self.place.seen(REFERENCE.id, case.key):
            self.reference = FileReference(seen)
            self.file = replace(self.file, text=text)
            self.note = words

    # ── trying ─────────────────────────────────────────────────────────────────────────────────

    @property
    def _folder(self) -> str:
        return gathered_in(self.backend, self.precision)

    @property
    def _layer_list(self) -> str:
        group = self.place.run.group(self.place.model, REFERENCE.id)
        return str(group.identity.get("layer_list", "")) if group else ""

    def _stored(self) -> Tried:
        """Return the result of the file itself, from the run folder."""
        tried = self._read(self.file.text, self.file.key, self.precision, self.reference)
        self.seconds = max(self.seconds, tried.outcome.seconds)
        return tried

    def _read(self, text: str, key: str, precision: Precision, reference: FileReference) -> Tried:
        folder = gathered_in(self.backend, precision)
        outcome = self.place.outcome(folder, key)
        mine = self.place.seen(folder, key) if outcome.status is Status.OK else {}
        lines: tuple[int, ...] = ()
        if outcome.status is not Status.OK:
            lines = find_lines(outcome, text, self.file.path.name)
        try:
            return reference.try_of(text, outcome, mine, precision, lines)
        except (ValueError, RuntimeError) as error:  # its values cannot be compared
            failed = replace(outcome, status=Status.ERROR, reason=str(error))
            return reference.try_of(text, failed, {}, precision)

    def _case(self, text: str, function: str) -> Case:
        return self.place.case(text, self.file.name, function, self.file.path)

    def _further(self, cases: Sequence[Case]) -> Further:
        return Further(tuple(cases), _LEEWAY + _PATIENCE * self.seconds)

    def _try(self, texts: Sequence[str]) -> Generator[Request, None, list[Tried]]:
        """Run versions of the file on the engine; return their results."""
        if not texts:
            return []
        cases = [self._case(text, self.file.function_for("vllm")) for text in texts]
        yield {self.place.job(self._folder): self._further(cases)}
        self.ran += len(texts)
        found = []
        for text, case in zip(texts, cases, strict=True):
            found.append(self._read(text, case.key, self.precision, self.reference))
            self.place.run.group_folder(self.place.model, self._folder).drop_cell(case.key)
        return found

    # ── the search itself ──────────────────────────────────────────────────────────────────────

    def _improve(
        self, begun: Sequence[Tried], hints: Sequence[str]
    ) -> Generator[Request, None, Found]:
        """Rewrite the version that is nearest to agreeing, until one is verified or time is up."""
        order = count()
        heap: list[_Node] = []
        rounds, ports = 0, self._ports()
        best, edits = begun[0], tuple[Proposal, ...]()
        self.seen |= {one.text for one in begun}
        ready = [(one, edits) for one in (*(yield from self._try(hints)), *begun)]
        parent: tuple[float, ...] = (math.inf,)
        agreeing, chances = parent, 0
        while True:
            for one, path in ready:
                if one.agrees:
                    found = yield from self._smallest(one, path)
                    if found.verified:
                        return found
                best, edits = min((best, edits), (one, path), key=lambda each: each[0].score)
                if not one.agrees and one.score < parent and len(path) < self.deep:
                    chance = chances + (one.agreeing == agreeing)
                    first = _order(one, _PER_CHANCE * chance)
                    node = _Node(first, next(order), one, path, self._batches(one), chance)
                    heapq.heappush(heap, node)
            ready = []
            rounds += 1
            half = time.monotonic() >= (self.begun + self.until) / 2
            if ports and (rounds > _BEFORE_PORTS or half or not heap):
                tried = yield from self._try([one.text for one in ports])
                ready = [(one, (port,)) for port, one in zip(ports, tried, strict=True)]
                ports = []
                continue
            now, enough = time.monotonic(), self.ran >= _FEWEST_RUNS
            if not heap or now >= (self.until if enough else self.latest):
                return self._found(best, edits)
            node = heapq.heappop(heap)
            batch = next(node.untried, [])
            if not batch:
                continue
            tried = yield from self._try([one.text for one in batch])
            ready = [(one, (*node.edits, edit)) for edit, one in zip(batch, tried, strict=True)]
            parent, agreeing, chances = node.tried.score, node.tried.agreeing, node.chances
            node.batches += 1
            batches = node.batches + _PER_CHANCE * chances
            node.order, node.number = _order(node.tried, batches), next(order)
            heapq.heappush(heap, node)

    def _ports(self) -> list[Proposal]:
        """Return ports of all of `hf` in the place of `vllm`, for a file that has both."""
        if not self.file.ported or self.file.lacks_a_port:
            return []
        texts = port_versions(ParsedFile(self.file.text, "hf"), self._clues())
        return [Proposal(text, "port", "as `hf` is on vLLM", (), 0) for text in texts]

    def _batches(self, tried: Tried) -> Iterator[list[Proposal]]:
        """Yield a version's rewrites that were not tried, in batches."""
        try:
            found = propose(tried.text, self.file.function_for("vllm"), self.clues(tried))
        except cst.ParserSyntaxError:
            return
        untried = (one for one in found[:_OF_ONE] if one.text not in self.seen)
        while batch := list(islice(untried, _AT_ONCE)):
            self.seen |= {one.text for one in batch}
            yield batch

    def _clues(self) -> Clues:
        """Return the clues about the model, which do not depend on the file."""
        layers = self._layer_list
        named = (one.split("|") for one in self.reference.seen if one.startswith("value|"))
        outputs = [(each[2], "|".join(each)) for each in named if each[3:] == ["output"]]
        inside = re.compile(re.escape(layers) + r"\.\d+\.([\w.]+)")
        widths: dict[str, int] = {}
        outside: dict[str, None] = {}
        for path, key in outputs:
            if found := inside.fullmatch(path):
                widths.setdefault(found[1], int(self.reference.seen[key].shape[-1]))
            elif not path.startswith(f"{layers}."):
                outside[path] = None
        layout = self.place.run.group(self.place.model, self._folder)
        heads = (head for head in ("lm_head", "embed_out") if f".{head}" in self.file.text)
        return Clues(
            dual=layout is not None and layout.layout == "dual",
            single=layout is not None and layout.layout == "single",
            modules=tuple(widths),
            widths={name.rpartition(".")[2]: width for name, width in widths.items()},
            head=next(heads, "lm_head"),
            layers=str(layout.identity.get("layer_list", "")) if layout else "",
            norms=tuple(path for path in outside if re.search(r"norm|ln_f", path)),
            embedding=next((path for path in outside if re.search(EMBEDDINGS, path)), ""),
        )

    def clues(self, tried: Tried) -> Clues:
        """Return the clues from a version that ran."""
        clues = replace(self._clues(), lines=tried.lines)
        if tried.compared is None:
            return clues
        if self.precision is Precision.BF16:
            return replace(clues, parted=True)
        seen, judgement = self.reference.seen, tried.compared.judgement
        told = describe_difference(seen, tried.mine, judgement, self._layer_list)
        return replace(
            clues,
            wrong=(*sorted(self.reference.missing(tried.mine)), *told.names),
            parted=told.part is not None,
            meant=told.meant,
        )

    # ── what agrees ────────────────────────────────────────────────────────────────────────────

    def _smallest(
        self, best: Tried, edits: tuple[Proposal, ...]
    ) -> Generator[Request, None, Found]:
        """Undo the hunks that a version does not need, and verify the rest."""
        good: Tried | None = best
        while good is not None:
            best = good
            smaller = [one for one in without_hunks(self.file.text, best.text) if is_python(one)]
            tried = yield from self._try(smaller)
            good = next((one for one in tried if one.agrees), None)
        verified = yield from self._holds(best)
        return self._found(best, edits, verified=verified)

    def _holds(self, best: Tried) -> Generator[Request, None, bool]:
        """Run a version in both precisions, and with other prompts, also on transformers. Return
        whether it agrees everywhere, and whether transformers' results are those of the file.
        """
        texts = best.text, with_other_prompts(best.text)
        cases = [self._case(text, self.file.function_for("hf")) for text in texts]
        known = without_vllm(best.text) == without_vllm(self.file.text)
        mine = [self._case(text, self.file.function_for("vllm")) for text in texts]
        single, half = (gathered_in(self.backend, precision) for precision in Precision)
        yield {
            self.place.job(REFERENCE.id): self._further(cases[known:]),
            self.place.job(single): self._further(mine),
            self.place.job(half): self._further(mine[:1]),
        }
        own, others = (self.place.seen(REFERENCE.id, case.key) for case in cases)
        own = dict(self.reference.seen) if known else own
        if not own or not have_same_reference(own, self.reference.seen) or zeros(own)[1]:
            return False
        ran = [(texts[0], mine[0], precision, own) for precision in Precision]
        if others:
            ran.append((texts[1], mine[1], Precision.FLOAT32, others))
        else:
            self.note = "transformers does not run it on other prompts: it holds on your own"
        return all(
            self._read(text, case.key, precision, FileReference(seen)).agrees
            for text, case, precision, seen in ran
        )

    def _found(self, best: Tried, edits: tuple[Proposal, ...], *, verified: bool = False) -> Found:
        left = best.outcome.reason
        if best.compared is not None:
            left = best.compared.judgement.reason
            left = left if not best.compared.passes else "it does not hold everywhere"
        return Found(
            self.file.name,
            self.backend,
            best.text if edits or verified else self.file.text,
            verified=verified,
            words=tuple(dict.fromkeys(edit.words for edit in edits)),
            left="" if verified else left,
            tried=self.ran,
            seconds=time.monotonic() - self.begun,
            note=self.note,
        )


def _order(tried: Tried, batches: int) -> tuple[float, ...]:
    """Return a sort key: by agreement, then by batches so that equal versions take turns, then by
    distance, which can shrink by chance.
    """
    return (*tried.agreeing, float(batches), tried.score[-1])


def without_vllm(text: str) -> str:
    """Return a file without its function `vllm`, which transformers does not run."""
    program = ParsedFile(text, "hf")
    return program.replaced(
        program.swap(function, "") for name, function in program.functions.items() if name == "vllm"
    )


def with_other_prompts(text: str) -> str:
    """Return a file with other prompts: the first word of each string moves to its end.

    Docstrings do not change. The number of words stays the same, and mostly that of the tokens.
    """
    program = ParsedFile(text, "hf")
    turned = []
    for node in program.walk(program.module):
        if isinstance(node, cst.SimpleString) and not isinstance(program.parents[node], cst.Expr):
            found = re.fullmatch(r"([rRuU]?['\"])([^'\"\\\n]*)(['\"])", node.value)
            if found and " " in found[2].strip():
                first, _, others = found[2].partition(" ")
                turned.append(program.swap(node, f"{found[1]}{others} {first}{found[3]}"))
    return program.replaced(turned)
