"""The first layer that differs, and what the write in it did."""

import pytest
import torch

from conformance.commands.check.values.divergence import parting
from conformance.commands.check.values.known_values import catalogue
from conformance.spec.records import Site

TOKENS, WIDTH = 4, 16
IDS = torch.tensor([5, 6, 7, 8])
MAKER = torch.Generator().manual_seed(1)
BEFORE, BRANCH, ADDED = (torch.randn(TOKENS, WIDTH, generator=MAKER) for _ in range(3))
CLEAN = BEFORE + BRANCH


def parting_of(meant, made, clean, **more):
    """The parting of streams, by site: meant on transformers, made on the engine, and clean."""
    ids = {Site("ids", step=site.step): IDS for site in meant}
    seen = {f"layers|{site}": value for site, value in (ids | meant).items()} | more
    seen |= {f"clean|{site}": value for site, value in clean.items()}
    return parting(ids | made, seen, catalogue(seen, "model.layers"))


def streams(*rows):
    """The streams after layers 0, 1, …"""
    return {Site("stream", layer=layer): each for layer, each in enumerate(rows)}


def parted(meant, made):
    """The parting of a model of one layer in which a write was meant to give one stream."""
    branch = {"value|0/0|model.layers.0.mlp|output": BRANCH}
    return parting_of(streams(meant), streams(made), streams(CLEAN), **branch)


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
        (ADDED, ADDED.flip(0), "write"),
    ],
)
def test_a_write_is_known_by_what_it_did(meant, made, kind):
    found = parted(meant, made)
    assert (found.layer, found.step, found.kind) == (0, 0, kind)
    assert found.words.endswith("since layer 0 (every token)")


def test_of_another_change_its_size_and_direction_are_said():
    found = parted(CLEAN + ADDED, CLEAN + 2 * ADDED * torch.tensor([[-1.0], [-1.1], [-0.9], [-1]]))
    assert found.kind == "write" and found.words.startswith(
        "the write makes another change, 2 times as large (cosine -1.00), "
    )


def test_a_write_that_reaches_some_tokens_names_the_others():
    made = CLEAN + ADDED
    made[1:3] = CLEAN[1:3]
    found = parted(CLEAN + ADDED, made)
    words = "the write had no effect there: it reached tokens 0, 3 alone"
    assert found.kind == "partial"
    assert found.words == f"{words}, since layer 0 (tokens 1-2)"


def test_after_a_layer_that_both_sides_write_in_nothing_is_said_of_the_next_write():
    """What the first write left goes through the second layer, where both sides add, too."""
    first = CLEAN + ADDED
    came = first + BRANCH * 2
    more = {
        "natural|p0/s0/stream.0": CLEAN,
        "natural|p0/s0/stream.1": came,
        "value|0/0|model.layers.1.mlp|output": BRANCH,
        "written|0/0|model.layers.1.mlp|output": BRANCH * 2,
    }
    meant, made = (streams(first, came + times * BEFORE) for times in (1, 2))
    found = parting_of(meant, made, streams(CLEAN, CLEAN + BRANCH), **more)
    assert (found.layer, found.kind) == (1, "write")
    assert found.words == "the layers compute something else since layer 1 (every token)"


def test_sequences_are_matched_by_their_prompts():
    other = torch.tensor([9, 9])
    rows = torch.ones(2, WIDTH)
    seen = {
        "layers|p0/s0/ids": IDS,
        "layers|p0/s0/stream.0": CLEAN,
        "layers|p1/s0/ids": other,
        "layers|p1/s0/stream.0": rows,
    }
    mine = {
        Site("ids", prompt=0): other,
        Site("stream", prompt=0, layer=0): rows,
        Site("ids", prompt=1): IDS,
        Site("stream", prompt=1, layer=0): CLEAN,
    }
    assert parting(mine, seen, []) is None


def test_a_write_to_other_tokens_and_to_more_of_them_is_named():
    meant, made = CLEAN.clone(), CLEAN.clone()
    meant[3] += ADDED[3]
    made[0] += ADDED[0]
    found = parted(meant, made)
    assert found.kind == "other-tokens"
    assert found.words.startswith("the write reached token 0 instead of token 3, since layer 0 ")
    made[3] = meant[3]
    assert parted(meant, made).kind == "too-many"


@pytest.mark.parametrize(("meant_at", "made_at", "first"), [(0, 1, 0), (1, 0, 0)])
def test_a_write_at_another_layer_names_both(meant_at, made_at, first):
    def written(at):
        return streams(*(CLEAN + ADDED * (layer >= at) + layer for layer in (0, 1)))

    found = parting_of(*map(written, (meant_at, made_at, 2)))
    assert (found.layer, found.kind) == (first, "other-layer")
    assert found.words.startswith(
        f"the write is at layer {made_at}, and on transformers at layer {meant_at}, since "
    )


@pytest.mark.parametrize(
    ("meant", "made", "kind", "words"),
    [
        (CLEAN + ADDED, CLEAN, "dropped", "the write had no effect in step {}"),
        (CLEAN, CLEAN + ADDED, "elsewhere", "on transformers nothing is written in step {}"),
    ],
)
@pytest.mark.parametrize("step", [0, 1])
def test_in_a_generation_the_step_is_named(meant, made, kind, words, step):
    def streams(rows):
        sites = (Site("stream", layer=0, step=each) for each in (0, 1))
        return {site: rows if site.step == step else CLEAN for site in sites}

    found = parting_of(streams(meant), streams(made), streams(CLEAN))
    where = f"layer 0, step {step}" if step else "layer 0"
    assert (found.step, found.kind) == (step, kind)
    assert found.words.startswith(words.format(step)) and where in found.words
