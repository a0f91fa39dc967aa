"""Judge a run model by model while it is still gathered, and update its page.

A separate process judges a model as soon as its last group has ended, and writes the page of the
verdicts so far. Nothing depends on it: whatever it does not judge is judged at the end, as
`conformance judge` does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import torch

from conformance.judge.expectations import KnownGaps, conclude, mark_findings
from conformance.judge.expectations.assess import Standing
from conformance.judge.runs import judge_model, reduce_judged, results_of
from conformance.report import html
from conformance.runner.processes.parallel import pool_of
from conformance.runner.scheduling import Event
from conformance.runner.scheduling.events import GroupFinished
from conformance.runner.store import RunFolder, RunPlan
from conformance.spec.records import CellResult, Environment, Results, RunInfo
from conformance.spec.scenario import Scenario, discover

#: Gathering has priority: the judging process has a lower one.
_NICE = 5

#: The share of the time that rewriting the page may take.
_PAGE_SHARE = 0.1


@dataclass
class _Judge:
    """The inputs of the judging process, and its verdicts so far."""

    run: RunFolder
    plan: RunPlan
    scenarios: Mapping[str, Scenario]
    known: KnownGaps | None
    environment: Environment
    begun: float
    judged: dict[str, CellResult] = field(default_factory=dict)
    page_due: float = 0.0


#: The judging process's state, once it has started.
_judges: list[_Judge] = []


class LiveJudging:
    """Receives the runner's events; `judged` returns the verdicts so far.

    `tell` receives a line for each model, and once the page's path when it is first written. The
    last model, and so a run of one model, is judged after the gathering.
    """

    def __init__(
        self,
        run: RunFolder,
        scenarios: Mapping[str, Scenario],
        groups: Mapping[str, str],
        *,
        known: KnownGaps | None,
        environment: Environment,
        tell: Callable[[str], None],
    ) -> None:
        """`groups` are the models of all jobs of the run, by their ids."""
        self._model = dict(groups)
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
        """Submit a model whose last group has ended, and report the models that are judged."""
        model = self._model.pop(event.id, "") if isinstance(event, GroupFinished) else ""
        # The last model is judged at the end, in as many processes as are worthwhile.
        if model and self._model and model not in self._model.values():
            self._pool = self._pool or pool_of(1, _begin, self._with)
            self._waiting[model] = self._pool.submit(_judge, model)
        for model in [name for name, judged in self._waiting.items() if judged.done()]:
            self._take(model)

    def _take(self, model: str) -> None:
        judged = self._waiting.pop(model)
        # An error is reported when the model is judged with the rest.
        if judged.cancelled() or judged.exception() is not None:
            return
        cells, line, page = judged.result()
        self._judged |= cells
        self._tell(line)
        if page is not None and not self._announced:
            self._announced = True
            self._tell(f"the page grows while the run goes on: {page}")

    def judged(self) -> dict[str, CellResult]:
        """Return the verdicts by cell. Models whose judging has not started are left out."""
        for model, judging in list(self._waiting.items()):
            if not judging.cancel():
                with suppress(Exception):
                    judging.exception()
            self._take(model)
        return self._judged


#: The result for one model: its cells, a line about them, and the page if it was written.
_Judged = tuple[dict[str, CellResult], str, Path | None]


def _begin(
    path: Path, folders: tuple[Path, ...], known: KnownGaps | None, environment: Environment
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
    told = make_results(judge, results).cells
    if plan.keep == "failing":
        by_id = {cell.id: cell for cell in told}
        reduce_judged(judge.run, model, plan.columns, by_id, plan.thresholds)
    about = conclude(told)
    page = None
    if time.monotonic() >= judge.page_due:
        began = time.monotonic()
        page = html.write(make_results(judge, judge.judged), judge.run.path)
        ended = time.monotonic()
        judge.page_due = ended + (ended - began) / _PAGE_SHARE
    return results, f"{model_id}: {about.headline}", page


def make_results(judge: _Judge, judged: Mapping[str, CellResult]) -> Results:
    """Return the judged cells as results of a run that planned more cells."""
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
    results = mark_findings(results, judge.known, datetime.now(UTC).date())
    # Whether an entry is unneeded is known only at the end.
    unneeded = {Standing.STALE, Standing.REDUNDANT}
    gaps = (
        replace(gap, standing=Standing.USED.value) if Standing(gap.standing) in unneeded else gap
        for gap in results.gaps
    )
    return replace(results, gaps=tuple(gaps))
