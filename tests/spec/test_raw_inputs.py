"""Of `raw.input`: a first argument is declined where by design it is not the stream, only there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

INSTEAD = runpy.run_path(str(Path(__file__).parents[2] / "scenarios" / "raw.py"))["instead"]
HALF, REST = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
STREAM = HALF + REST
PLACES = torch.arange(4)


@pytest.mark.parametrize(
    ("value", "copies", "words"),
    [
        (STREAM, [STREAM], ""),
        (STREAM[None], [STREAM[None]], ""),
        (HALF, [HALF, REST], "one summand of the stream"),
        (STREAM, [STREAM, torch.zeros_like(STREAM)], ""),
        (PLACES, [HALF, REST], "the places of the tokens"),
        (PLACES, [STREAM], "the places of the tokens"),
        (STREAM.roll(1, dims=0), [STREAM], ""),
        (STREAM.roll(1, dims=0), [STREAM, REST], ""),
        (REST, [STREAM], ""),
        (PLACES, [STREAM.roll(1, dims=0)], ""),
        (PLACES, [], ""),
    ],
)
def test_what_is_declined_is_seen_to_be_no_stream(value, copies, words) -> None:
    assert INSTEAD(value, copies, STREAM) == words
