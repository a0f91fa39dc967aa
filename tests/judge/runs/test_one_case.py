"""A stored run is judged with one prepared reference for all columns, and equal ones once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.judge import runs as judging_runs
from conformance.judge.cell.judge_cell import judge_cell
from conformance.judge.cell.measures import floor
from conformance.judge.cell.measures.relations import ENVIRONMENTS
from conformance.judge.runs import one_case
from conformance.judge.runs.run import judge_models
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, gathered_in
from conformance.runner.store.folder import RunPlan
from conformance.spec.builtin.engine_alone import GENERATED, alone
from conformance.spec.records import (
    Backend,
    Cell,
    CellResult,
    Column,
    Group,
    Model,
    Outcome,
    Precision,
    Side,
    Status,
    Thresholds,
    Verdict,
)
from conformance.spec.scenario import Scenario, discover, scenario
from tests.judge.cell import toy

MODEL = Model("toy", "llama", ())
COLUMNS = tuple(Column(Backend(name, "hf")) for name in ("a", "b", "c"))
OK = Outcome(Status.OK, prompt_ids=toy.IDS)

Observed = dict[str, Tensor]


@scenario()
def reading(lm: object, case: object) -> None: ...


@scenario(equal_alone=[("stream.1", "alone")])
def tenant(lm: object, case: object) -> None: ...


@scenario(options={"time": ("first", "second")})
def twice(lm: object, case: object) -> None: ...


def flat(members: Mapping[str, Observed]) -> Observed:
    """As a run stores the reference: by `member|site`."""
    return {f"{m}|{site}": value for m, values in members.items() for site, value in values.items()}


def observed(
    run: RunFolder,
    cell: str,
    columns: dict[str, Observed],
    edits: Mapping[int, toy.Edit] | None = None,
    model: Model = MODEL,
) -> None:
    """The reference of one case, and what the columns observed."""
    identity = {"layers": toy.LAYERS, "width": toy.WIDTH}
    reference = run.group_folder(model.id, REFERENCE.id)
    reference.write_group(Group(model.id, REFERENCE.id, identity=identity))
    reference.write_cell(cell, OK, flat(toy.reference(partial(toy.observe, edits=edits))))
    for backend, values in columns.items():
        run.write_cell(model.id, backend, cell, OK, values)


SOURCE = '''"""Reads."""
from conformance.spec.scenario import scenario

@scenario({options})
def reading(lm, case): ...

@reading.reference
def _(model, case): ...
'''


def scenarios_of(run: RunFolder) -> Path:
    """A folder that no other test's modules are named after."""
    return run.path.parent / f"scenarios_{run.path.parent.name}"


def stored_run(
    folder: Path,
    models: Sequence[Model],
    cases: Sequence[str],
    wrong: tuple[str, str],
    options: str = "",
    **more: str,
) -> RunFolder:
    """A run on three columns, in which this model is wrong in this case on the second one."""
    run = RunFolder(folder / "run")
    scenarios_of(run).mkdir()
    (scenarios_of(run) / "reading.py").write_text(SOURCE.format(options=options))
    places = [(model, case) for model in models for case in cases]
    for model, case in places:
        edits = {0: torch.neg} if (model.id, case) == wrong else {}
        columns = {"a": candidate(), "b": candidate(6, edits), "c": candidate(7)}
        observed(run, f"reading.{case}", columns, model=model)
    cells = [
        Cell(model.id, column.id, "reading", case) for model, case in places for column in COLUMNS
    ]
    plan = ("run", "", "", tuple(models), COLUMNS, tuple(cells), Thresholds())
    run.write_plan(RunPlan(*plan, **more))  # type: ignore[arg-type]
    return run


def judged_models(run: RunFolder) -> dict[str, CellResult]:
    return judge_models(run, discover(scenarios_of(run)), Thresholds())


def judged(folder: Path, columns: dict[str, Observed]) -> dict[str, CellResult]:
    run = RunFolder(folder)
    observed(run, "reading.all", columns)
    return judged_in(run, list(columns))


