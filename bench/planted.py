"""Planted faults: how many programs of chance it takes to find each, and how small they become.

    python bench/planted.py [--programs 200] [--seed 0] [FAULT …]

Each fault of the self-test is injected alone, into a column of its own on transformers; all columns
run the same programs. What finds it is made smaller as a campaign does it. Prints a line a fault.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conformance.commands.fuzz import batch as batches
from conformance.commands.fuzz.batch import ProgramBatch, ProgramTrial
from conformance.commands.fuzz.causes import Failure, describe_failure, differs, pattern
from conformance.commands.fuzz.draw import ModelShape, draw
from conformance.commands.fuzz.shrinking import Shrinking, Stage
from conformance.commands.selftest.faulty_columns import ENGINE
from conformance.engines.building import checkpoint_builder
from conformance.runner.planning.jobs import launch
from conformance.runner.planning.machine import conditions
from conformance.runner.scheduling import TimeLimits
from conformance.runner.scheduling import run as run_jobs
from conformance.spec.checkpoints import cache_folder, locate, obtain
from conformance.spec.inputs import manifest
from conformance.spec.records import Backend, Cell, Column, Model, Precision

FAULTS = (
    "layer-off.middle", "zeros.middle", "permuted.last", "token-off.middle=1",
    "scaled.middle=1.005", "one-token.middle=0.1", "input-residual.middle", "embedding-off",
    "logits-scale=1.5", "token-other", "write-dropped", "write-twice", "write-sign",
    "write-partly=0.5", "write-tokens-lost", "given-dropped", "skip-lost", "force-lost",
    "mlp-lost.middle", "rope=1",
)  # fmt: skip
HF = Backend("hf", "hf")


def column(fault: str) -> Backend:
    name = fault.replace("=", "-")
    return Backend(f"hf-{name}", ENGINE, options={"engine": "hf", "variant": fault})


def tried(
    place: Path, model: Model, trials: Sequence[ProgramTrial]
) -> tuple[ProgramBatch, dict[tuple[str, str], Failure]]:
    """How each program fails on each column, where it does."""
    batch = batches.begin(
        place, model, trials, precisions=(Precision.FLOAT32,), cache=cache_folder(),
    )  # fmt: skip
    jobs = [replace(job, launch=launch(Column(HF))) for job in batch.planned.values()]
    limits = TimeLimits(cell=30.0)
    run_jobs(jobs, logs=batch.run.path / "zygotes", jobs=2, limits=limits, device=conditions())
    results = batch.judged()
    found = {}
    for trial in trials:
        for backend in trial.backends:
            cell = results[Cell(model.id, backend.id, trial.program.name, batches.CASE).id]
            if differs(cell):
                found[trial.program.name, backend.id] = describe_failure(cell)
            elif cell.harness:
                print(f"harness: {cell.id}: {cell.reason}")
    return batch, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="*", default=FAULTS)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="llama")
    asked = parser.parse_args()
    begun = time.monotonic()
    model = next(m for m in manifest.load(Path("models.yaml")).models if m.id == asked.model)
    checkpoint = locate(model, cache_folder())
    if checkpoint is None:
        checkpoint = obtain(model, cache_folder(), checkpoint_builder.build)
    programs = draw(asked.programs, asked.seed, ModelShape(checkpoint.layers, model.parts))
    left = {fault: column(fault) for fault in asked.faults}
    work: dict[str, Shrinking] = {}
    after: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="conformance-planted-") as folder:
        place = Path(folder)
        for start in range(0, len(programs), asked.chunk):
            if not left:
                break
            chunk = programs[start : start + asked.chunk]
            batch, found = tried(
                place, model, [ProgramTrial(p, (HF, *left.values())) for p in chunk]
            )
            fault_free = sorted(name for name, backend in found if backend == HF.id)
            count = len(fault_free)
            print(f"{start + len(chunk)} programs: {count} differ without a fault {fault_free}")
            for fault, backend in list(left.items()):
                shown = [
                    (number, program)
                    for number, program in enumerate(chunk)
                    if (program.name, backend.id) in found and program.name not in fault_free
                ]
                if shown:
                    # The shortest of those that show it is the quickest to be made smaller.
                    first, program = shown[0]
                    after[fault] = start + first + 1
                    failures = {backend.id: found[program.name, backend.id]}
                    work[fault] = Shrinking(
                        model.id, program, program, failures, (backend,), (backend,)
                    )
                    del left[fault]
            batch.forget()
        while any(one.stage is not Stage.DONE for one in work.values()):
            open_ones = {f: one for f, one in work.items() if one.stage is not Stage.DONE}
            trials = [
                ProgramTrial(program, one.columns)
                for one in open_ones.values()
                for program in one.candidates()
            ]
            batch, found = tried(place, model, trials)
            for one in open_ones.values():
                [backend] = one.columns
                one.take(
                    {
                        p.name: {backend.id: found[p.name, backend.id]}
                        if (p.name, backend.id) in found
                        else {}
                        for p in one.tried
                    }
                )
            batch.forget()
    for fault in asked.faults:
        if fault not in work:
            print(f"{fault:24} NOT FOUND in {len(programs)} programs")
            continue
        one = work[fault]
        what = " ".join(pattern(o, one.program) for o in one.program.operations) or "nothing"
        kinds = " ".join(sorted({str(f.verdict) for f in one.failures.values()}))
        print(f"{fault:24} after {after[fault]:3} programs, {what}, {kinds}, {one.rounds} rounds")
    print(f"{len(work)} of {len(asked.faults)} in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
