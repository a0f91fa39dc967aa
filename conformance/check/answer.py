"""The answer to a check: the same, the same but for numerics, or what differs and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from torch import Tensor

from conformance.check.checked import Answer, Checked
from conformance.check.describe import describe_difference, written
from conformance.check.error_lines import find_line
from conformance.check.error_meanings import explain_error
from conformance.check.finding import Edit, Finding
from conformance.check.gather import HF, TRUTH, Asked
from conformance.check.search.edits import Found
from conformance.check.search.suggest import suggested
from conformance.check.source import UserFile
from conformance.check.values import compare, naming
from conformance.check.values.compare import Compared, Values
from conformance.errors import ConformanceError
from conformance.judge.reference import HONEST_RUNS_DIFFER, NO_NUMBER
from conformance.judging_runs.one_case import UNJUDGED
from conformance.planning.jobs import BUILD
from conformance.records import Answer as Evidence
from conformance.records import (
    Backend,
    Outcome,
    Precision,
    Site,
    Status,
    Thresholds,
)
from conformance.shortening import few
from conformance.store import RunFolder, gathered_in

#: So many values are named in a note.
_NAMED = 4

#: Of values that no verdict is possible on: how they come about, by the judge's reason.
_UNCLEAR = {
    HONEST_RUNS_DIFFER: (
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


@dataclass(frozen=True)
class Answered:
    """An answer and what it rests on: the judge's, in each precision that was judged."""

    checked: Checked
    key: str
    evidence: tuple[Evidence, ...] = ()
    prompt_ids: tuple[tuple[int, ...], ...] = ()


def answers(
    asked: Asked,
    run: RunFolder,
    thresholds: Thresholds,
    tell: Callable[[str], None] = lambda _: None,
    found: Sequence[Found] = (),
    given: Mapping[tuple[str, str], Answered] = MappingProxyType({}),
) -> Iterator[Answered]:
    """Yield the answer for every file on every engine, from what the workers left, with what a
    search `found`. `tell` hears what is being worked out. Answers that are `given`, by file and
    engine, are not worked out again.
    """
    for file in asked.files:
        others: list[Answered] = []
        for backend in asked.backends or (HF,):
            if backend != HF:
                tell(f"comparing {file.name} on {backend.id}")
            answered = given.get((file.name, backend.id)) or answer(
                asked, run, file, backend, thresholds
            )
            result = next(
                (one for one in found if (one.file, one.backend) == (file.name, backend.id)), None
            )
            told = suggested(file, answered.checked, result, [one.checked for one in others])
            answered = replace(answered, checked=told)
            others.append(answered)
            yield answered


def answer(
    asked: Asked, run: RunFolder, file: UserFile, backend: Backend, thresholds: Thresholds
) -> Answered:
    """Return what is to be said of one file on one engine, without any edit."""
    return _Case(asked, run, file, backend, thresholds).answered()


