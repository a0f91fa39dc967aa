"""Compare a model on a backend as a whole: its layout, identity and costs (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.records import Group, Precision, Results, record

#: Keys of a worker's identity that describe the weights and not the backend.
_NOT_COMPARED = frozenset({"digest", "source", "members", "float32_disagreement", "served_by_pid"})

#: Workers that are not columns.
_NO_COLUMN = frozenset({"reference", "reference-forced", "build"})

#: Smaller differences are noise of the machine.
_SECONDS, _MIB = 1.0, 64.0


@record()
class GroupChange:
    """One fact of a model on a backend that changed."""

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
    """Return columns whose layout or engine identity changed. A change in both precisions is
    reported once.
    """
    changes = (
        GroupChange(a.model, a.backend, fact, old, new)
        for a, b in _pairs(before, after)
        for fact, old, new in _facts(a, b)
    )
    return tuple(dict.fromkeys(changes))


def costs(before: Results, after: Results, *, factor: float) -> tuple[Cost, ...]:
    """Return columns whose cost changed by at least `factor`, in either direction."""
    costs: list[Cost] = []
    for a, b in _pairs(before, after):
        if a.reused or b.reused:
            continue
        for figure, unit, least, old, new in (
            ("loading", "s", _SECONDS, a.load_seconds, b.load_seconds),
            ("running", "s", _SECONDS, a.seconds, b.seconds),
            ("memory", "MiB", _MIB, a.peak_mib, b.peak_mib),
        ):
            small, large = sorted((old, new))
            if large - small >= least and small > 0 and large / small >= factor:
                name = f"{figure} in {a.precision}" if a.precision is Precision.FLOAT32 else figure
                costs.append(Cost(a.model, a.backend, name, unit, old, new))
    return tuple(costs)


def _pairs(before: Results, after: Results) -> Iterator[tuple[Group, Group]]:
    partners = {(group.model, group.backend, group.precision): group for group in after.groups}
    for group in before.groups:
        partner = partners.get((group.model, group.backend, group.precision))
        if partner is not None and group.backend not in _NO_COLUMN:
            yield group, partner


def _facts(a: Group, b: Group) -> Iterator[tuple[str, str, str]]:
    # A group that never started has no layout or identity; its cells report that.
    if a.layout and b.layout and a.layout != b.layout:
        yield "layout", a.layout, b.layout
    if a.identity and b.identity:
        for key in sorted({*a.identity, *b.identity} - _NOT_COMPARED):
            old, new = _fact(a.identity, key), _fact(b.identity, key)
            if old != new:
                yield key, old, new


def _fact(identity: Mapping[str, object], key: str) -> str:
    return str(identity[key]) if key in identity else "not said"
