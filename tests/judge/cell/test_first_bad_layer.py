"""Which layer introduces an error, from layers that were given the candidate's own input."""

from __future__ import annotations

import pytest
import torch

from conformance.judge.cell.diagnosis.first_bad_layer import place, with_own_input
from conformance.spec.records import BF16_LIMITS, Judged, Verdict

BASELINE_RUNS = ("a", "b", "c", "d")
IDS = ((1, 2, 3, 4, 5, 6),)


def rows(seed: int) -> torch.Tensor:
    return torch.randn(6, 64, generator=torch.Generator().manual_seed(seed))


def fed(layers: int = 4) -> dict[str, dict[str, torch.Tensor]]:
    """What correct layers make of the candidate's input."""
    found = {"truth": {f"p0/s0/stream.{i}": rows(i) for i in range(layers)}}
    for index, member in enumerate(BASELINE_RUNS):
        found[member] = {
            name: (value + 0.003 * rows(100 * index + 50)).bfloat16()
            for name, value in found["truth"].items()
        }
    return found


def said(off: dict[int, torch.Tensor], failing: tuple[int, ...], run: str = "") -> str:
    members = fed()
    mine = {name: value.bfloat16() for name, value in members["truth"].items()}
    mine |= {f"p0/s0/stream.{layer}": value.bfloat16() for layer, value in off.items()}
    observed = {f"{run}{name}": value for name, value in mine.items()}
    judged = [Judged(f"{run}p0/s0/stream.{layer}", Verdict.WRONG) for layer in failing]
    return place(observed, members, IDS, judged, BF16_LIMITS)


@pytest.mark.parametrize(
    ("off", "failing", "run", "words"),
    [
        (
            {1: rows(1) * 1.5},
            (1, 2, 3),
            "",
            "layer 1 introduces the error, layers 2-3 only inherit",
        ),
        ({2: rows(7)}, (2, 3), "clean/", "layer 2 introduces the error, layer 3 only inherits it"),
        (
            {1: rows(8), 3: rows(9)},
            (1, 2, 3),
            "",
            "layers 1, 3 introduce the error, layer 2 only inherits it",
        ),
        ({}, (2, 3), "", "no single layer introduces the error"),
        # A rounding of what went in is no error.
        ({1: rows(1) + 0.006 * rows(77)}, (1,), "", "no single layer"),
    ],
)
def test_the_layers_that_do_something_else_introduce_it(off, failing, run, words):
    assert said(off, failing, run).startswith(words)


@pytest.mark.parametrize(("off", "holds"), [(0.0, True), (0.003, True), (0.02, False)])
def test_where_bf16_decides_alone_each_layer_is_held_to_its_own_input(off, holds):
    members = fed()
    observed = {name: value.bfloat16() for name, value in members["truth"].items()}
    moved = members["truth"]["p0/s0/stream.2"] + off * rows(5)
    observed["p0/s0/stream.2"] = moved.bfloat16()
    found = with_own_input(observed, members, BF16_LIMITS)
    assert found is not None and found.holds is holds and found.gates
    assert holds or "not layers 2: up to" in found.detail


def test_one_token_may_be_another_experts_and_few_say_nothing() -> None:
    members = fed()
    observed = {name: value.bfloat16() for name, value in members["truth"].items()}
    observed["p0/s0/stream.2"][3] = 7.0
    found = with_own_input(observed, members, BF16_LIMITS)
    assert found is not None and found.holds
    few = {name: value[:3] for name, value in observed.items()}
    short = {
        member: {name: value[:3] for name, value in values.items()}
        for member, values in members.items()
    }
    assert with_own_input(few, short, BF16_LIMITS) is None
    assert with_own_input({}, members, BF16_LIMITS) is None
