"""A run is judged while it is still gathered, model by model, and its page grows with each.

One process of its own judges a model as soon as the last of its groups has ended, and writes the
page of what is judged so far. Nothing depends on it: what it has not judged by the end, or could
not, is judged then, as in `conformance judge`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import torch

from conformance.expectations import Known, conclude, marked
from conformance.expectations.assess import Standing
from conformance.judging_runs import judge_model, reduce_judged, results_of
from conformance.processes.parallel import pool_of
from conformance.records import CellResult, Environment, Results, RunInfo
from conformance.report import html
from conformance.runner import Event
from conformance.runner.events import GroupFinished
from conformance.scenario import Scenario, discover
from conformance.store import RunFolder, RunPlan

#: Gathering goes first: what judges meanwhile takes what is left of the processors.
_NICE = 5

#: Writing the page anew may take this share of the time.
_PAGE_SHARE = 0.1


@dataclass
class _Judge:
    """What the process that judges works with, and what it has judged."""

    run: RunFolder
    plan: RunPlan
    scenarios: Mapping[str, Scenario]
    known: Known | None
    environment: Environment
    begun: float
    judged: dict[str, CellResult] = field(default_factory=dict)
    page_due: float = 0.0


#: The process's own, once it has begun.
_judges: list[_Judge] = []


class LiveJudging:
    """Hears what the runner tells; `judged` has the verdicts that are there already.

    `tell` is called with a line for each model, and with the page's path once, when the page is
    there. A run of one model has nothing to be judged while it is gathered.
    """

    def __init__(
        self,
        run: RunFolder,
        scenarios: Mapping[str, Scenario],
        groups: Iterable[tuple[str, str]],
        *,
        known: Known | None,
        environment: Environment,
        tell: Callable[[str], None],
    ) -> None:
        """`groups` are the ids of all jobs of the run, each with its model."""
        self._left: dict[str, set[str]] = {}
        self._model = {}
        for group, model in groups:
            self._left.setdefault(model, set()).add(group)
            self._model[group] = model
        self._run = run
        self._tell = tell
        folders = tuple(sorted({scenario.path.parent for scenario in scenarios.values()}))
        self._with = (run.path, folders, known, environment)
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: dict[str, Future[_Judged]] = {}
        self._judged: dict[str, CellResult] = {}
        self._announced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def __call__(self, event: Event) -> None:
        """Have a model judged whose last group has ended, and tell of those that are."""
        if isinstance(event, GroupFinished) and (model := self._model.pop(event.id, "")):
            self._left[model].discard(event.id)
            # The last model is judged with what is left, in as many processes as that is worth.
            if not self._left[model] and self._model:
                self._submit(model)
        for model in [name for name, judged in self._waiting.items() if judged.done()]:
            self._take(model)

    def _submit(self, model: str) -> None:
        if self._pool is None:
            self._pool = pool_of(1, _begin, self._with)
        self._waiting[model] = self._pool.submit(_judge, model)

    def _take(self, model: str) -> None:
        judged = self._waiting.pop(model)
        # Whatever went wrong is said when the model is judged with the rest.
        if judged.cancelled() or judged.exception() is not None:
            return
        cells, line, page = judged.result()
        self._judged |= cells
        self._tell(line)
        if page is not None and not self._announced:
            self._announced = True
            self._tell(f"the page grows while the run goes on: {page}")

    def judged(self) -> dict[str, CellResult]:
        """The verdicts by cell. What has not begun to be judged is left."""
        for model, judging in list(self._waiting.items()):
            if not judging.cancel():
                with suppress(Exception):
                    judging.exception()
            self._take(model)
        return self._judged


#: Of one model: its cells, a line on them, and the page if it was written.
_Judged = tuple[dict[str, CellResult], str, Path | None]


def _begin(
    path: Path, folders: tuple[Path, ...], known: Known | None, environment: Environment
) -> None:
    os.nice(_NICE)
    torch.set_num_threads(1)
    run = RunFolder(path)
    judge = _Judge(run, run.plan(), discover(folders), known, environment, time.monotonic())
    _judges.append(judge)


def _judge(model_id: str) -> _Judged:
    judge = _judges[-1]
    plan = judge.plan
    model = next(model for model in plan.models if model.id == model_id)
    cells = [cell for cell in plan.cells if cell.model == model_id]
    results = judge_model(
        judge.run,
        model,
        plan.columns,
        cells,
        judge.scenarios,
        plan.thresholds,
        plan.precisions,
        plan.only_float32(),
    )
    judge.judged |= results
    told = unfinished(judge, results).cells
    if plan.keep == "failing":
        by_id = {cell.id: cell for cell in told}
        reduce_judged(judge.run, model, plan.columns, by_id, plan.thresholds)
    about = conclude(told)
    page = None
    if time.monotonic() >= judge.page_due:
        began = time.monotonic()
        page = html.write(unfinished(judge, judge.judged), judge.run.path)
        ended = time.monotonic()
        judge.page_due = ended + (ended - began) / _PAGE_SHARE
    return results, f"{model_id}: {about.headline}", page


def unfinished(judge: _Judge, judged: Mapping[str, CellResult]) -> Results:
    """What is judged, as a run that says how many cells it planned."""
    plan = judge.plan
    info = RunInfo(
        id=plan.run,
        started=plan.started,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - judge.begun,
        command=plan.command,
        jobs=plan.jobs,
    )
    results = results_of(
        judge.run, judge.scenarios, judged, info=info, environment=judge.environment
    )
    results = replace(results, footer=replace(results.footer, planned=len(plan.cells)))
    if judge.known is None:
        return results
    results = marked(results, judge.known, datetime.now(UTC).date())
    # That an entry explains nothing can be said at the end only.
    unneeded = {Standing.STALE, Standing.REDUNDANT}
    gaps = (
        replace(gap, standing=Standing.USED.value) if Standing(gap.standing) in unneeded else gap
        for gap in results.gaps
    )
    return replace(results, gaps=tuple(gaps))
