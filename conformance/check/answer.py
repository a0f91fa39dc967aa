"""The answer to a check: the same, the same but for numerics, or what differs and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from conformance.check.advice.errors import failures
from conformance.check.advice.errors.failures import Failed
from conformance.check.advice.finding import as_python
from conformance.check.advice.findings import findings, written
from conformance.check.advice.writes.precisions import widened
from conformance.check.checked import Answer, Checked
from conformance.check.gather import HF, TRUTH, Asked
from conformance.check.parsing.computing_order import computing_order
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.source import UserFile
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
) -> Iterator[Answered]:
    """What is to be said of every file on every engine, from what the workers left: each as soon
    as it is known. `tell` hears what is being worked out.
    """
    for file in asked.files:
        for backend in asked.backends or (HF,):
            if backend != HF:
                tell(f"comparing {file.name} on {backend.id}")
            yield _Case(asked, run, file, backend, thresholds).answered()


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
        checked = Checked(*names, answer, sentence, **more)  # type: ignore[arg-type]
        return replace(checked, findings=as_python(self.file.text, checked.findings))

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
        function = self.file.function_for("hf")
        told = failures.explain(Failed(outcome, self.file, function, layer_list=self._layer_list()))
        sentence = f"does not run on transformers itself: {told.words}"
        return self._say(Answer.INVALID, sentence, findings=told.findings, detail=outcome.detail)

    def _not_there(self, outcome: Outcome) -> Checked:
        if outcome.harness:
            return self._say(Answer.HARNESS, outcome.reason, detail=outcome.detail)
        dual = self._dual() and self.file.ported
        function = self.file.function_for("vllm")
        told = failures.explain(
            Failed(outcome, self.file, function, True, dual, self._layer_list(), self._flat())
        )
        refused = outcome.status is Status.UNSUPPORTED
        answer = Answer.UNSUPPORTED if refused else Answer.FAILS
        sentence = f"runs on transformers and not on {self.backend.id}: {told.words}"
        return self._say(answer, sentence, findings=told.findings, detail=outcome.detail)

    def _other_names(self, seen: Values, mine: Values) -> Checked | None:
        truth = compare.honest(seen, Precision.FLOAT32)["truth"]
        ours = {Site.parse(one).name for one in compare.returned(mine)}
        theirs = {Site.parse(one).name for one in truth}
        if ours == theirs:
            return None
        function = self.file.function_for("vllm")
        names = naming.read(seen)
        called = {one: names.named(one) for one in sorted(theirs - ours)}
        told = failures.emptied(self.file, function, called)
        if told is not None:
            words = f"not the same: {told.words}"
            return self._say(Answer.DIFFERS, words, findings=told.findings)
        if not self.file.ported:
            return None
        only = [f"`vllm` alone returns {', '.join(sorted(ours - theirs))}"] if ours - theirs else []
        if theirs - ours:
            only.append(f"`hf` alone returns {', '.join(called.values())}")
        words = f"the two functions return other names: {'; '.join(only)}. Let both return the same"
        return self._say(Answer.INVALID, words)

    def _compared(self, seen: Values, mine: Values, precision: Precision) -> Compared:
        theirs = compare.prompt_ids(compare.layers(seen))
        ours = compare.prompt_ids(compare.layers(mine))
        self.prompt_ids = tuple(map(tuple, theirs))
        reference = compare.honest(seen, precision)
        names = naming.read(seen)
        text = Places(self.file, self.file.function_for("hf"))
        compared = compare.compare(
            compare.returned(mine),
            reference,
            (ours, theirs),
            self.thresholds,
            precision,
            names,
            computing_order(text),
            compare.token_rows(seen, text.stacked),
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
            told = findings(
                self.file,
                seen,
                mine,
                meaning.judgement,
                self._layer_list(),
                dual=self._dual(),
                flat=self._flat(),
            )
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
        places = Places(self.file, self.file.function_for("hf"))
        lines = [one.line for one in places.writes() if one.layer is not None]
        if not lines or written(seen):
            return ()
        words = (
            f"line {lines[0]} writes, and every layer is what it is without: on transformers, too, "
            "nothing of it arrives (a copy is changed, and never put back)"
        )
        return (words,)

    def _layer_list(self) -> str:
        """Where transformers' model has its layers."""
        group = self.run.group(self.asked.model.id, TRUTH.id)
        return str(group.identity.get("layer_list", "")) if group else ""

    def _dual(self) -> bool:
        """Do the engine's layers return a stream in two halves?"""
        group = self.run.group(self.asked.model.id, self._there(Precision.FLOAT32))
        return group is not None and group.layout == "dual"

    def _flat(self) -> bool:
        """Is it known that the engine's activations have no batch axis, and its layers no tuple but
        that of two halves?
        """
        group = self.run.group(self.asked.model.id, self._there(Precision.FLOAT32))
        return group is not None and group.layout in {"single", "dual"}

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
        if compare.numerics_only(numbers.judgement, self.thresholds):
            sentence = (
                "the same but for numerics: float32 agrees to rounding; in bf16 "
                f"{numbers.judgement.reason}"
            )
            return self._say(Answer.NUMERICS, sentence, **words)
        told = widened(self.file, self._seen(there))
        reason = told[0].words if told else numbers.judgement.reason
        sentence = f"the same in float32, and far off in bf16: {reason}"
        return self._say(Answer.DIFFERS, sentence, findings=told, **words)
