"""The first layer that differs, and what the write in it did."""

import pytest
import torch

from conformance.check.identify import catalogue
from conformance.check.writes import parting
from conformance.records import Site

TOKENS, WIDTH = 4, 16
IDS = torch.tensor([5, 6, 7, 8])
MAKER = torch.Generator().manual_seed(1)
BEFORE, BRANCH, ADDED = (torch.randn(TOKENS, WIDTH, generator=MAKER) for _ in range(3))
CLEAN = BEFORE + BRANCH


def parted(meant, made):
    """The parting of a model of one layer in which a write was meant to give one stream."""
    seen = {
        "layers|p0/s0/ids": IDS,
        "layers|p0/s0/stream.0": meant,
        "clean|p0/s0/stream.0": CLEAN,
        "value|0|model.layers.0.mlp|output": BRANCH,
    }
    truth = {Site("ids"): IDS, Site("stream", layer=0): meant}
    mine = {Site("ids"): IDS, Site("stream", layer=0): made}
    return parting(mine, truth, catalogue(seen, "model.layers"))


def test_equal_layers_do_not_part():
    assert parted(CLEAN, CLEAN * (1 + 1e-6)) is None


@pytest.mark.parametrize(
    ("meant", "made", "kind"),
    [
        (CLEAN + ADDED, CLEAN, "dropped"),
        (CLEAN + ADDED, CLEAN + 2 * ADDED, "twice"),
        (CLEAN + ADDED, CLEAN + 0.5 * ADDED, "scaled"),
        (CLEAN * 0, BEFORE, "first-half"),
        (CLEAN * 0, BRANCH, "second-half"),
        (CLEAN * 3, BEFORE + 3 * BRANCH, "first-half"),
        (ADDED, ADDED + BEFORE, "first-half"),
        (ADDED, ADDED.flip(0), ""),
    ],
)
def test_a_write_is_known_by_what_it_did(meant, made, kind):
    found = parted(meant, made)
    assert (found.layer, found.step, found.kind) == (0, 0, kind)
    assert found.tokens == tuple(range(TOKENS))


def test_a_write_that_reaches_some_tokens_names_the_others():
    made = CLEAN + ADDED
    made[1:3] = CLEAN[1:3]
    found = parted(CLEAN + ADDED, made)
    assert found.kind == "partial" and found.tokens == (1, 2)
    assert "token 1" in found.place()


def test_sequences_are_matched_by_their_prompts():
    other = torch.tensor([9, 9])
    rows = torch.ones(2, WIDTH)
    truth = {
        Site("ids", prompt=0): IDS,
        Site("stream", prompt=0, layer=0): CLEAN,
        Site("ids", prompt=1): other,
        Site("stream", prompt=1, layer=0): rows,
    }
    mine = {
        Site("ids", prompt=0): other,
        Site("stream", prompt=0, layer=0): rows,
        Site("ids", prompt=1): IDS,
        Site("stream", prompt=1, layer=0): CLEAN,
    }
    assert parting(mine, truth, []) is None
