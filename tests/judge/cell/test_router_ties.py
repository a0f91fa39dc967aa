"""Mixtures: what is judged where a router has two experts for a token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.judgement import Judgement
from conformance.judge.cell.measures.reach import follow_ties
from conformance.spec.records import Precision, Site, Verdict
from tests.judge.cell import toy

TOKENS, LAYERS = 6, 3
DRAW = torch.Generator().manual_seed(0)
REFERENCE = {
    **{f"p0/s0/stream.{layer}": torch.randn(TOKENS, 64, generator=DRAW) for layer in range(LAYERS)},
    "p0/s0/logits": torch.randn(97, generator=DRAW),
}


def ties(*tokens: int, layer: int = 1) -> dict[str, Tensor]:
    found = torch.zeros(TOKENS, dtype=torch.uint8)
    found[list(tokens)] = 1
    return {f"p0/s0/tied.{layer}": found}


def judged(off: dict[str, list[int]], tied: dict[str, Tensor]) -> Judgement:
    """With another expert's output in these rows."""
    candidate = {site: value * (1 + 1e-7) for site, value in REFERENCE.items()}
    for site, rows in off.items():
        if site.endswith("logits"):
            candidate[site] = candidate[site].flip(0)
        else:
            candidate[site][rows] += 0.3
    runs = {f"float32_{n}": {s: v * (1 + n * 1e-7) for s, v in REFERENCE.items()} for n in (-1, 1)}
    members = {"truth": REFERENCE, "aux": tied, **runs}
    context = {"precision": Precision.FLOAT32, "reading": {"mixture": True}}
    return toy.judge(candidate, members, **context)


@pytest.mark.parametrize("tied", [{}, ties(2)])
@pytest.mark.parametrize(
    "off", [{"p0/s0/stream.1": [2]}, {"p0/s0/stream.2": [1]}, {"p0/s0/logits": []}]
)
def test_no_row_is_excused_because_a_router_ties(
    off: dict[str, list[int]], tied: dict[str, Tensor]
) -> None:
    """The reference is run along the candidate's experts instead."""
    assert judged(off, tied).verdict is Verdict.WRONG


def mixture(write: float = 1.0, spoil: bool = False) -> Judgement:
    """Layers of one row each in bf16, of which any single one may be another expert's; a write
    changes each by a row of its own, on the candidate `write` times as much.
    """
    draw = torch.Generator().manual_seed(1)
    names = [f"p0/s0/stream.{layer}" for layer in range(8)]
    clean = {name: torch.randn(1, 64, generator=draw) for name in names}
    effect = {name: 0.5 * torch.randn(1, 64, generator=draw) for name in names}

    def observe(times: float) -> dict[str, Tensor]:
        found = {}
        for name, value in clean.items():
            for run, size in (("clean", 0.0), ("edited", times)):
                noise = 0.005 * torch.randn(1, 64, generator=draw)
                found[f"{run}/{name}"] = (value + size * effect[name] + noise).bfloat16()
        return found

    reference_values = {f"clean/{name}": value for name, value in clean.items()}
    reference_values |= {f"edited/{name}": value + effect[name] for name, value in clean.items()}
    members = {member: observe(1.0) for member in ("a", "b", "c", "d")}
    candidate = observe(write)
    if spoil:
        candidate |= {name: torch.randn(1, 64, generator=draw).bfloat16() for name in candidate}
    context = {"has_edit": True, "reading": {"mixture": True}, "alone": False}
    return toy.judge(candidate, {"truth": reference_values, **members}, **context)


@pytest.mark.parametrize(
    ("write", "verdict"),
    [
        (1.0, Verdict.MATCH),
        (0.0, Verdict.DROPPED),
        (2.0, Verdict.MISSCALED),
        (-1.0, Verdict.MISSCALED),
    ],
)
def test_the_writes_of_a_mixture_are_judged_in_bf16_too(write: float, verdict: Verdict) -> None:
    assert mixture(write).verdict is verdict


def test_random_rows_in_every_step_are_not_all_other_experts() -> None:
    found = mixture(spoil=True)
    assert found.verdict.fails
    messages = {item.message for item in found.observations if item.verdict is Verdict.WRONG}
    assert any("rows of all layers and steps are far off" in words for words in messages)


def test_where_nothing_is_off_a_tie_changes_nothing() -> None:
    assert judged({}, ties(2)).verdict.passes


def test_later_steps_and_other_rows_may_all_follow() -> None:
    tied = {Site.parse(site): value for site, value in ties(2).items()}
    assert follow_ties(Site("stream", step=1, layer=0), 1, tied).all()
    assert follow_ties(Site("rows", layer=1), 2, tied).all()
    assert not follow_ties(Site("stream", prompt=1, layer=1), TOKENS, tied).any()
    assert not follow_ties(Site("stream", run="edited", layer=1), TOKENS, tied).any()
