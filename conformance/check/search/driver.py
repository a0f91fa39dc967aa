"""The search: from what a file shows to a version that agrees, by running candidates.

Best first: of the versions that ran, the one that is nearest to agreeing is rewritten next. What
agrees is made as small as it can be, and confirmed: on other prompts, in both precisions, and with
the meaning on transformers unchanged.
"""

from __future__ import annotations

import heapq
import io
import math
import re
import time
import tokenize
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import libcst as cst

from conformance.builtin.user_trace import case_of
from conformance.check.describe import describe_difference
from conformance.check.engine_errors import find_lines
from conformance.check.search.candidates import Candidate, propose, propose_pairs
from conformance.check.search.change import Clues
from conformance.check.search.edits import Found, without_hunks
from conformance.check.search.engine_alone import ask_engine
from conformance.check.search.program import Program, is_python
from conformance.check.search.rewrites.logits import EMBEDDINGS
from conformance.check.search.rewrites.porting import port_versions, without_old_habits
from conformance.check.search.session import Request, Steps
from conformance.check.search.trial import Reference, Tried, same_truth
from conformance.check.source import UserFile
from conformance.check.values.compare import zeros
from conformance.records import Case, Outcome, Precision, Status
from conformance.runner import Further
from conformance.store import RunFolder, gathered_in

#: Versions that are tried before those that did best are looked at.
_AT_ONCE = 6

#: Batches of others that come before those of a version whose distance alone is smaller: it may be
#: by chance.
_PER_CHANCE = 4

#: Versions of one parent that are tried at most, and rewrites one after another.
_OF_ONE, _DEEP, _DEEP_PORT = 150, 4, 12

#: Of a file with both functions, batches that are tried before the port of the whole of `hf`: that
#: is a large edit.
_BEFORE_PORTS = 6

#: A candidate may take so many times as long as the file's own run did, and so many seconds more.
_PATIENCE, _LEEWAY = 5.0, 10.0

#: Of a search that nobody gave a time: at least so many seconds.
LEAST = 10.0


@dataclass(frozen=True)
class Place:
    """Where a search runs: the jobs of its engines, and what transformers' model is like."""

    run: RunFolder
    model: str
    truth: str
    prompts: tuple[str, ...]

    def folder(self, backend: str, precision: Precision) -> str:
        """The folder, below the model's, of what an engine gathers."""
        return gathered_in(backend, precision)

    def job(self, folder: str) -> str:
        """The id of the job that gathers into a folder."""
        return f"{self.model}:{folder}"

    def layer_list(self) -> str:
        """Where transformers' model has its layers."""
        group = self.run.group(self.model, self.truth)
        return str(group.identity.get("layer_list", "")) if group else ""

    def layout(self, folder: str) -> str:
        """How an engine's layers return the stream, "" where that could not be measured."""
        group = self.run.group(self.model, folder)
        return group.layout if group else ""


@dataclass(order=True)
class _Node:
    """A version that ran, with the candidates that it leaves to be tried. `chances` are its edits
    after which no more agreed, and the distance was smaller.
    """

    order: tuple[float, ...]
    number: int
    tried: Tried = field(compare=False)
    edits: tuple[Candidate, ...] = field(compare=False)
    chances: int = field(compare=False, default=0)
    waiting: list[Candidate] | None = field(compare=False, default=None)
    single: list[Candidate] = field(compare=False, default_factory=list)
    batches: int = field(compare=False, default=0)


