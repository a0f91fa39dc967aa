"""The clean set: what honest bf16 runs are gathered on, models × seeds × prompts × scenarios.

Every model is taken in several variants. Each has prompts of its own; a tiny model has a
seed, and so weights, of its own as well. All scenarios run on all of them, on the reference
only: no engine that is being tested takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.calibration.scores import CleanCase
from conformance.checkpoints import locate
from conformance.errors import ConformanceError
from conformance.jobs import REFERENCE, reference_cells, reference_jobs
from conformance.records import Cell, Model
from conformance.runner import Event, Limits, Planned, Summary
from conformance.runner import run as run_jobs
from conformance.scenario import PAIR, Scenario
from conformance.store import ObservationCache, RunFolder

#: What the variants are prompted with: two prompts that differ in content and length, of about
#: the lengths that scenarios have. (On two tokens a median is no median: there one honest run
#: of SmolLM2-135M reached 2.99 at the median and 3.65 at the worst token.)
PROMPTS = (
    PAIR,
    (
        "def mean(values):\n    return sum(values) /",
        "In 1905 the young clerk published four papers, and each of them changed",
    ),
    (
        "Her first letter from the island said",
        "The recipe calls for two cups of flour, three eggs and enough warm milk to make",
    ),
    (
        "Water boils at a lower temperature",
        "If it rains tomorrow the match will be played on Sunday, unless the other team",
    ),
)


@dataclass(frozen=True)
class Variant:
    """One model with its weights and its prompts. `of` is the model's own id."""

    of: str
    model: Model
    scenarios: Mapping[str, Scenario]


def variants(models: Sequence[Model], scenarios: Mapping[str, Scenario]) -> list[Variant]:
    """Every model as often as there are prompts; the first variant is the matrix's own."""
    return [
        Variant(
            of=model.id,
            model=replace(model, id=f"{model.id}@{index}", sources=_reseeded(model, index).sources),
            scenarios={
                name: replace(one, prompts=prompts if index else one.prompts)
                for name, one in scenarios.items()
            },
        )
        for model in models
        for index, prompts in enumerate(PROMPTS)
    ]


def _reseeded(model: Model, by: int) -> Model:
    """With other weights, where those are drawn."""
    return replace(
        model,
        sources=tuple(
            replace(source, seed=source.seed + by) if source.kind == "tiny" else source
            for source in model.sources
        ),
    )


def planned_cells(chosen: Sequence[Variant]) -> tuple[Cell, ...]:
    """What is going to be gathered, for a display of the progress."""
    return tuple(cell for one in chosen for cell in reference_cells(one.model, one.scenarios))


def gather(
    run: RunFolder,
    chosen: Sequence[Variant],
    *,
    folder: Path,
    cache: Path,
    jobs: int,
    limits: Limits,
    device: str,
    on_event: Callable[[Event], None],
) -> Summary:
    """Run the reference on the clean set. What is there already, and still stands, is kept;
    so after Ctrl-C the same call goes on. `folder` holds the scenario files.
    """
    planned: list[Planned] = []
    for one in chosen:
        planned += reference_jobs(run, one.model, one.scenarios, folder=folder, cache=cache)
    return run_jobs(
        planned,
        logs=run.path / "zygotes",
        jobs=jobs,
        limits=limits,
        device=device,
        cache=ObservationCache(cache / "observations"),
        on_event=on_event,
    )


def clean_cases(run: RunFolder, chosen: Sequence[Variant], cache: Path) -> Iterator[CleanCase]:
    """The cases that were gathered. Raises ConformanceError for a model without a checkpoint."""
    for one in chosen:
        found = locate(one.model, cache)
        if found is None:
            raise ConformanceError(
                f"model {one.of!r} could not be built",
                path=run.group_folder(one.model.id, "build").log,
                remedy="see that log, or leave the model out with -m",
            )
        group = run.group_folder(one.model.id, REFERENCE.id)
        gathered = {(c.scenario, c.case) for c in reference_cells(one.model, one.scenarios)}
        for scenario in one.scenarios.values():
            for case in scenario.expand(found.layers):
                if (case.scenario, case.name) not in gathered:
                    continue
                name = f"{case.key}@{one.model.id.partition('@')[2]}"
                yield CleanCase(one.of, name, group, case, scenario.twin(case))
