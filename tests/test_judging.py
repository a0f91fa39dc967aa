"""A stored run is judged with one prepared reference for all columns, and equal ones once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance import judging
from conformance.campaign import REFERENCE
from conformance.judge import floor
from conformance.judge.cell import judge_cell
from conformance.judging import columns
from conformance.records import (
    Backend,
    Cell,
    CellResult,
    Group,
    Model,
    Outcome,
    Status,
    Thresholds,
    Verdict,
)
from conformance.scenario import scenario
from conformance.store import RunFolder
from tests.judge import toy

MODEL = Model("toy", "llama", ())
COLUMNS = tuple(Backend(name, "hf") for name in ("a", "b", "c"))
OK = Outcome(Status.OK, prompt_ids=toy.IDS)

Observed = dict[str, Tensor]


@scenario()
def reading(lm: object, case: object) -> None: ...


def judged(folder: Path, columns: dict[str, Observed]) -> dict[str, CellResult]:
    run = RunFolder(folder)
    identity = {"layers": toy.LAYERS, "width": toy.WIDTH}
    reference = run.group_folder(MODEL.id, REFERENCE.id)
    reference.write_group(Group(MODEL.id, REFERENCE.id, identity=identity))
    members = toy.reference(toy.observe)
    tensors = {
        f"{m}|{site}": value for m, values in members.items() for site, value in values.items()
    }
    reference.write_cell("reading.all", OK, tensors)
    for backend, values in columns.items():
        run.write_cell(MODEL.id, backend, "reading.all", OK, values)
    cells = [Cell(MODEL.id, backend, "reading", "all") for backend in columns]
    known = {"reading": reading}
    found = judging.judge_model(run, MODEL, COLUMNS, cells, known, Thresholds())
    return {cell.backend: cell for cell in found.values()}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, int]]:
    """How often a cell was judged, and how many floors were computed."""
    cells, floors = [], []
    made = floor.floors

    def judge(*args: object, **more: object) -> object:
        cells.append(1)
        return judge_cell(*args, **more)  # type: ignore[arg-type]

    def compute(truths: list[Tensor], *args: object, **more: object) -> object:
        floors.extend(truths)
        return made(truths, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(columns, "judge_cell", judge)
    monkeypatch.setattr(floor, "floors", compute)
    return lambda: (len(cells), len(floors))


def candidate(parts: int = toy.CANDIDATE) -> Observed:
    return toy.observe(torch.bfloat16, parts)


def test_columns_share_the_floors(tmp_path: Path, counted: Callable[[], tuple[int, int]]) -> None:
    found = judged(tmp_path, {"a": candidate(), "b": candidate(6)})
    assert [cell.verdict for cell in found.values()] == [Verdict.MATCH, Verdict.MATCH]
    observations = len(toy.IDS) * (toy.LAYERS + 1)
    assert counted() == (2, observations)


def test_columns_with_the_same_bits_are_judged_once_and_alike(
    tmp_path: Path, counted: Callable[[], tuple[int, int]]
) -> None:
    found = judged(tmp_path, {"a": candidate(), "b": candidate(6), "c": candidate()})
    assert counted()[0] == 2
    assert found["a"].observations == found["c"].observations != found["b"].observations
    assert found["c"].id == "reading[toy-c-all]"


def other_bit(value: Tensor) -> Tensor:
    value = value.clone()
    value.view(-1).view(torch.int16)[-1] ^= 1 << 14  # the exponent of the last number
    return value


@pytest.mark.parametrize("spoil", [other_bit, Tensor.float, lambda value: value.view(torch.half)])
def test_one_other_bit_or_dtype_is_judged_by_itself(
    tmp_path: Path, counted: Callable[[], tuple[int, int]], spoil: Callable[[Tensor], Tensor]
) -> None:
    other = candidate()
    other["p1/s0/stream.3"] = spoil(other["p1/s0/stream.3"])
    found = judged(tmp_path, {"a": candidate(), "b": other})
    assert counted()[0] == 2
    assert found["a"].verdict is Verdict.MATCH
    assert found["b"].verdict.fails


def test_a_reference_that_cannot_be_used_says_so_in_every_column(tmp_path: Path) -> None:
    broken = candidate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "MEMBERS", {"eager": 1})
        found = judged(tmp_path, {"a": broken, "b": candidate(6)})
    for cell in found.values():
        assert cell.verdict is Verdict.UNKNOWN
        assert cell.harness
        assert "cannot be used: it has 1 honest bf16 runs" in cell.reason
