"""Facts about a run: its backends as they reported themselves, versions, layouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from conformance.report import figures
from conformance.report.grouping import group_by
from conformance.report.sections.findings import CellsSummary, by_backend, by_group
from conformance.report.sections.gaps import anchor, title
from conformance.report.words import number
from conformance.runner.store import gathered_in
from conformance.spec.records import Finding, Group, Precision, Results

_SERVED = {
    "none": "",
    "native": "values carried by nnsight itself",
    "relay": "values carried by the stage relay",
}


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One backend: whether it works, how its models did, what its engines reported.

    `clean` models pass everywhere; `fine` ones fail only by known gaps and numerics (`but_for`
    names which occur). `gaps` are the anchors and titles of the known gaps.
    """

    id: str
    summary: CellsSummary
    clean: int
    fine: int
    but_for: str
    models: int
    engine: str
    gaps: tuple[tuple[str, str], ...]


def backends(results: Results) -> list[ColumnFacts]:
    pairs = by_group(results)
    groups = group_by(results.groups, lambda group: group.backend)
    with_versions = {column.id: " ".join(column.requirements) for column in results.columns}
    columns = []
    for name, total in by_backend(results).items():
        summaries = [summary for (_, backend), summary in pairs.items() if backend == name]
        clean = sum(summary.passed == summary.total for summary in summaries)
        fine = sum(not summary.new for summary in summaries)
        allowed = {Finding.KNOWN: "known gaps", Finding.NUMERICS: "numerics"}
        seen = (w for f, w in allowed.items() if any(s.findings.get(f) for s in summaries))
        words = engine(groups.get(name, []))
        if with_versions.get(name):
            words = f"{words}; with {with_versions[name]}"
        gaps = tuple((anchor(index), title(results.gaps[index])) for index in total.gaps)
        columns.append(
            ColumnFacts(name, total, clean, fine, " and ".join(seen), len(summaries), words, gaps)
        )
    return columns


def engine(groups: list[Group]) -> str:
    """Return what the engines reported about themselves, the three most common answers first."""
    identities: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        if text := _identity(group):
            identities[text].add(group.model)
    if not identities:
        return "no engine said what it was"
    # One model may load several engines: one for each precision or special setting.
    every = len({group.model for group in groups})
    commonest = sorted(identities.items(), key=lambda item: -len(item[1]))[:3]
    return "; ".join(
        text if len(models) == every else f"{text} ({len(models)} of {every} models)"
        for text, models in commonest
    )


def _identity(group: Group) -> str:
    identity = group.identity
    facts = [str(identity[key]) for key in ("device", "dtype") if identity.get(key)]
    size = identity.get("pipeline_size")
    if size is not None:
        stages = len(figures.stages(identity)) or size
        facts.append("1 stage" if stages == 1 else f"{stages} stages")
    tensor = identity.get("tensor_size")
    if isinstance(tensor, int) and tensor > 1:
        facts.append(f"{tensor} tensor ranks")
    served = _SERVED.get(str(identity.get("served", "")), str(identity.get("served", "")))
    if served:
        facts.append(served)
    if "eager" in identity:
        facts.append("eager" if identity["eager"] else "not eager")
    if identity.get("model_runner"):
        facts.append(f"runner {identity['model_runner']}")
    if attention := identity.get("attention"):
        # transformers has one kind for all layers, vLLM a backend for each kind of layer.
        kinds = [attention] if isinstance(attention, str) else attention
        facts.append(f"attention {' and '.join(kinds)}")
    if identity.get("products") == "tf32" and identity.get("dtype") == "torch.float32":
        facts.append("float32 products in TF32")
    return ", ".join(facts)


def when(text: str) -> str:
    """Format an ISO time for people; return anything else unchanged."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = " UTC" if time.utcoffset() == timedelta(0) else ""
    return f"{time:%Y-%m-%d %H:%M}{zone}"


def run_facts(
    results: Results, sources: Sequence[Results] = ()
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the run's facts as titled lists of names and values; `sources` are merged runs."""
    run, environment = results.run, results.environment
    about = [
        ("run", run.id),
        ("command", run.command),
        *([("selection", words)] if (words := results.selection.words) else []),
        ("started", when(run.started)),
        ("finished", when(run.finished)),
        ("took", f"{number(run.seconds)} s with {run.jobs} at a time"),
        ("peak memory", f"{number(run.peak_mib)} MiB" if run.peak_mib else "not measured"),
    ]
    if run.resumed:
        about.append(("taken from before", f"{run.resumed} cells"))
    machine = [
        ("device", environment.device),
        *((f"device {i}", name) for i, name in enumerate(environment.devices)),
        *((("settings", ", ".join(environment.settings)),) if environment.settings else ()),
        ("platform", environment.platform),
        ("Python", environment.python),
    ]
    thresholds = [
        (f"{precision}: {key}", number(value))
        for precision in Precision
        for key, value in asdict(environment.thresholds.of(precision)).items()
    ]
    merged = [
        (source.run.id, f"{', '.join(source.environment.devices)}, {source.run.command}")
        for source in sources
    ]
    return [
        ("Run", about),
        *([("Merged of", merged)] if merged else []),
        ("Machine", machine),
        *([("Machines", ran)] if (ran := machines(results.groups)) else []),
        ("Versions", sorted(environment.versions.items())),
        ("Thresholds", thresholds),
    ]


def machines(groups: Iterable[Group]) -> list[tuple[str, str]]:
    """Return what each machine of a cluster ran, and what it had begun when it was lost."""
    ran: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        name = f"{group.model} {gathered_in(group.backend, group.precision)}"
        if group.machine:
            ran[group.machine].append(name)
        for lost in group.lost:
            ran[lost].append(f"{name} (begun)")
    return [(machine, ", ".join(names)) for machine, names in sorted(ran.items())]


def layouts(results: Results) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the residual stream's layout of each model on each backend."""
    columns = {cell.backend for cell in results.cells}
    shown = [group for group in results.groups if group.backend in columns]
    return [
        (model, [(group.backend, group.layout or group.reason or group.status) for group in groups])
        for model, groups in group_by(shown, lambda group: group.model).items()
    ]
