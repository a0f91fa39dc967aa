"""Rows that no write can have reached, and rows that a router may send to another expert."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.judgement import Judgement
from conformance.judge.cell.measures import reach
from conformance.spec.records import Precision, Site, Verdict
from tests.judge.cell import toy

T, D = 4, 32
WAYS = ("float32_split", "float32_sdpa", "float32_padded")


def pair(*rows: int) -> reach.Floors:
    """An observation in which a write changes these rows."""
    clean = torch.randn(T, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edited = clean.clone()
    edited[list(rows)] += 1
    runs = [toy.floor(value, value.expand(3, T, D)) for value in (clean, edited)]
    return runs[0], runs[1]


def edited(name: str, layer: int | None, prompt: int = 0, step: int = 0) -> Site:
    return Site(name, prompt, step, layer, "edited")


def shown(found: dict[Site, Tensor]) -> dict[str, list[int]]:
    return {str(site): rows.nonzero().flatten().tolist() for site, rows in found.items()}


def test_rows_before_the_written_one_and_layers_before_the_write_are_not_reached() -> None:
    sites = {edited("stream", 0): pair(), edited("stream", 1): pair(2), edited("mlp", 0): pair()}
    assert shown(reach.unreached(sites)) == {
        "edited/p0/s0/stream.0": [0, 1, 2, 3],
        "edited/p0/s0/stream.1": [0, 1],
        "edited/p0/s0/mlp.0": [0, 1, 2, 3],
    }


def test_a_row_after_a_write_to_the_whole_stream_is_reached_though_nothing_shows_it() -> None:
    """A norm is blind to a factor of two: only the row that was written once more has changed."""
    sites = {edited("written_0", 1): pair(0, 1, 2, 3), edited("written_1", 2): pair(0)}
    assert shown(reach.unreached(sites))["edited/p0/s0/written_1.2"] == []


def test_a_write_that_no_observation_shows_proves_nothing_either() -> None:
    sites = {edited("attention_input", 2): pair(), edited("logits", None): pair(3)}
    assert shown(reach.unreached(sites))["edited/p0/s0/attention_input.2"] == []
    sites[edited("stream", 2)] = pair(3)
    assert shown(reach.unreached(sites))["edited/p0/s0/attention_input.2"] == [0, 1, 2]


def test_what_comes_into_a_layer_proves_the_layers_before() -> None:
    sites = {edited("mlp", 1): pair(), edited("mlp", 2): pair(), edited("input", 2): pair(3)}
    found = shown(reach.unreached(sites))
    assert found["edited/p0/s0/mlp.1"] == [0, 1, 2]
    assert found["edited/p0/s0/mlp.2"] == []
    assert found["edited/p0/s0/input.2"] == [0, 1, 2]


def test_steps_after_a_write_are_reached_and_prompts_beside_it_are_not() -> None:
    sites = {
        edited("stream", 1): pair(3),
        edited("stream", 1, step=1): pair(),
        edited("mlp", 1, prompt=1): pair(),
        edited("logits", None, prompt=1): pair(),
    }
    found = shown(reach.unreached(sites))
    assert found["edited/p0/s1/stream.1"] == []
    assert found["edited/p1/s0/mlp.1"] == found["edited/p1/s0/logits"] == [0, 1, 2, 3]


@pytest.mark.parametrize(("named", "kind"), [("norm", "passes"), ("stream", "fails")])
def test_a_rounding_after_a_blind_norm_is_no_contamination(named: str, kind: str) -> None:
    """A cell: the stream is doubled, and one row of what the next norm gives is written."""

    def observe(noise: float, jitter: float = 0.0) -> toy.Observations:
        found: toy.Observations = {}
        for run, factor in (("clean", 1.0), ("edited", 2.0)):
            rows = torch.randn(T, D, generator=torch.Generator().manual_seed(1))
            own = torch.Generator().manual_seed(int(noise * 1e9))
            rows += noise * torch.randn(T, D, generator=own)
            normed = rows / rows.norm(dim=-1, keepdim=True)
            if run == "edited":
                normed[3] += 1
                normed[2, 0] += jitter
            found[str(Site("written_0", 0, 0, 1, run))] = factor * rows
            found[str(Site(named, 0, 0, 2, run))] = normed
            logits = factor * rows.sum(dim=0)
            found[str(Site("logits", 0, 0, run=run))] = logits
        return found

    reference = {"truth": observe(0.0)}
    reference |= {way: observe(1e-7 * (index + 1)) for index, way in enumerate(WAYS)}
    candidate = observe(4e-7, jitter=2e-7)
    context = {"has_edit": True, "precision": Precision.FLOAT32, "bitwise": True}
    found = toy.judge(candidate, reference, **context)
    assert found.verdict is (Verdict.MATCH if kind == "passes" else Verdict.CONTAMINATED)


TOKENS, LAYERS = 6, 3
RUNS = ("clean", "edited")
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
    "off", [{}, {"p0/s0/stream.1": [2]}, {"p0/s0/stream.2": [1]}, {"p0/s0/logits": []}]
)
def test_no_row_is_excused_because_a_router_ties(off, tied):
    """The reference is run along the candidate's experts instead."""
    verdict = judged(off, tied).verdict
    assert verdict is Verdict.WRONG if off else verdict.passes


def mixture(write: float = 1.0, spoil: bool = False, astray: bool = False) -> Judgement:
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
    if astray:  # one row comes from another expert, in both runs
        other = {f"{run}/{names[3]}": torch.randn(1, 64, generator=draw) for run in RUNS}
        candidate |= {name: value.bfloat16() for name, value in other.items()}
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


def test_a_row_of_another_expert_has_no_gain() -> None:
    assert mixture(astray=True).verdict is Verdict.DRIFT


def test_random_rows_in_every_step_are_not_all_other_experts() -> None:
    found = mixture(spoil=True)
    assert found.verdict.fails
    messages = {item.message for item in found.observations if item.verdict is Verdict.WRONG}
    assert any("rows of all layers and steps are far off" in words for words in messages)


def test_later_steps_and_other_rows_may_all_follow() -> None:
    tied = {Site.parse(site): value for site, value in ties(2).items()}
    assert reach.follow_ties(Site("stream", step=1, layer=0), 1, tied).all()
    assert reach.follow_ties(Site("rows", layer=1), 2, tied).all()
    assert not reach.follow_ties(Site("stream", prompt=1, layer=1), TOKENS, tied).any()
    assert not reach.follow_ties(Site("stream", run="edited", layer=1), TOKENS, tied).any()
