"""What another definition predicts is taken off; what is left is judged as ever."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.judge.runs.reference_reader import find_definitions, subtract_definition
from conformance.spec.records import Precision, Verdict
from tests.judge.cell import toy

FLOAT32 = torch.float32


def edited(definition: bool, parts: int = 1, times: float = 1.0) -> toy.Observations:
    """With a small write; the other definition adds a two thousandth to what layer 0 gives."""
    other = {0: lambda stream: stream * (1 + 5e-4)} if definition else {}
    write = {1: toy.add(toy.vector(0.005), times=times)}
    return toy.edited(FLOAT32, parts, write, always=other)


def verdict(candidate: toy.Observations, predicted: bool = True) -> Verdict:
    members = {"truth": edited(False), "definition-other": edited(True)}
    members |= {f"float32_{parts}": edited(False, parts) for parts in (2, 3, 4)}
    assert set(find_definitions(members)) == {"other"}
    if predicted:
        candidate = subtract_definition(
            candidate, members["truth"], find_definitions(members)["other"]
        )
    context = {"has_edit": True, "precision": Precision.FLOAT32, "reading": {"width": toy.WIDTH}}
    return toy.judge(candidate, members, **context).verdict


def test_a_candidate_of_the_other_definition_passes_by_it_alone() -> None:
    mine = edited(True, toy.CANDIDATE)
    assert verdict(mine, predicted=False) is Verdict.WRONG
    assert verdict(mine).passes
    assert verdict(edited(False, toy.CANDIDATE)) is Verdict.WRONG


def test_another_fault_besides_is_seen_as_ever() -> None:
    assert verdict(edited(True, toy.CANDIDATE, times=1.15)) is Verdict.MISSCALED
    assert verdict(edited(True, toy.CANDIDATE, times=0.0)) is Verdict.DROPPED
    halved = edited(True, toy.CANDIDATE)
    halved["clean/p0/s0/logits"] = halved["clean/p0/s0/logits"] * 0.5
    assert verdict(halved) not in {Verdict.MATCH, Verdict.EXACT}


def test_integers_are_those_of_either_definition() -> None:
    def one(value: int) -> dict[str, Tensor]:
        return {"p0/s0/ids": torch.tensor([value])}

    assert subtract_definition(one(4), one(3), one(4)) == one(3)
    assert subtract_definition(one(5), one(3), one(4)) == one(5)
    text = {"p0/s0/said": torch.tensor([65], dtype=torch.uint8)}
    assert subtract_definition(text, text, text) == text