def judged_in(
    run: RunFolder,
    columns: Sequence[str],
    judged_scenario: Scenario = reading,
    places: Sequence[Column] = COLUMNS,
    precisions: Sequence[Precision] = (Precision.BF16,),
) -> dict[str, CellResult]:
    """The cells of these columns, by column."""
    name = judged_scenario.name
    cells = [Cell(MODEL.id, column, name, "all") for column in columns]
    context = (cells, {name: judged_scenario}, Thresholds(), precisions)
    found = judging_runs.judge_model(run, MODEL, places, *context)
    return {cell.backend: cell for cell in found.values()}


def test_one_column_is_held_to_the_bits_of_alone_and_another_with_the_same_bits_is_not(tmp_path):
    run, beside = RunFolder(tmp_path), toy.observe_twice("alone")
    rounded = beside(torch.bfloat16, toy.CANDIDATE)
    rounded["p0/s0/alone"][0, 0] *= 1.004
    observed(run, "tenant.all", {"a": rounded, "b": rounded, "c": rounded})
    run.write_cell(MODEL.id, REFERENCE.id, "tenant.all", OK, flat(toy.reference(beside)))
    said = {"a": {"kept_beside": True}, "b": {"kept_beside": False}, "c": {}}
    for name, identity in said.items():
        group = Group(MODEL.id, name, identity={"device": "cpu", **identity})
        run.group_folder(MODEL.id, name).write_group(group)
    by_column = judged_in(run, list(said), tenant)
    assert by_column["a"].verdict is Verdict.WRONG
    assert "stream.1 ≡ alone" in by_column["a"].reason
    assert by_column["b"].verdict is by_column["c"].verdict is Verdict.MATCH


