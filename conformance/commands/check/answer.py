"""The answer to a check: the same, the same but for numerics, or the differences and a fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from torch import Tensor

from conformance.commands.check.checked import Answered, CheckAnswer, Checked, CheckFinding
from conformance.commands.check.describe import describe_difference
from conformance.commands.check.engine_errors import explain_error, find_lines
from conformance.commands.check.gather import CheckRequest, identity
from conformance.commands.check.search.edits import Found, suggested
from conformance.commands.check.search.trial import FileReference
from conformance.commands.check.values import compare, returned_names
from conformance.commands.check.values.compare import Compared, Values
from conformance.commands.check.values.divergence import written
from conformance.errors import ConformanceError
from conformance.judge.cell.reference import BASELINE_RUNS_DIFFER, NO_NUMBER
from conformance.judge.runs.one_case import unjudged
from conformance.runner.planning.jobs import BUILD, REFERENCE
from conformance.runner.planning.named import HF
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.inputs.user_file import UserFile
from conformance.spec.records import Answer, Backend, Outcome, Precision, Site, Status
from conformance.spec.shortening import few

#: The most values named in a note.
_NAMED = 4

#: Explanations of values that cannot be judged, by the judge's reason: transformers' own float32
#: runs differ, or give no numbers.
_UNCLEAR = {
    BASELINE_RUNS_DIFFER: (
        "transformers' own runs in float32 do not agree on this, by far more than rounding, so "
        "nothing can be the same. Its numbers depend on which kernel computes them, as those of "
        "padding do: transformers pads the shorter prompts of a batch on the left, so that the "
        "last token of each is at `[:, -1]`"
    ),
    NO_NUMBER: (
        "transformers gives nan or infinities alone for this, so nothing shows what an engine "
        "computes there"
    ),
}

#: The note on values that only one side returns.
_FILLED = "a list or dict that a block fills comes back where the block makes and saves it"


def answers(
    request: CheckRequest,
    run: RunFolder,
    tell: Callable[[str], None] = lambda _: None,
    found: Sequence[Found] = (),
    known: Mapping[tuple[str, str], Answered] = MappingProxyType({}),
) -> Iterator[Answered]:
    """Yield the answer for every file on every column, from the workers' observations and the edits
    that a search `found`. `tell` receives progress messages. `known` answers, by file and column,
    are reused.
    """
    results = {(one.file, one.backend): one for one in found}
    for file in request.files:
        others: list[Checked] = []
        for backend in request.backends:
            if backend != HF:
                tell(f"comparing {file.name} on {backend.id}")
            place = file.name, backend.id
            answered = known.get(place) or answer(request, run, file, backend)
            checked = suggested(file, answered.checked, results.get(place), others)
            others.append(checked)
            yield replace(answered, checked=checked)


def answer(request: CheckRequest, run: RunFolder, file: UserFile, backend: Backend) -> Answered:
    """Return the answer for one file on one column, without any suggested edit."""
    case = _Case(run, request.model.id, file, backend)
    return Answered(case.checked(), file.name, tuple(case.evidence), case.prompt_ids)


@dataclass
class _Case:
    """One file on one column, and the evidence and words collected for its answer."""

    run: RunFolder
    model: str
    file: UserFile
    backend: Backend
    evidence: list[Answer] = field(default_factory=list)
    prompt_ids: tuple[tuple[int, ...], ...] = ()
    words: dict[str, Any] = field(default_factory=dict)

    def checked(self) -> Checked:
        """Return the answer from transformers' run, then the engine's float32, then its bf16."""
        built = self.run.group(self.model, BUILD.id)
        if built is not None and built.status is not Status.OK:
            return self._say(CheckAnswer.INVALID, f"the model cannot be had: {built.reason}")
        reference = self._outcome(REFERENCE.id)
        if reference.status is not Status.OK:
            words = "does not run on transformers itself"
            return self._failed(reference, CheckAnswer.INVALID, words)
        if self.backend == HF:
            return self._say(CheckAnswer.SAME, "runs on transformers; no engine was asked for")
        if self.file.lacks_a_port:
            words = "has `hf(model)` alone: there is no `vllm(model)` to compare it with"
            return self._say(CheckAnswer.INVALID, words)
        folder = gathered_in(self.backend.id, Precision.FLOAT32)
        meaning = self._outcome(folder)
        if meaning.status is not Status.OK:
            refused = meaning.status is Status.UNSUPPORTED
            answer = CheckAnswer.UNSUPPORTED if refused else CheckAnswer.FAILS
            words = f"runs on transformers and not on {self.backend.id}"
            return self._failed(meaning, answer, words)
        return self._judged(self._seen(REFERENCE.id), self._seen(folder))

    def _say(self, answer: CheckAnswer, sentence: str, **more: Any) -> Checked:
        begun = Checked(str(self.file.path), self.model, self.backend.id, answer, sentence)
        return replace(begun, **self.words, **more)

    def _outcome(self, folder: str) -> Outcome:
        found = self.run.outcome(self.model, folder, self.file.key)
        if found is not None:
            return found
        group = self.run.group(self.model, folder)
        reason = (group and group.reason) or "it was not run"
        return Outcome(Status.MISSING, reason=reason, harness=group is None)

    def _seen(self, folder: str) -> dict[str, Tensor]:
        """Return the observations in a folder. Raises ConformanceError for damaged value names."""
        seen = self.run.observations(self.model, folder, self.file.key)
        try:
            returned_names.read(seen)
        except ValueError as error:
            raise ConformanceError(
                f"no observations can be read: {error}",
                path=self.run.group_folder(self.model, folder).cell(self.file.key),
                remedy=f"check it again: {self.run.plan().command}",
            ) from error
        return seen

    def _failed(self, outcome: Outcome, answer: CheckAnswer, begin: str) -> Checked:
        """Return this answer, or a harness failure, for a float32 error on either side."""
        self.evidence.append(unjudged(outcome, Precision.FLOAT32))
        if outcome.harness:
            return self._say(CheckAnswer.HARNESS, outcome.reason, detail=outcome.detail)
        words, text = explain_error(outcome), self.file.text
        line = next(iter(find_lines(outcome, text, self.file.path.name)), 0)
        code = text.splitlines()[line - 1] if line else ""
        found = (CheckFinding("error", words, line=line, code=code),)
        return self._say(answer, f"{begin}: {words}", findings=found, detail=outcome.detail)

    def _compared(self, seen: Values, mine: Values, precision: Precision) -> Compared:
        names = returned_names.read(seen)
        self.prompt_ids = tuple(map(tuple, compare.prompt_ids(seen)))
        compared = FileReference(seen).judge(mine, precision, names, self.file.order_of)
        self.evidence.append(compare.evidence_of(compared, precision, names))
        return compared

    def _judged(self, seen: Values, mine: Values) -> Checked:
        """Return the answer from float32, and from bf16 if float32 agrees."""
        compared = self._compared(seen, mine, Precision.FLOAT32)
        meaning, names = compared.judgement, returned_names.read(seen)
        self.words = {
            "notes": compared.notes,
            "meaning": f"{meaning.verdict}: {meaning.reason}",
            "error": max((one.error or 0.0 for one in meaning.observations), default=0.0),
        }
        noted = [
            f"{few((f'`{names.whole(site)}`' for site in sites), _NAMED)}: {words}"
            for reason, words in _UNCLEAR.items()
            if (sites := [Site.parse(o.site) for o in meaning.observations if o.message == reason])
        ]
        if meaning.harness:
            answer = CheckAnswer.INVALID if noted else CheckAnswer.HARNESS
            return self._say(answer, "; ".join(noted) or meaning.reason)
        line = self.file.first_write()
        if line and not written(seen):
            noted.append(
                f"line {line} writes, and every layer is what it is without: on transformers, too, "
                "nothing of it arrives (a copy is changed, and never put back)"
            )
        blank, alone = compare.zeros(seen)
        called = ", ".join(f"`{names.of(site)}`" for site in blank[:_NAMED])
        if blank and compared.passes and not alone:
            noted.append(f"{called} is 0 on transformers: it shows nothing")
        found: tuple[CheckFinding, ...] = ()
        if not compared.passes:
            layer_list = str(identity(self.run, self.model).get("layer_list", ""))
            found = describe_difference(seen, mine, meaning, layer_list).findings
            noted += [_FILLED] if any(one.kind == "missing" for one in found) else []
        self.words["notes"] = (*compared.notes, *noted)
        if not compared.passes:
            sentence = f"not the same: {found[0].words if found else meaning.reason}"
            return self._say(CheckAnswer.DIFFERS, sentence, findings=found)
        if alone:
            sentence = (
                f"nothing can be seen by it: {called} is 0 on transformers too (is the same token "
                "taken twice?). Return something that the trace moves"
            )
            return self._say(CheckAnswer.INVALID, sentence)
        return self._numerics(seen)

    def _numerics(self, seen: Values) -> Checked:
        """Return the answer from bf16, for a trace that agrees in float32."""
        folder = gathered_in(self.backend.id, Precision.BF16)
        outcome = self._outcome(folder)
        if outcome.status is not Status.OK:
            self.evidence.append(unjudged(outcome, Precision.BF16))
            sentence = f"the same in float32, and in bf16 it fails: {outcome.reason}"
            return self._say(CheckAnswer.FAILS, sentence, detail=outcome.detail)
        compared = self._compared(seen, self._seen(folder), Precision.BF16)
        numbers = compared.judgement
        self.words["numerics"] = f"{numbers.verdict}: {numbers.reason}"
        if compared.passes:
            words = "the same: float32 agrees to rounding, and bf16 is as near as transformers' own"
            return self._say(CheckAnswer.SAME, words)
        if numbers.harness:
            words = "bf16 could not be judged, as transformers' own bf16 runs do not fit together"
            sentence = f"the same in float32; {words}: {numbers.reason}"
            return self._say(CheckAnswer.NUMERICS, sentence)
        if compare.numerics_only(numbers):
            words = "the same but for numerics: float32 agrees to rounding; in bf16"
            return self._say(CheckAnswer.NUMERICS, f"{words} {numbers.reason}")
        sentence = f"the same in float32, and far off in bf16: {numbers.reason}"
        findings = (CheckFinding("bf16", f"in bf16 {numbers.reason}"),)
        return self._say(CheckAnswer.DIFFERS, sentence, findings=findings)
