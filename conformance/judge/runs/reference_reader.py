"""The reference that a candidate is compared with, along the candidate's tokens and experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace

from torch import Tensor

from conformance.judge.cell.measures.structure import is_text
from conformance.judge.cell.reference import ReferenceRuns, read_reference
from conformance.runner.planning.jobs import FORCED, REFERENCE
from conformance.runner.store import RunFolder
from conformance.spec.along_candidate import case_along
from conformance.spec.generated_tokens import by_member
from conformance.spec.records import DEFINITION, SAMPLED, Case, Precision, Site, Status

#: Observations of one run, by site.
Values = Mapping[str, Tensor]
#: Observations by member and site, and the token ids of the prompts.
Observed = tuple[dict[str, dict[str, Tensor]], tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, eq=False)
class CaseReference:
    """The reference's observations of one case: by member and site, and the prompts' ids.

    `reference` holds the same, prepared for judging, and caches noise floors. `lacking` says why it
    was not run along the candidate's tokens although it should have been.
    """

    members: Mapping[str, Mapping[str, Tensor]]
    reference: ReferenceRuns
    prompt_ids: tuple[tuple[int, ...], ...]
    lacking: str = ""


@dataclass(eq=False)
class ReferenceReader:
    """The references of one case of one model in one `precision`.

    They are read once, and columns that generated the same tokens share an object. `has_edit`: the
    case has a clean and an edited run. `before` is another case, whose noise floors are reused
    where the observations are equal.
    """

    run: RunFolder
    model: str
    case: Case
    before: InitVar[ReferenceReader | None] = None
    has_edit: bool = field(kw_only=True)
    precision: Precision = field(kw_only=True)
    _known: dict[str, CaseReference | str] = field(default_factory=dict, init=False)

    def __post_init__(self, before: ReferenceReader | None) -> None:
        self._lender = before.lender() if before else None

    def along(self, observed: Mapping[str, Tensor]) -> CaseReference | str:
        """Return the reference along this candidate's own tokens and experts, or why there is none.

        The runs in which the candidate chose other tokens, or all runs if experts may differ, come
        from the reference along them. If other tokens were not followed, the plain reference is
        used, and the judge says so.
        """
        plain = self._plain()
        if isinstance(plain, str):
            return plain
        along = case_along(self.case, observed, plain.members, self.precision)
        if along.key == self.case.key:
            return plain
        if along.key not in self._known:
            reference = plain.members["truth"]
            every = {Site.parse(name).run for name in reference}
            runs = every if along.along else set(along.forced)
            found = self._observed(FORCED.id, along)
            if not isinstance(found, str):
                members = {
                    name: {
                        site: value
                        for site, value in own.items()
                        if Site.parse(site).run not in runs
                    }
                    | found[0].get(name, {})
                    for name, own in plain.members.items()
                }
                self._known[along.key] = self._made(members, plain.prompt_ids, free=reference)
            elif along.along:
                words = "the reference was not run along the candidate's experts"
                self._known[along.key] = f"{words}: {found}"
            else:
                self._known[along.key] = replace(plain, lacking=found)
        return self._known[along.key]

    def lender(self) -> ReferenceRuns | None:
        """Return the plain reference if it could be read."""
        plain = self._known.get(REFERENCE.id)
        return plain.reference if isinstance(plain, CaseReference) else None

    def _plain(self) -> CaseReference | str:
        if REFERENCE.id not in self._known:
            plain = self._observed(REFERENCE.id, self.case)
            self._known[REFERENCE.id] = plain if isinstance(plain, str) else self._made(*plain)
        return self._known[REFERENCE.id]

    def _made(
        self,
        members: Mapping[str, Mapping[str, Tensor]],
        prompt_ids: tuple[tuple[int, ...], ...],
        free: Mapping[str, Tensor] | None = None,
    ) -> CaseReference | str:
        group = self.run.group(self.model, REFERENCE.id)
        identity = group.identity if group else {}
        reference = read_reference(
            members,
            has_edit=self.has_edit,
            precision=self.precision,
            mixture=bool(identity.get("routers")),
            width=int(identity.get("width", 0)),
            free=free,
            stream=float(identity.get("stream", 0.0)),
        )
        if isinstance(reference, str):
            return f"the reference cannot be used: {reference}"
        if (lender := self.lender() or self._lender) is not None:
            reference.borrow(lender)
        return CaseReference(members, reference, prompt_ids)

    def drawn(self) -> bool:
        """Return whether the case's ids are sampled: then the reference chose its own likeliest."""
        plain = self._plain()
        if isinstance(plain, str):
            return False
        reference = plain.members["truth"]
        pairs = [
            (value, reference[logits])
            for name, value in reference.items()
            if (site := Site.parse(name)).name == SAMPLED
            and (logits := str(replace(site, name="logits"))) in reference
        ]
        return bool(pairs) and all(int(logits.argmax()) == int(ids) for ids, logits in pairs)

    def _observed(self, backend: str, case: Case) -> Observed | str:
        outcome = self.run.outcome(self.model, backend, case.key)
        if outcome is None or outcome.status is not Status.OK:
            words = outcome.reason if outcome else "it did not run"
            return f"nothing to compare with: the reference failed: {words}"
        return by_member(self.run.observations(self.model, backend, case.key)), outcome.prompt_ids


def find_definitions(members: Mapping[str, Values]) -> dict[str, Values]:
    """Return the observations of each definition of the model in `members`, by its name."""
    return {
        name.removeprefix(DEFINITION): values
        for name, values in members.items()
        if name.startswith(DEFINITION)
    }


def subtract_definition(candidate: Values, reference: Values, defined: Values) -> dict[str, Tensor]:
    """Subtract from the candidate what a definition of the model adds to the reference.

    The remainder is judged as strictly as ever: values, gains and leaks.
    """
    rest = dict(candidate)
    for site in candidate.keys() & reference.keys() & defined.keys():
        value, right, other = candidate[site], reference[site], defined[site]
        if not value.shape == right.shape == other.shape:
            continue
        if not is_text(value) and value.is_floating_point() and right.is_floating_point():
            rest[site] = (value.double() - (other.double() - right.double())).to(value.dtype)
        elif value.dtype == right.dtype == other.dtype and bool((value == other).all()):
            rest[site] = right
    return rest
