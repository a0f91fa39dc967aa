"""Versions of a file as cases of a check's run, their results, and the distance from agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from torch import Tensor

from conformance.commands.check.values import compare
from conformance.commands.check.values.compare import UNNAMED, Compared, PrecisionReference, Values
from conformance.commands.check.values.divergence import compare_rows
from conformance.commands.check.values.returned_names import Names
from conformance.runner.store import RunFolder
from conformance.spec.builtin.user_trace import case_of
from conformance.spec.records import Case, Outcome, Precision, Site, Status

#: A sort key, the best first: whether the version agrees, differs or raises; then, if it differs,
#: the differences, the layers' depth of agreement and the distance, or, if it raises, the number of
#: lines after the last and after the innermost line of the error.
Score = tuple[float, ...]

_AGREES, _DIFFERS, _RAISES = 0.0, 1.0, 2.0

#: The lines after an error that was raised by no line of the file, so before all of them.
_ABOVE = 1_000


@dataclass(frozen=True)
class Place:
    """The run folder, model and prompts of a check, in which versions of its files run."""

    run: RunFolder
    model: str
    prompts: tuple[str, ...]
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def tries(self) -> Path:
        """The folder for the versions of files."""
        return self.run.path / "tries"

    def job(self, folder: str) -> str:
        """Return the id of the job that writes to a folder."""
        return f"{self.model}:{folder}"

    def case(self, text: str, name: str, function: str, original: Path) -> Case:
        """Write `text` as a variant of `original`; return a case that runs one of its functions."""
        number = next(self._numbers)
        path = self.tries / str(number) / original.name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        return case_of(f"{name}~{number}", path, function, self.prompts, original=original)

    def outcome(self, folder: str, key: str) -> Outcome:
        """Return the outcome of a case."""
        found = self.run.outcome(self.model, folder, key)
        return found or Outcome(Status.MISSING, reason="not run")

    def seen(self, folder: str, key: str) -> dict[str, Tensor]:
        """Return the observations of a case."""
        return self.run.observations(self.model, folder, key)


@dataclass(frozen=True)
class Tried:
    """A version that ran. `mine` are the engine's observations, empty after an error."""

    text: str
    outcome: Outcome
    score: Score
    compared: Compared | None = None
    mine: Values = field(default_factory=dict)
    lines: tuple[int, ...] = ()

    @property
    def agreeing(self) -> Score:
        """The score without the distance."""
        return self.score[:-1] if self.score[0] == _DIFFERS else self.score

    @property
    def agrees(self) -> bool:
        return self.score[0] == _AGREES


@dataclass(frozen=True)
class FileReference:
    """The observations of a file on transformers, with a cache of what is computed from them."""

    seen: Values
    _by_precision: dict[Precision, PrecisionReference] = field(default_factory=dict)

    def in_precision(self, precision: Precision) -> PrecisionReference:
        """Return transformers' runs for comparisons in one precision."""
        if precision not in self._by_precision:
            members = compare.select_runs(self.seen, precision)
            self._by_precision[precision] = compare.build_reference(members, precision)
        return self._by_precision[precision]

    def judge(
        self,
        mine: Values,
        precision: Precision,
        names: Names = UNNAMED,
        order: Callable[[Site], tuple[int, ...]] = lambda _: (),
    ) -> Compared:
        """Compare an engine's observations with transformers', in one precision."""
        ids = compare.prompt_ids(mine), compare.prompt_ids(self.seen)
        reference = self.in_precision(precision)
        return compare.compare(compare.returned(mine), reference, ids, names, order)

    def try_of(
        self,
        text: str,
        outcome: Outcome,
        mine: Values,
        precision: Precision,
        lines: tuple[int, ...] = (),
    ) -> Tried:
        """Return the result of a version with this outcome; `lines` are those that raised."""
        if outcome.status is not Status.OK:
            if lines:
                behind = [text.count("\n") - line for line in (max(lines), lines[0])]
            elif outcome.status in {Status.CRASH, Status.TIMEOUT}:
                behind = [0]  # nobody knows where it ended: an error at any line may come before it
            else:
                behind = [_ABOVE]
            return Tried(text, outcome, (_RAISES, *map(float, behind)), lines=lines)
        missing = self.missing(mine)
        compared = self.judge(mine, precision)
        drifts = precision is Precision.BF16 and compare.numerics_only(compared.judgement)
        if (compared.passes or drifts) and not missing:
            return Tried(text, outcome, (_AGREES,), compared, mine)
        off = [one for one in compared.judgement.observations if not one.verdict.passes]
        distance = self._distance(mine) if precision is Precision.FLOAT32 else 0.0
        wrong = len(missing) * 2 + len({Site.parse(one.site).name for one in off})
        score = (_DIFFERS, float(wrong), float(len(off)), -self._depth(mine), round(distance, 1))
        return Tried(text, outcome, score, compared, mine)

    def missing(self, mine: Values) -> set[str]:
        """Return the names that only one side returns."""
        reference = self.in_precision(Precision.FLOAT32).members["truth"]
        theirs = {Site.parse(site).name for site in reference}
        return theirs ^ {Site.parse(site).name for site in compare.returned(mine)}

    def _depth(self, mine: Values) -> float:
        """Return how many layers agree, over all steps, plus the next layer's share of tokens."""
        ours, theirs = compare.layers(mine), compare.layers(self.seen)
        streams = sorted(
            (site for site in theirs if site.name == "stream"),
            key=lambda site: (site.step, site.prompt, site.layer or 0),
        )
        for number, site in enumerate(streams):
            mine_there, share = ours.get(site), 0.0
            if mine_there is not None and mine_there.shape == theirs[site].shape:
                share = float((~compare_rows(mine_there, theirs[site])).double().mean())
            if share < 1:
                return number + round(share, 3)
        return float(len(streams))

    def _distance(self, mine: Values) -> float:
        """Return the sum of the values' relative distances, each at most 2."""
        runs = self.in_precision(Precision.FLOAT32).members
        alike, _ = compare.made_alike(compare.returned(mine), runs)
        off = (
            compare.distance(alike[site], reference) if site in alike else None
            for site, reference in runs["truth"].items()
        )
        return sum(2.0 if one is None else min(one, 2.0) for one in off)


def have_same_reference(one: Values, other: Values) -> bool:
    """Return whether two versions of a file return the same values on transformers."""
    first, second = (compare.select_runs(each, Precision.FLOAT32)["truth"] for each in (one, other))
    return first.keys() == second.keys() and all(
        compare.is_alike(value, second[site]) for site, value in first.items()
    )
