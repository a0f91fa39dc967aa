"""Rows that no write can have reached, and rows that only look like it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance.judge.measures import reach
from conformance.records import Precision, Site, Verdict
from tests.judge import toy

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


ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        # Rows before the written one and layers before the write are not reached.
        (
            {edited("stream", 0): pair(), edited("stream", 1): pair(2), edited("mlp", 0): pair()},
            {"p0/s0/stream.0": ALL, "p0/s0/stream.1": [0, 1], "p0/s0/mlp.0": ALL},
        ),
        # A row after a write to the whole stream is, though nothing shows it: a norm is blind to a
        # factor of two, and only the row that was written once more has changed.
        (
            {edited("written_0", 1): pair(*ALL), edited("written_1", 2): pair(0)},
            {"p0/s0/written_1.2": []},
        ),
        # A write that no observation shows proves nothing; the stream at its place does.
        (
            {edited("attention_input", 2): pair(), edited("logits", None): pair(3)},
            {"p0/s0/attention_input.2": []},
        ),
        (
            {
                edited("attention_input", 2): pair(),
                edited("logits", None): pair(3),
                edited("stream", 2): pair(3),
            },
            {"p0/s0/attention_input.2": [0, 1, 2]},
        ),
        # What comes into a layer proves the layers before.
        (
            {edited("mlp", 1): pair(), edited("mlp", 2): pair(), edited("input", 2): pair(3)},
            {"p0/s0/mlp.1": [0, 1, 2], "p0/s0/mlp.2": [], "p0/s0/input.2": [0, 1, 2]},
        ),
        # Steps after a write are reached, and prompts beside it are not.
        (
            {
                edited("stream", 1): pair(3),
                edited("stream", 1, step=1): pair(),
                edited("mlp", 1, prompt=1): pair(),
                edited("logits", None, prompt=1): pair(),
            },
            {"p0/s1/stream.1": [], "p1/s0/mlp.1": ALL, "p1/s0/logits": ALL},
        ),
    ],
)
def test_rows_that_no_write_can_have_reached(
    sites: dict[Site, reach.Floors], expected: dict[str, list[int]]
) -> None:
    found = {str(site): rows.nonzero().flatten() for site, rows in reach.unreached(sites).items()}
    assert {name: found[f"edited/{name}"].tolist() for name in expected} == expected


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
