"""What a candidate is compared with: the reference of its case, along its own tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from conformance.campaign import FORCED, REFERENCE
from conformance.continuations import by_member, continuation, differing
from conformance.records import Case, Site, Status
from conformance.store import RunFolder


@dataclass(frozen=True, eq=False)
class Truth:
    """The reference's observations of one case: by member and site, and the prompts' ids."""

    members: Mapping[str, Mapping[str, Tensor]]
    prompt_ids: tuple[tuple[int, ...], ...]


class Truths:
    """The references of one case of one model. Every column is judged by them, so they are
    read once; the same object is given to columns that generated the same tokens.
    """

    def __init__(self, run: RunFolder, model: str, case: Case) -> None:
        self.run = run
        self.model = model
        self.case = case
        self._known: dict[str, Truth | str] = {}

    def along(self, observed: Mapping[str, Tensor]) -> Truth | str:
        """The reference along this candidate's own tokens, or in words why there is none.

        A run in which the candidate chose other tokens is taken from the reference that was
        held to them. Where that is absent the plain one stays, and the judge says so.
        """
        plain = self._read(REFERENCE.id, self.case)
        if isinstance(plain, str):
            return plain
        prompts = len(self.case.prompts)
        other = differing(
            continuation(observed, prompts), continuation(plain.members["truth"], prompts)
        )
        if not other:
            return plain
        along = replace(self.case, forced=other)
        if along.key not in self._known:
            forced = self._read(FORCED.id, along)
            self._known[along.key] = (
                plain if isinstance(forced, str) else merged(plain, forced, set(other))
            )
        return self._known[along.key]

    def _read(self, backend: str, case: Case) -> Truth | str:
        key = f"{backend}/{case.key}"
        if key not in self._known:
            outcome = self.run.outcome(self.model, backend, case.key)
            if outcome is None or outcome.status is not Status.OK:
                words = outcome.reason if outcome else "it did not run"
                self._known[key] = f"nothing to compare with: the reference failed: {words}"
            else:
                values = self.run.observations(self.model, backend, case.key)
                self._known[key] = Truth(by_member(values), outcome.prompt_ids)
        return self._known[key]


def merged(plain: Truth, forced: Truth, runs: Collection[str]) -> Truth:
    """The plain reference with some of its runs taken from a forced one."""
    members = {
        name: {site: value for site, value in values.items() if Site.parse(site).run not in runs}
        | dict(forced.members.get(name, {}))
        for name, values in plain.members.items()
    }
    return Truth(members, plain.prompt_ids)
