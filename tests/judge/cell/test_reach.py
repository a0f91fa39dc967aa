"""Rows that no write can have reached, and rows that only look like it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

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