@dataclass
class Search:
    """The search for one file on one engine. `until` is when it ends, by the monotonic clock."""

    place: Place
    file: UserFile
    backend: str
    reference: Reference
    until: float
    numbers: Iterator[int]
    begun: float = field(default_factory=time.monotonic)
    ran: int = 0
    seen: set[str] = field(default_factory=set)
    seconds: float = 0.0
    note: str = ""

    def steps(self, hints: Sequence[str] = ()) -> Generator[Request, None, Found]:
        """Run the search. The versions of `hints` agree on another engine, and are tried first."""
        side = "vllm" if self.file.ported else "trace"
        precision = Precision.FLOAT32
        if self.file.lacks_a_port:
            clues = self._clues(precision)
            text, words = without_old_habits(Program(self.file.text, "hf"), clues)
            if words:
                yield from self._mean_instead(text, words)
            ports = port_versions(Program(self.file.text, "hf"), clues)
            own = yield from self._try(ports, precision)
            return (yield from self._improve(own, side, precision, _DEEP_PORT, hints))
        own = [self._stored(precision)]
        if own[0].agrees:  # what differs is bf16 alone
            precision = Precision.BF16
            own = [self._stored(precision)]
        return (yield from self._improve(own, side, precision, _DEEP, hints))

    def _mean_instead(self, text: str, words: str) -> Generator[Request, None, None]:
        """Take another version of `hf` for what is meant, where transformers runs it."""
        case = self._case(text, "hf")
        yield {self.place.job(self.place.truth): self._further([case])}
        seen = self.place.run.observations(self.place.model, self.place.truth, case.key)
        if seen:
            self.reference = Reference(seen, self.reference.thresholds)
            self.file = replace(self.file, text=text)
            self.note = words

    # ── trying ─────────────────────────────────────────────────────────────────────────────────

    def _stored(self, precision: Precision) -> Tried:
        """How the file itself did, from what its check gathered."""
        folder = self.place.folder(self.backend, precision)
        key = f"check.{self.file.name}"
        tried = self._read(self.file.text, folder, key, precision)
        self.seconds = max(self.seconds, tried.outcome.seconds)
        return tried

    def _read(self, text: str, folder: str, key: str, precision: Precision) -> Tried:
        run, model = self.place.run, self.place.model
        outcome = run.outcome(model, folder, key) or Outcome(Status.MISSING, reason="not run")
        mine = run.observations(model, folder, key) if outcome.status is Status.OK else {}
        lines: tuple[int, ...] = ()
        if outcome.status is not Status.OK:
            lines = find_lines(outcome, text, self.file.path.name)
        try:
            return self.reference.try_of(text, outcome, mine, precision, lines)
        except (ValueError, RuntimeError) as error:  # it returns what cannot be compared
            failed = replace(outcome, status=Status.ERROR, reason=str(error))
            return self.reference.try_of(text, failed, {}, precision)

    def _case(self, text: str, function: str) -> Case:
        """Write a version of the file, and return the case that runs a function of it."""
        number = next(self.numbers)
        folder = self.place.run.path / "tries" / str(number)
        folder.mkdir(parents=True)
        path = folder / self.file.path.name
        path.write_text(text, encoding="utf-8")
        name = f"{self.file.name}~{number}"
        return case_of(name, path, function, self.place.prompts, original=self.file.path)

    def _further(self, cases: Sequence[Case]) -> Further:
        return Further(tuple(cases), _LEEWAY + _PATIENCE * self.seconds)

    def _try(
        self, texts: Sequence[str], precision: Precision
    ) -> Generator[Request, None, list[Tried]]:
        """Run versions of the file on the engine; returns how each did."""
        folder = self.place.folder(self.backend, precision)
        function = "vllm" if self.file.ported else "trace"
        if not texts:
            return []
        cases = [self._case(text, function) for text in texts]
        yield {self.place.job(folder): self._further(cases)}
        self.ran += len(texts)
        found = []
        for text, case in zip(texts, cases, strict=True):
            found.append(self._read(text, folder, case.key, precision))
            self.place.run.group_folder(self.place.model, folder).drop_cell(case.key)
        return found

    # ── the search itself ──────────────────────────────────────────────────────────────────────

    def _improve(
        self,
        begun: Sequence[Tried],
        side: str,
        precision: Precision,
        deep: int,
        hints: Sequence[str],
    ) -> Generator[Request, None, Found]:
        """Rewrite the version that is nearest to agreeing, until one agrees everywhere or time is
        over.
        """
        order = count()
        heap: list[_Node] = []
        rounds, ports = 0, self._ports(precision)
        best, edits = begun[0], tuple[Candidate, ...]()
        self.seen |= {one.text for one in begun}
        ready = [(one, edits) for one in (*(yield from self._try(hints, precision)), *begun)]
        parent: tuple[float, ...] = (math.inf,)
        agreeing = parent
        chances = 0
        while True:
            for one, path in ready:
                if one.agrees:
                    found = yield from self._smallest(one, path, precision)
                    if found.verified:
                        return found
                best, edits = min((best, edits), (one, path), key=lambda each: each[0].score)
                if not one.agrees and one.score < parent and len(path) < deep:
                    chance = chances + (one.agreeing == agreeing)
                    first = _order(one, _PER_CHANCE * chance)
                    heapq.heappush(heap, _Node(first, next(order), one, path, chance))
            ready = []
            rounds += 1
            if ports and (rounds > _BEFORE_PORTS or not heap or time.monotonic() >= self._half()):
                tried = yield from self._try([one.text for one in ports], precision)
                ready = [(one, (port,)) for port, one in zip(ports, tried, strict=True)]
                ports = []
                continue
            if not heap or time.monotonic() >= self.until:
                return self._unverified(best, edits)
            node = heapq.heappop(heap)
            batch = self._next_of(node, side, precision)
            if batch is None:
                continue
            tried = yield from self._try([one.text for one in batch], precision)
            for candidate, one in zip(batch, tried, strict=True):
                self._note(candidate, one)
                ready.append((one, (*node.edits, candidate)))
            parent, agreeing, chances = node.tried.score, node.tried.agreeing, node.chances
            node.batches += 1
            batches = node.batches + _PER_CHANCE * chances
            node.order, node.number = _order(node.tried, batches), next(order)
            heapq.heappush(heap, node)

    def _ports(self, precision: Precision) -> list[Candidate]:
        """The whole of `hf` in the place of `vllm`, for a file that has both."""
        if not self.file.ported:
            return []
        texts = port_versions(Program(self.file.text, "hf"), self._clues(precision))
        return [
            Candidate(text, "port", "as `hf` is on vLLM", (), 0)
            for text in texts
            if is_python(text)
        ]

    def _half(self) -> float:
        return (self.begun + self.until) / 2

    def _next_of(self, node: _Node, side: str, precision: Precision) -> list[Candidate] | None:
        """Return the next versions of a node to be tried, None when all have been: first those of
        one rewrite, then the likeliest in pairs.
        """
        if node.waiting is None:
            node.waiting = node.single = self._proposed(node.tried, side, precision)
        elif not node.waiting:
            if not node.single:
                return None
            node.waiting = propose_pairs(node.tried.text, side, node.single)
            node.single = []
        node.waiting = [one for one in node.waiting if one.text not in self.seen]
        batch, node.waiting = node.waiting[:_AT_ONCE], node.waiting[_AT_ONCE:]
        self.seen |= {one.text for one in batch}
        return batch

    def _note(self, candidate: Candidate, tried: Tried) -> None:
        """Keep what a version came to, for people who look at a search."""
        score = ", ".join(f"{number:g}" for number in tried.score)
        line = f"({score}) {candidate.rewrite} {list(candidate.lines)}: {candidate.words}"
        with (self.place.run.path / "tries" / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{self.file.name} on {self.backend}: {line}\n")

    def _proposed(self, tried: Tried, side: str, precision: Precision) -> list[Candidate]:
        try:
            return propose(tried.text, side, self.clues(tried, precision))[:_OF_ONE]
        except cst.ParserSyntaxError:
            return []

    def _clues(self, precision: Precision) -> Clues:
        """Return what is known of the model on both sides, whatever the file does."""
        layer_list = self.place.layer_list()
        folder = self.place.folder(self.backend, precision)
        modules, widths = self._modules(layer_list)
        return Clues(
            dual=self.place.layout(folder) == "dual",
            single=self.place.layout(folder) == "single",
            modules=modules,
            widths=widths,
            head=self._head(),
            norms=self._outside(layer_list, r"norm|ln_f"),
            embedding="".join(self._outside(layer_list, EMBEDDINGS)[:1]),
        )

    def clues(self, tried: Tried, precision: Precision) -> Clues:
        """Return what a version that ran says about what to change."""
        clues = replace(self._clues(precision), lines=tried.lines)
        if tried.compared is None:
            return clues
        names = tuple(sorted(self.reference.missing(tried.mine)))
        if precision is Precision.BF16:
            return replace(clues, parted=True)
        judgement, layer_list = tried.compared.judgement, self.place.layer_list()
        told = describe_difference(self.reference.seen, tried.mine, judgement, layer_list)
        return replace(
            clues,
            wrong=(*names, *told.names),
            parted=told.part is not None,
            meant=told.meant,
            shift=told.shift,
        )

    def _modules(self, layer_list: str) -> tuple[tuple[str, ...], Mapping[str, int]]:
        """Return the names of the modules in a layer, and how wide their outputs are."""
        names: dict[str, int] = {}
        inside = re.compile(re.escape(layer_list) + r"\.\d+\.([\w.]+)")
        for one, value in self.reference.seen.items():
            if one.startswith("value|") and one.endswith("|output"):
                found = inside.fullmatch(one.split("|")[2])
                if found:
                    names.setdefault(found[1], int(value.shape[-1]))
        widths = {name.rpartition(".")[2]: width for name, width in names.items()}
        return tuple(names), widths

    def _outside(self, layer_list: str, pattern: str) -> tuple[str, ...]:
        """Return the paths of modules outside of the layers whose names have a pattern."""
        paths = {one.split("|")[2] for one in self.reference.seen if one.startswith("value|")}
        outside = (path for path in sorted(paths) if not path.startswith(f"{layer_list}."))
        return tuple(path for path in outside if re.search(pattern, path))

    def _head(self) -> str:
        return next((h for h in ("lm_head", "embed_out") if f".{h}" in self.file.text), "lm_head")

    # ── what agrees ────────────────────────────────────────────────────────────────────────────

    def _smallest(
        self, best: Tried, edits: tuple[Candidate, ...], precision: Precision
    ) -> Generator[Request, None, Found]:
        """Take back what the version does not need, and confirm what is left."""
        smaller = [one for one in without_hunks(self.file.text, best.text) if is_python(one)]
        while smaller:
            tried = yield from self._try(smaller, precision)
            good = next((one for one in tried if one.agrees), None)
            if good is None:
                break
            best = good
            smaller = [one for one in without_hunks(self.file.text, best.text) if is_python(one)]
        found = yield from self._confirmed(best, edits)
        return found or self._unverified(best, edits)

    def _confirmed(
        self, best: Tried, edits: tuple[Candidate, ...]
    ) -> Generator[Request, None, Found | None]:
        """Run a version in both precisions and with other prompts, on transformers too.

        Returns a verified `Found`, None where it does not hold.
        """
        side = ("hf", "vllm") if self.file.ported else ("trace", "trace")
        folders = {p: self.place.folder(self.backend, p) for p in Precision}
        other = with_other_prompts(best.text)
        truths = [self._case(best.text, side[0]), self._case(other, side[0])]
        mine = [self._case(best.text, side[1]), self._case(other, side[1])]
        yield {
            self.place.job(self.place.truth): self._further(truths),
            self.place.job(folders[Precision.FLOAT32]): self._further(mine),
            self.place.job(folders[Precision.BF16]): self._further(mine[:1]),
        }
        run, model = self.place.run, self.place.model
        own, others = (run.observations(model, self.place.truth, case.key) for case in truths)
        if not own or not same_truth(own, self.reference.seen) or zeros(own)[1]:
            return None
        reference = Reference(own, self.reference.thresholds)
        ran = []
        for number, p in ((0, Precision.FLOAT32), (0, Precision.BF16)):
            outcome = run.outcome(model, folders[p], mine[number].key)
            seen = run.observations(model, folders[p], mine[number].key)
            outcome = outcome or Outcome(Status.MISSING, reason="not run")
            ran.append(reference.try_of(best.text, outcome, seen, p))
        if others:
            outcome = run.outcome(model, folders[Precision.FLOAT32], mine[1].key)
            seen = run.observations(model, folders[Precision.FLOAT32], mine[1].key)
            again = Reference(others, self.reference.thresholds)
            outcome = outcome or Outcome(Status.MISSING, reason="not run")
            ran.append(again.try_of(other, outcome, seen, Precision.FLOAT32))
        else:
            self.note = (
                "transformers does not run it on other prompts, so your own are what it holds on"
            )
        if not all(one.agrees for one in ran):
            return None
        return Found(
            self.file.name,
            self.backend,
            best.text,
            verified=True,
            words=tuple(dict.fromkeys(edit.words for edit in edits)),
            tried=self.ran,
            seconds=time.monotonic() - self.begun,
            note=self.note,
        )

    def _unverified(self, best: Tried, edits: tuple[Candidate, ...]) -> Found:
        compared = best.compared
        left = best.outcome.reason
        if compared is not None:
            left = (
                compared.judgement.reason if not compared.passes else "it does not hold everywhere"
            )
        better = bool(edits) and best.text != self.file.text
        return Found(
            self.file.name,
            self.backend,
            best.text if better else self.file.text,
            words=tuple(dict.fromkeys(edit.words for edit in edits)),
            left=left,
            tried=self.ran,
            seconds=time.monotonic() - self.begun,
            note=self.note,
        )


def _order(tried: Tried, batches: int) -> tuple[float, ...]:
    """Sort versions: what agrees more comes first; of equal ones each has its turn, and only then
    the distance counts, which may shrink by chance.
    """
    return (*tried.agreeing, float(batches), tried.score[-1])


def with_other_prompts(text: str) -> str:
    """Return a file with other prompts: of each text of several words the words in another order.

    Docstrings stay. So many words stay so many, and mostly so many tokens.
    """
    places = []
    former = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        quiet = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL}
        if token.type == tokenize.STRING and former not in quiet:
            places.append((token.start, token.end, token.string))
        if token.type != tokenize.COMMENT:
            former = token.type
    lines = text.splitlines(keepends=True)
    for (row, start), (last, end), string in reversed(places):
        found = re.fullmatch(r"([rRuU]?)(['\"])([^'\"\\\n]*)\2", string)
        if row != last or not found or " " not in found[3].strip():
            continue
        words = found[3].split(" ")
        turned = " ".join(words[1:] + words[:1])
        line = lines[row - 1]
        lines[row - 1] = f"{line[:start]}{found[1]}{found[2]}{turned}{found[2]}{line[end:]}"
    return "".join(lines)


def search_all(
    place: Place,
    wanted: Callable[[], Iterator[tuple[UserFile, str, Reference]]],
    seconds: Callable[[], float],
    keep: Callable[[Found], None],
) -> Steps:
    """Search for each file on each engine that is `wanted`, which is asked when all have run.

    `seconds` says how long each may take, `keep` gets what is found.
    """
    numbers = count()
    texts: dict[str, list[str]] = {}
    clean: dict[str, str] = {}
    for file, backend, reference in wanted():
        if backend not in clean:
            clean[backend] = yield from ask_engine(
                place.run, place.model, place.truth, backend, reference, numbers
            )
        until = time.monotonic() + seconds()
        search = Search(place, file, backend, reference, until, numbers)
        if clean[backend]:
            keep(Found(file.name, backend, engine=clean[backend]))
            continue
        found = yield from search.steps(texts.get(file.name, []))
        if found.verified:
            texts.setdefault(file.name, []).append(found.text)
        keep(found)
