"""What the harness costs: against the obvious alternative, and above the bare floor.

    python bench/harness.py [--model llama]

In one run and one process at a time, for one model on every default backend:
  harness      `conformance run -j 1`, nothing cached: zygotes, reference, judging, report
  alternative  a fresh process and a fresh engine for every scenario and backend
  floor        a fresh process and one engine for each backend, and the bare traces
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from conformance import manifest, plan
from conformance.checkpoints import cache_folder, locate
from conformance.jobs import launch, planned_jobs
from conformance.records import Column, Job, to_json
from conformance.scenario import discover
from conformance.store import open_run

#: Open the engine and run the traces: nothing is kept.
BARE = """
import importlib, sys
from pathlib import Path
from conformance.records import Job, from_json
from conformance.scenario import discover
job = from_json(Job, Path(sys.argv[1]).read_bytes())
module, _, function = job.engine.partition(":")
engine = getattr(importlib.import_module(module), function)(job)
scenarios = discover(job.scenarios)
for case in job.cases:
    engine.run(scenarios[case.scenario], case)
engine.close()
"""


def main(
    model: Annotated[str, typer.Option(help="A model of models.yaml.")] = "llama",
) -> None:
    """Print seconds and ratios, measured side by side."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        _share_checkpoints(cache)
        harness = _timed(lambda: _conformance(model, folder, cache))
        jobs = _jobs(model, folder, cache)
        alternative = sum(_timed(lambda job=job: _worker(job)) for job in _apart(jobs))
        floor = sum(_timed(lambda job=job: _bare(job)) for job in jobs)
    print(f"{model}: {sum(len(job.cases) for job in jobs)} cells, {len(jobs)} backends")
    print(f"harness      {harness:7.1f} s")
    print(
        f"alternative  {alternative:7.1f} s   alternative / harness = {alternative / harness:.2f}"
    )
    print(f"floor        {floor:7.1f} s   harness / floor       = {harness / floor:.2f}")


def _timed(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _share_checkpoints(cache: Path) -> None:
    """Checkpoints are made once in a machine's life; observations start empty."""
    cache.mkdir()
    (cache / "checkpoints").symlink_to((cache_folder() / "checkpoints").resolve())


def _environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "CONFORMANCE_CACHE": str(cache), "PYTHONPATH": str(Path.cwd())}


def _conformance(model: str, folder: Path, cache: Path) -> None:
    command = [sys.executable, "-m", "conformance.cli", "run", "-m", model, "-j", "1"]
    subprocess.run(
        [*command, "--reports", str(folder / "reports")],
        check=True,
        env=_environment(cache),
        stdout=subprocess.DEVNULL,
    )


def _jobs(model: str, folder: Path, cache: Path) -> list[Job]:
    """The columns' jobs of the harness's own run, writing elsewhere."""
    known = manifest.load(Path("models.yaml"))
    run = open_run(folder / "reports")
    assert locate(plan.choose(known.models, [model], "model")[0], cache) is not None
    backends = [Column(backend) for backend in known.backends if backend.default]
    found = planned_jobs(
        run,
        known.models,
        backends,
        run.plan().cells,
        discover(Path("scenarios")),
        folder=Path("scenarios").resolve(),
        cache=cache,
    )
    jobs = [one.make() for one in found if one.id.split(":")[1] in {b.id for b in backends}]
    return [replace(job, folder=folder / f"bare-{n}") for n, job in enumerate(jobs) if job]


def _apart(jobs: list[Job]) -> list[Job]:
    """One job for each scenario and backend."""
    return [
        replace(
            job,
            folder=job.folder / name,
            cases=tuple(case for case in job.cases if case.scenario == name),
        )
        for job in jobs
        for name in dict.fromkeys(case.scenario for case in job.cases)
    ]


def _write(job: Job) -> Path:
    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / "job.json"
    path.write_text(to_json(job))
    return path


def _worker(job: Job) -> None:
    _run([sys.executable, "-m", "conformance.worker.main", str(_write(job))], job)


def _bare(job: Job) -> None:
    _run([sys.executable, "-c", BARE, str(_write(job))], job)


def _run(command: list[str], job: Job) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), **dict(launch(job.backend).env)}
    log = (job.folder / "bare.txt").open("w")
    subprocess.run(command, check=True, env=environment, stdout=log, stderr=log)


if __name__ == "__main__":
    typer.run(main)
