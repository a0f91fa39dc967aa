"""What the harness costs: against the obvious alternative, and above the bare floor.

    python bench/harness.py [--model llama] [--quick]

In one run and one process at a time, for one model on every default backend:
  harness      `conformance run -j 1`, nothing cached: zygotes, reference, judging, report
  bf16 alone, float32 alone    the same with `--precision`: what the second question costs
  alternative  a fresh process and a fresh engine for every scenario, backend and precision
  floor        a fresh process and one engine for each of them, and the bare traces
and of the harness's own time, what its parts took. `--quick` leaves the alternative out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from conformance.runner.planning import plan
from conformance.runner.planning.jobs import launch, planned_jobs
from conformance.runner.store import RunFolder, gathered_in, open_run
from conformance.spec.checkpoints import cache_folder, locate
from conformance.spec.inputs import manifest
from conformance.spec.records import Case, Job, Precision, to_json
from conformance.spec.scenario import discover

#: Open the engine and run the traces: nothing is kept. What an engine refuses or raises ends a
#: trace, as it does in a run.
BARE = """
import importlib, sys, traceback
from pathlib import Path
from conformance.engines import Refused
from conformance.spec.records import Job, from_json
from conformance.spec.scenario import discover
job = from_json(Job, Path(sys.argv[1]).read_bytes())
module, _, function = job.engine.partition(":")
try:
    engine = getattr(importlib.import_module(module), function)(job)
except Refused:
    sys.exit(0)
scenarios = discover(job.scenarios)
for case in job.cases:
    try:
        engine.run(scenarios[case.scenario], case)
    except Exception:
        traceback.print_exc()
engine.close()
"""


def main(
    model: Annotated[str, typer.Option(help="A model of models.yaml.")] = "llama",
    quick: Annotated[bool, typer.Option(help="Without the alternative, which is slow.")] = False,
) -> None:
    """Print seconds and ratios, measured side by side."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        harness = _harness(model, folder / "both")
        alone = {
            each.value: _harness(model, folder / each, "--precision", each.value)
            for each in reversed(Precision)
        }
        jobs = _jobs(model, folder / "both")
        floor = sum(_timed(partial(_bare, job)) for job in jobs)
        apart = [] if quick else _apart(jobs)
        alternative = sum(_timed(partial(_worker, job)) for job in apart)
        parts = seconds_by_part(open_run(folder / "both" / "reports"))
    print(f"{model}: {sum(len(job.cases) for job in jobs)} cells, {len(jobs)} engines")
    print(f"harness        {harness:7.1f} s")
    for precision, seconds in alone.items():
        name, ratio = f"{precision} alone", f"harness / {precision} alone"
        print(f"{name:14} {seconds:7.1f} s   {ratio:24} = {harness / seconds:.2f}")
    if alternative:
        ratio = "alternative / harness"
        print(f"alternative    {alternative:7.1f} s   {ratio:24} = {alternative / harness:.2f}")
    print(f"floor          {floor:7.1f} s   {'harness / floor':24} = {harness / floor:.2f}")
    gathered = sum(parts.values())
    shares = (f"{part} {seconds / gathered:.0%}" for part, seconds in parts.items())
    print(f"gathering took {gathered:.1f} s of the harness's: {', '.join(shares)}")


def _harness(model: str, folder: Path, *options: str) -> float:
    """Seconds of a whole run that finds nothing in its cache but checkpoints."""
    cache = folder / "cache"
    cache.mkdir(parents=True)
    # Checkpoints are made once in a machine's life; observations start empty.
    (cache / "checkpoints").symlink_to((cache_folder() / "checkpoints").resolve())
    command = [sys.executable, "-m", "conformance", "run", "-m", model, "-j", "1", *options]
    return _timed(
        lambda: subprocess.run(
            [*command, "--reports", str(folder / "reports")],
            check=True,
            env={**os.environ, "CONFORMANCE_CACHE": str(cache), "PYTHONPATH": str(Path.cwd())},
            stdout=subprocess.DEVNULL,
        )
    )


def seconds_by_part(run: RunFolder) -> dict[str, float]:
    """Seconds that workers lived, by what they ran."""
    parts: Counter[str] = Counter()
    for model, name in run.groups():
        events = run.group_folder(model, name).events
        lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
        times = [json.loads(line)["at"] for line in lines]
        if times:
            part = "reference" if name.startswith("reference") else name.partition("~")[0]
            parts[part] += times[-1] - times[0]
    return dict(parts.most_common())


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _jobs(model: str, folder: Path) -> list[Job]:
    """The columns' jobs of the harness's own run, writing elsewhere."""
    known = manifest.load(Path("models.yaml"))
    run = open_run(folder / "reports")
    assert locate(plan.choose(known.models, [model], "model")[0], folder / "cache") is not None
    asked = run.plan()
    scenarios = discover(Path("scenarios"))
    found = planned_jobs(
        run,
        asked.models,
        asked.columns,
        asked.cells,
        scenarios,
        folder=Path("scenarios").resolve(),
        cache=folder / "cache",
        precisions=asked.precisions,
    )
    columns = {gathered_in(c.id, each) for c in asked.columns for each in asked.precisions}
    # With the settings of some cells a column's engine is loaded once more: `hf~…`.
    wanted = [one for one in found if one.id.split(":")[1].partition("~")[0] in columns]
    made = [job for job in (one.make() for one in wanted) if job]
    return [
        replace(job, folder=folder / f"bare-{number}", cases=_traces(job, scenarios))
        for number, job in enumerate(made)
    ]


def _traces(job: Job, scenarios: Collection[str]) -> tuple[Case, ...]:
    """Without what the harness asks besides, of the engine alone."""
    return tuple(case for case in job.cases if case.scenario in scenarios)


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
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), **dict(launch(job.column).env)}
    log = job.folder / "bare.txt"
    with log.open("w") as written:
        ended = subprocess.run(
            command, env=environment, stdout=written, stderr=written, check=False
        )
    if ended.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SystemExit(f"{job.column.id} ended with {ended.returncode}:\n{tail}")


if __name__ == "__main__":
    typer.run(main)