def test_a_column_is_compared_with_those_of_its_backend_in_other_environments(tmp_path):
    columns = [
        Column(Backend(name, "hf"), where)
        for name, where in (("a", ""), ("a", "old"), ("b", "old"))
    ]
    run = RunFolder(tmp_path)
    observed(run, "reading.all", {column.id: candidate() for column in columns})
    found = judged_in(run, [column.id for column in columns], places=columns)
    said = {
        name: [each.detail for each in cell.relations if each.name == ENVIRONMENTS]
        for name, cell in found.items()
    }
    assert said == {"a": ["the same in a@old"], "a@old": ["the same in a"], "b@old": []}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, int]]:
    """How often a cell was judged, and how many floors were computed."""
    cells, floors = [], []
    made = floor.floors

    def judge(*args: object, **more: object) -> object:
        cells.append(1)
        return judge_cell(*args, **more)  # type: ignore[arg-type]

    def compute(references: list[Tensor], *args: object, **more: object) -> object:
        floors.extend(references)
        return made(references, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(one_case, "judge_cell", judge)
    monkeypatch.setattr(floor, "floors", compute)
    return lambda: (len(cells), len(floors))


def candidate(parts: int = toy.CANDIDATE, edits: Mapping[int, toy.Edit] | None = None) -> Observed:
    return toy.observe(torch.bfloat16, parts, edits=edits)


def test_columns_share_the_floors(tmp_path: Path, counted: Callable[[], tuple[int, int]]) -> None:
    found = judged(tmp_path, {"a": candidate(), "b": candidate(6)})
    assert [cell.verdict for cell in found.values()] == [Verdict.MATCH, Verdict.MATCH]
    observations = len(toy.IDS) * (toy.LAYERS + 1)
    assert counted() == (2, observations)


@pytest.mark.parametrize(("edits", "times"), [({}, 1), ({0: torch.neg}, 2)])
def test_a_case_takes_over_the_floors_of_what_it_shares_with_the_one_before(
    tmp_path: Path,
    counted: Callable[[], tuple[int, int]],
    edits: Mapping[int, toy.Edit],
    times: int,
) -> None:
    run = RunFolder(tmp_path)
    observed(run, "twice.first", {"a": candidate()})
    observed(run, "twice.second", {"a": candidate(edits=edits)}, edits)
    cells = [Cell(MODEL.id, "a", "twice", case) for case in ("first", "second")]
    found = judging_runs.judge_model(run, MODEL, COLUMNS, cells, {"twice": twice}, Thresholds())
    assert {cell.verdict for cell in found.values()} == {Verdict.MATCH}
    assert counted() == (2, times * len(toy.IDS) * (toy.LAYERS + 1))


def test_what_a_case_observed_is_freed_with_it(tmp_path: Path) -> None:
    """Not whenever a collector comes by: the next case's would be held beside it."""
    gc.collect()
    gc.disable()
    try:
        judged(tmp_path, {"a": candidate(), "b": candidate(6)})
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        held = [one for one in gc.garbage if isinstance(one, Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not held


def test_columns_with_the_same_bits_are_judged_once_and_alike(tmp_path, counted):
    found = judged(tmp_path, {"a": candidate(), "b": candidate(6), "c": candidate()})
    assert counted()[0] == 2
    assert found["a"].observations == found["c"].observations != found["b"].observations
    assert found["c"].id == "reading[toy-c-all]"


@pytest.mark.parametrize("first", ["alone", "both"])
def test_what_bf16_decides_alone_is_not_taken_over_by_a_column_with_float32(tmp_path, first):
    run = RunFolder(tmp_path)
    coarse = candidate()
    coarse["p1/s0/stream.3"] *= 1.02  # it drifts, and a factor explains it
    refused = Outcome(Status.UNSUPPORTED, reason="no float32 here")
    columns = ["alone", "both"] if first == "alone" else ["both", "alone"]
    observed(run, "reading.all", dict.fromkeys(columns, coarse))
    ways = {f"float32_{i}": toy.observe(torch.float32, i) for i in (2, 3)}
    known = flat(toy.reference(toy.observe) | ways)
    run.write_cell(MODEL.id, REFERENCE.id, "reading.all", OK, known)
    exact = toy.observe(torch.float32, 4)
    run.write_cell(MODEL.id, gathered_in("both", Precision.FLOAT32), "reading.all", OK, exact)
    run.write_cell(MODEL.id, gathered_in("alone", Precision.FLOAT32), "reading.all", refused, {})
    places = [Column(Backend(name, "hf")) for name in columns]
    found = judged_in(run, columns, places=places, precisions=tuple(Precision))
    verdicts = {name: cell.verdict for name, cell in found.items()}
    assert verdicts == {"alone": Verdict.WRONG, "both": Verdict.DRIFT}


def other_bit(value: Tensor) -> Tensor:
    value = value.clone()
    value.view(-1).view(torch.int16)[-1] ^= 1 << 14  # the exponent of the last number
    return value


@pytest.mark.parametrize("spoil", [other_bit, Tensor.float, lambda value: value.view(torch.half)])
def test_one_other_bit_or_dtype_is_judged_by_itself(tmp_path, counted, spoil):
    other = candidate()
    other["p1/s0/stream.3"] = spoil(other["p1/s0/stream.3"])
    found = judged(tmp_path, {"a": candidate(), "b": other})
    assert counted()[0] == 2
    assert found["a"].verdict is Verdict.MATCH
    assert found["b"].verdict.fails


def test_a_reference_that_cannot_be_used_says_so_in_every_column(tmp_path: Path) -> None:
    broken = candidate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "BASELINE_RUNS", {"eager": 1})
        found = judged(tmp_path, {"a": broken, "b": candidate(6)})
    for cell in found.values():
        assert cell.verdict is Verdict.UNKNOWN
        assert cell.harness
        assert "cannot be used: it has 1 bf16 baseline runs" in cell.reason


def test_a_cell_is_blamed_by_what_the_engine_did_alone_with_its_settings(tmp_path: Path) -> None:
    crowded = replace(reading, settings=lambda _: {"blocks": 8})
    run = RunFolder(tmp_path)
    wrong = candidate(edits={0: torch.neg})
    observed(run, "reading.all", {"a": wrong})
    [case] = crowded.expand(toy.LAYERS)
    without = alone(GENERATED.name, case)
    assert without is not None
    observed(run, without.key, {"a": candidate()})
    [result] = judged_in(run, ["a"], crowded).values()
    assert result.attribution is not None
    assert result.attribution.side is Side.NNSIGHT
    assert "is right without nnsight" in result.attribution.evidence
