"""What judging costs: of a stored run, or of cells of the matrix's sizes.

    python bench/judge.py reports/latest        in this process, and side by side in several
    OMP_NUM_THREADS=1 python bench/judge.py [--columns 3]

Without a run the observations are made up: one real model (30 layers of width 576, 49,152
logits) and 25 tiny ones (4 layers of width 256, 512 logits), with two prompts and seven
baseline runs. Prints the processor time of a cell of each kind, with a reference of its own and
with one that serves all columns, and what the whole matrix takes at that rate on all cores,
against the bar of 20 s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from conformance.judge.cell.judge_cell import judge_cell, read_reference
from conformance.judge.cell.reference import ReferenceRuns
from conformance.judge.runs import judge_model
from conformance.judge.runs.run import judge_models
from conformance.runner.processes.parallel import cores, worth
from conformance.runner.store import RunFolder
from conformance.spec.records import CellResult, Precision, Site, Thresholds
from conformance.spec.scenario import discover

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = (5, 14)
MEMBERS = 7
BAR = 20.0


@dataclass(frozen=True)
class Size:
    """A model, and how many of them the matrix has."""

    name: str
    layers: int
    width: int
    vocabulary: int
    models: int


@dataclass(frozen=True)
class Kind:
    """A kind of cell: its runs, steps, layers read (all when 0), and how many cases it has."""

    name: str
    runs: tuple[str, ...]
    steps: int
    layers: int
    cases: int


SIZES = (Size("real", 30, 576, 49_152, 1), Size("tiny", 4, 256, 512, 25))
KINDS = (
    Kind("reads", ("",), 1, 0, 38),
    Kind("writes", ("clean", "edited"), 1, 0, 25),
    Kind("generation", ("clean", "edited"), 8, 2, 7),
)


def sites(size: Size, kind: Kind) -> Iterator[tuple[Site, tuple[int, ...]]]:
    for run in kind.runs:
        for prompt, tokens in enumerate(PROMPTS):
            for step in range(kind.steps):
                yield Site("logits", prompt, step, run=run), (size.vocabulary,)
                for layer in range(kind.layers or size.layers):
                    rows = tokens if step == 0 else 1
                    yield Site("stream", prompt, step, layer, run), (rows, size.width)


def observations(size: Size, kind: Kind) -> dict[str, dict[str, Tensor]]:
    """The reference, the baseline runs and a candidate, each with 1 % of noise of its own."""
    draw = torch.Generator().manual_seed(0)
    found: dict[str, dict[str, Tensor]] = {"truth": {}, "candidate": {}}
    for site, shape in sites(size, kind):
        reference = torch.randn(shape, generator=draw)
        found["truth"][str(site)] = reference
        for name in ("candidate", *(f"member{n}" for n in range(MEMBERS))):
            noise = 0.01 * torch.randn(shape, generator=draw)
            found.setdefault(name, {})[str(site)] = (reference + noise).bfloat16()
        if site.name == "logits":
            for values in found.values():
                token = reference.argmax().reshape(1)
                values[str(Site("tokens", site.prompt, site.step, run=site.run))] = token
    return found


def seconds(size: Size, kind: Kind, columns: int, *, shared: bool) -> float:
    """Processor time of one cell, the mean over the columns."""
    members = observations(size, kind)
    candidate = members.pop("candidate")
    has_edit = len(kind.runs) == 2
    ids = tuple((1,) * tokens for tokens in PROMPTS)
    start = time.process_time()
    reference: ReferenceRuns | str = ""
    for column in range(columns):
        if not (shared and column):
            reference = read_reference(members, has_edit=has_edit)
        assert isinstance(reference, ReferenceRuns), reference
        found = judge_cell(
            candidate,
            reference,
            has_edit=has_edit,
            equal=(),
            prompt_ids=ids,
            reference_ids=ids,
            limits=Thresholds().of(Precision.BF16),
        )
        assert found.verdict.passes, found.reason
    return (time.process_time() - start) / columns


def stored(path: Path) -> None:
    """A stored run's models one after the other here, and side by side."""
    run = RunFolder(path.resolve())
    planned = run.plan()
    scenarios = discover(ROOT / "scenarios")
    begin = time.perf_counter()
    alone: dict[str, CellResult] = {}
    for model in planned.models:
        cells = [cell for cell in planned.cells if cell.model == model.id]
        alone |= judge_model(run, model, planned.columns, cells, scenarios, planned.thresholds)
    between = time.perf_counter()
    together = judge_models(run, scenarios, planned.thresholds)
    here, beside = between - begin, time.perf_counter() - between
    assert together == alone
    count, processes = len(planned.cells), worth(len(planned.cells))
    print(f"{count:,} cells: {here:.1f} s here, {beside:.1f} s in {processes} processes")
    print(f"ratio {beside / here:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="?", help="a folder under reports/")
    parser.add_argument("--columns", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.run is not None:
        stored(asked.run)
        return
    columns = asked.columns
    seconds(SIZES[1], KINDS[1], 1, shared=False)  # what the first calls load is not judging
    totals = {False: 0.0, True: 0.0}
    print(f"{'model':6} {'cells':11} {'ms a cell':>10} {'shared':>8}   {columns} columns")
    for size in SIZES:
        for kind in KINDS:
            times = {shared: seconds(size, kind, columns, shared=shared) for shared in totals}
            count = size.models * kind.cases * columns
            for together, each in times.items():
                totals[together] += each * count
            own, shared = times[False], times[True]
            line = f"{size.name:6} {kind.name:11} {own * 1e3:10.1f} {shared * 1e3:8.1f}"
            print(f"{line}   {count} cells: {own * count:.1f} s, shared {shared * count:.1f} s")
    whole = f"whole matrix: {totals[False]:.1f} s, shared {totals[True]:.1f} s"
    print(f"{whole}, on {cores()} cores {totals[True] / cores():.1f} s (bar {BAR:g} s)")


if __name__ == "__main__":
    main()