class _Case:
    """One file on one engine, while its answer is found."""

    def __init__(
        self, asked: Asked, run: RunFolder, file: UserFile, backend: Backend, thresholds: Thresholds
    ) -> None:
        self.asked = asked
        self.run = run
        self.file = file
        self.backend = backend
        self.thresholds = thresholds
        self.key = f"check.{file.name}"
        self.evidence: list[Evidence] = []
        self.prompt_ids: tuple[tuple[int, ...], ...] = ()

    def _say(self, answer: Answer, sentence: str, **more: object) -> Checked:
        names = str(self.file.path), self.asked.model.id, self.backend.id
        return Checked(*names, answer, sentence, **more)  # type: ignore[arg-type]

    def _outcome(self, folder: str) -> Outcome:
        model = self.asked.model.id
        found = self.run.outcome(model, folder, self.key)
        if found is not None:
            return found
        group = self.run.group(model, folder)
        reason = group.reason if group and group.reason else "it was not run"
        return Outcome(Status.MISSING, reason=reason, harness=group is None)

    def _there(self, precision: Precision) -> str:
        """The folder of what the engine gathered."""
        return gathered_in(self.backend.id, precision)

    def _seen(self, folder: str) -> dict[str, Tensor]:
        """What was observed there. Raises ConformanceError where its values' names are damaged."""
        model = self.asked.model.id
        seen = self.run.observations(model, folder, self.key)
        try:
            naming.read(seen)
        except ValueError as error:
            raise ConformanceError(
                f"no observations can be read: {error}",
                path=self.run.group_folder(model, folder).cell(self.key),
                remedy=f"check it again: {self.asked.command}",
            ) from error
        return seen

    def answered(self) -> Answered:
        """The answer, and what it rests on."""
        checked = self._checked()
        return Answered(checked, self.file.name, tuple(self.evidence), self.prompt_ids)

    def _ended(self, outcome: Outcome, precision: Precision) -> None:
        """Keep how a run of the file ended that is not to be judged."""
        verdict = UNJUDGED[outcome.status]
        self.evidence.append(
            Evidence(
                precision,
                verdict,
                outcome.reason,
                outcome.seconds,
                detail=outcome.detail,
                harness=outcome.harness,
                frames=outcome.frames,
            )
        )

    def _checked(self) -> Checked:
        built = self.run.group(self.asked.model.id, BUILD.id)
        if built is not None and built.status is not Status.OK:
            return self._say(Answer.INVALID, f"the model cannot be had: {built.reason}")
        truth = self._outcome(TRUTH.id)
        if truth.status is not Status.OK:
            self._ended(truth, Precision.FLOAT32)
            return self._not_on_transformers(truth)
        if self.backend == HF:
            return self._say(Answer.SAME, "runs on transformers; no engine was asked for")
        if self.file.lacks_a_port:
            words = "has `hf(model)` alone: there is no `vllm(model)` to compare it with"
            return self._say(Answer.INVALID, words)
        meaning = self._outcome(self._there(Precision.FLOAT32))
        seen = self._seen(TRUTH.id)
        if meaning.status is not Status.OK:
            self._ended(meaning, Precision.FLOAT32)
            return self._not_there(meaning)
        mine = self._seen(self._there(Precision.FLOAT32))
        return self._other_names(seen, mine) or self._judged(seen, mine)

    def _not_on_transformers(self, outcome: Outcome) -> Checked:
        if outcome.harness:
            return self._say(Answer.HARNESS, outcome.reason, detail=outcome.detail)
        words = explain_error(outcome, there=False)
        sentence = f"does not run on transformers itself: {words}"
        findings = self._at(outcome, words)
        return self._say(Answer.INVALID, sentence, findings=findings, detail=outcome.detail)

    def _not_there(self, outcome: Outcome) -> Checked:
        if outcome.harness:
            return self._say(Answer.HARNESS, outcome.reason, detail=outcome.detail)
        words = explain_error(outcome, there=True)
        refused = outcome.status is Status.UNSUPPORTED
        answer = Answer.UNSUPPORTED if refused else Answer.FAILS
        sentence = f"runs on transformers and not on {self.backend.id}: {words}"
        findings = self._at(outcome, words)
        return self._say(answer, sentence, findings=findings, detail=outcome.detail)

    def _at(self, outcome: Outcome, words: str) -> tuple[Finding, ...]:
        """The line at which an error came, where it is known."""
        line = find_line(outcome, self.file.text, self.file.path.name)
        edit = Edit(line, self.file.line(line)) if line else None
        return (Finding("error", words, edit=edit),)

    def _other_names(self, seen: Values, mine: Values) -> Checked | None:
        truth = compare.honest(seen, Precision.FLOAT32)["truth"]
        ours = {Site.parse(one).name for one in compare.returned(mine)}
        theirs = {Site.parse(one).name for one in truth}
        if ours == theirs:
            return None
        names = naming.read(seen)
        only = [f"`vllm` alone returns {', '.join(sorted(ours - theirs))}"] if ours - theirs else []
        if lost := [f"`{names.named(one)}`" for one in sorted(theirs - ours)]:
            only.append(f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing from vLLM")
        words = f"not the same: {'; '.join(only)}"
        empty = "a list or dict that a block fills comes back where the block makes and saves it"
        finding = Finding("missing", empty)
        return self._say(Answer.DIFFERS, words, findings=(finding,))

    def _compared(self, seen: Values, mine: Values, precision: Precision) -> Compared:
        theirs = compare.prompt_ids(compare.layers(seen))
        ours = compare.prompt_ids(compare.layers(mine))
        self.prompt_ids = tuple(map(tuple, theirs))
        truth = compare.read_truth(compare.honest(seen, precision), precision)
        names = naming.read(seen)
        compared = compare.compare(
            compare.returned(mine),
            truth,
            (ours, theirs),
            self.thresholds,
            names,
            self.file.order_of,
            compare.token_rows(seen, self.file.is_stacked),
        )
        self.evidence.append(compare.evidence_of(compared, precision, names))
        return compared

    def _judged(self, seen: Values, mine: Values) -> Checked:
        meaning = self._compared(seen, mine, Precision.FLOAT32)
        words: dict[str, object] = {
            "notes": meaning.notes,
            "meaning": f"{meaning.judgement.verdict}: {meaning.judgement.reason}",
            "error": max((one.error or 0.0 for one in meaning.judgement.observations), default=0.0),
        }
        unclear = compare.undetermined(meaning.judgement, naming.read(seen))
        noted = tuple(
            f"{few((f'`{name}`' for name in called), _NAMED)}: {_UNCLEAR[reason]}"
            for reason, called in unclear.items()
        )
        if noted and meaning.judgement.harness:
            return self._say(Answer.INVALID, "; ".join(noted), **words)
        if meaning.judgement.harness:
            return self._say(Answer.HARNESS, meaning.judgement.reason, **words)
        words["notes"] = said = (*meaning.notes, *noted, *self._without_effect(seen))
        if not meaning.passes:
            told = describe_difference(seen, mine, meaning.judgement, self._layer_list()).findings
            first = told[0].words if told else meaning.judgement.reason
            return self._say(Answer.DIFFERS, f"not the same: {first}", findings=told, **words)
        blank, alone = compare.zeros(seen)
        names = naming.read(seen)
        called = ", ".join(f"`{names.of(site)}`" for site in blank[:_NAMED])
        if alone:
            sentence = (
                f"nothing can be seen by it: {called} is 0 on transformers too (is the same token "
                "taken twice?). Return something that the trace moves"
            )
            return self._say(Answer.INVALID, sentence, **words)
        if blank:
            words["notes"] = (*said, f"{called} is 0 on transformers: it shows nothing")
        return self._numerics(seen, words)

    def _without_effect(self, seen: Values) -> tuple[str, ...]:
        """What both sides agree on as nothing of it arrives."""
        line = self.file.first_write()
        if not line or written(seen):
            return ()
        words = (
            f"line {line} writes, and every layer is what it is without: on transformers, too, "
            "nothing of it arrives (a copy is changed, and never put back)"
        )
        return (words,)

    def _layer_list(self) -> str:
        """Where transformers' model has its layers."""
        group = self.run.group(self.asked.model.id, TRUTH.id)
        return str(group.identity.get("layer_list", "")) if group else ""

    def _numerics(self, seen: Values, words: Mapping[str, object]) -> Checked:
        """float32 has shown the same meaning: what do the numbers do that people compute with?"""
        there = self._there(Precision.BF16)
        outcome = self._outcome(there)
        if outcome.status is not Status.OK:
            self._ended(outcome, Precision.BF16)
            sentence = f"the same in float32, and in bf16 it fails: {outcome.reason}"
            return self._say(Answer.FAILS, sentence, detail=outcome.detail, **words)
        numbers = self._compared(seen, self._seen(there), Precision.BF16)
        said = f"{numbers.judgement.verdict}: {numbers.judgement.reason}"
        words = {**words, "numerics": said}
        if numbers.passes:
            sentence = (
                "the same: float32 agrees to rounding, and bf16 is as near as transformers' own"
            )
            return self._say(Answer.SAME, sentence, **words)
        if numbers.judgement.harness:
            sentence = (
                "the same in float32; bf16 could not be judged, as transformers' own bf16 runs do "
                f"not fit together: {numbers.judgement.reason}"
            )
            return self._say(Answer.NUMERICS, sentence, **words)
        if compare.numerics_only(numbers.judgement):
            sentence = (
                "the same but for numerics: float32 agrees to rounding; in bf16 "
                f"{numbers.judgement.reason}"
            )
            return self._say(Answer.NUMERICS, sentence, **words)
        reason = numbers.judgement.reason
        sentence = f"the same in float32, and far off in bf16: {reason}"
        finding = Finding("bf16", f"in bf16 {reason}")
        return self._say(Answer.DIFFERS, sentence, findings=(finding,), **words)
