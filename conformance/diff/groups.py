"""What changed about a model on a backend as a whole: its layout, who it was, its costs (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.records import Group, Precision, Results, record

#: Of what a worker says of itself, what describes the weights, not the backend.
_NOT_COMPARED = frozenset({"digest", "source", "members", "float32_disagreement", "served_by_pid"})

#: Workers that are no column.
_NO_COLUMN = frozenset({"reference", "reference-forced", "build"})

#: Smaller differences than these are the machine's mood.
_SECONDS, _MIB = 1.0, 64.0


@record()
class GroupChange:
    """One fact of a model on a backend: `what` was `before` and is `after`."""

    model: str
    backend: str
    what: str
    before: str
    after: str


@record()
class Cost:
    """Seconds or MiB of one model on one backend, in both runs."""

    model: str
    backend: str
    what: str
    unit: str
    before: float
    after: float

    @property
    def factor(self) -> float:
        return self.after / self.before if self.before else float("inf")


def layouts(before: Results, after: Results) -> tuple[GroupChange, ...]:
    """Columns that read the stream another way, or whose engine is another one: once, where it is
    so in either precision.
    """
    found = (
        GroupChange(a.model, a.backend, what, mine, theirs)
        for a, b in _pairs(before, after)
        for what, mine, theirs in _facts(a, b)
    )
    return tuple(dict.fromkeys(found))


def costs(before: Results, after: Results, *, factor: float) -> tuple[Cost, ...]:
    """Columns that became so many times slower or larger, or faster or smaller."""
    found: list[Cost] = []
    for a, b in _pairs(before, after):
        if a.reused or b.reused:
            continue
        for what, unit, least, mine, theirs in (
            ("loading", "s", _SECONDS, a.load_seconds, b.load_seconds),
            ("running", "s", _SECONDS, a.seconds, b.seconds),
            ("memory", "MiB", _MIB, a.peak_mib, b.peak_mib),
        ):
            small, large = sorted((mine, theirs))
            if large - small >= least and small > 0 and large / small >= factor:
                told = f"{what} in {a.precision}" if a.precision is Precision.FLOAT32 else what
                found.append(Cost(a.model, a.backend, told, unit, mine, theirs))
    return tuple(found)


def _pairs(before: Results, after: Results) -> Iterator[tuple[Group, Group]]:
    theirs = {(group.model, group.backend, group.precision): group for group in after.groups}
    for group in before.groups:
        other = theirs.get((group.model, group.backend, group.precision))
        if other is not None and group.backend not in _NO_COLUMN:
            yield group, other


def _facts(a: Group, b: Group) -> Iterator[tuple[str, str, str]]:
    # One that never came up says nothing of itself; its cells tell.
    if a.layout and b.layout and a.layout != b.layout:
        yield "layout", a.layout, b.layout
    if a.identity and b.identity:
        for key in sorted({*a.identity, *b.identity} - _NOT_COMPARED):
            mine, theirs = _said(a.identity, key), _said(b.identity, key)
            if mine != theirs:
                yield key, mine, theirs


def _said(identity: Mapping[str, object], key: str) -> str:
    return str(identity[key]) if key in identity else "not said"
