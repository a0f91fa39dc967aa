"""The reference that a candidate is compared with, along the candidate's tokens and experts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

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


class ReferenceReader:
    """The references of one case of one model in one `precision`.

    They are read once, and columns that generated the same tokens share an object. `has_edit`: the
    case has a clean and an edited run. `before` is another case, whose noise floors are reused
    where the observations are equal.
    """

    def __init__(
        self,
        run: RunFolder,
        model: str,
        case: Case,
        *,
        has_edit: bool,
        precision: Precision,
        before: ReferenceReader | None = None,
    ) -> None:
        self.precision = precision
        self.run = run
        self.model = model
        self.case = case
        self.has_edit = has_edit
        self._lender = before.lender() if before else None
        self._known: dict[str, CaseReference | str] = {}

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
            runs = (
                {Site.parse(name).run for name in reference} if along.along else set(along.forced)
            )
            found = self._observed(FORCED.id, along)
            if not isinstance(found, str):
                members = merge_references(plain.members, found[0], runs)
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


def merge_references(
    plain: Mapping[str, Mapping[str, Tensor]],
    forced: Mapping[str, Mapping[str, Tensor]],
    runs: Collection[str],
) -> dict[str, dict[str, Tensor]]:
    """Return the plain reference with some of its runs taken from a forced one."""
    return {
        name: {site: value for site, value in values.items() if Site.parse(site).run not in runs}
        | dict(forced.get(name, {}))
        for name, values in plain.items()
    }


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
    return {
        site: _subtract(value, reference.get(site), defined.get(site))
        for site, value in candidate.items()
    }


def _subtract(value: Tensor, reference: Tensor | None, defined: Tensor | None) -> Tensor:
    if reference is None or defined is None or not value.shape == reference.shape == defined.shape:
        return value
    if is_text(value) or not (value.is_floating_point() and reference.is_floating_point()):
        same = value.dtype == reference.dtype == defined.dtype
        return reference if same and bool((value == defined).all()) else value
    return (value.double() - (defined.double() - reference.double())).to(value.dtype)
