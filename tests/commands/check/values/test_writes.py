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


def parted(meant, made):
    """The parting of a model of one layer in which a write was meant to give one stream."""
    seen = {
        "layers|p0/s0/ids": IDS,
        "layers|p0/s0/stream.0": meant,
        "clean|p0/s0/stream.0": CLEAN,
        "value|0/0|model.layers.0.mlp|output": BRANCH,
    }
    mine = {Site("ids"): IDS, Site("stream", layer=0): made}
    return parting(mine, seen, catalogue(seen, "model.layers"))


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


def later(meant, made):
    """The parting at the second of two layers, where both sides wrote in the first: what that one
    left goes through the second, and `meant` and `made` are what is added there.
    """
    first = CLEAN + ADDED
    came = first + BRANCH * 2
    seen = {
        "layers|p0/s0/ids": IDS,
        "clean|p0/s0/stream.0": CLEAN,
        "clean|p0/s0/stream.1": CLEAN + BRANCH,
        "layers|p0/s0/stream.0": first,
        "layers|p0/s0/stream.1": came + meant,
        "natural|p0/s0/stream.0": CLEAN,
        "natural|p0/s0/stream.1": came,
        "value|0/0|model.layers.1.mlp|output": BRANCH,
        "written|0/0|model.layers.1.mlp|output": BRANCH * 2,
    }
    mine = {
        Site("ids"): IDS,
        Site("stream", layer=0): first,
        Site("stream", layer=1): came + made,
    }
    return parting(mine, seen, catalogue(seen, "model.layers"))


def test_after_a_layer_that_both_sides_write_in_nothing_is_said_of_the_next_write():
    found = later(BEFORE, 2 * BEFORE)
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
    def streams(at):
        return [CLEAN + ADDED * (layer >= at) + layer for layer in (0, 1)]

    clean = streams(2)
    seen = {"layers|p0/s0/ids": IDS}
    sides = []
    for at in (meant_at, made_at):
        sides.append({Site("ids"): IDS})
        for layer, rows in enumerate(streams(at)):
            sides[-1][Site("stream", layer=layer)] = rows
            seen[f"clean|p0/s0/stream.{layer}"] = clean[layer]
    seen |= {f"layers|{site}": value for site, value in sides[0].items()}
    found = parting(sides[1], seen, catalogue(seen, "model.layers"))
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
    seen = {f"layers|p0/s{each}/ids": IDS for each in (0, 1)}
    seen |= {f"clean|p0/s{each}/stream.0": CLEAN for each in (0, 1)}
    sides = []
    for written in (meant, made):
        sides.append({Site("ids"): IDS, Site("ids", step=1): IDS})
        for each in (0, 1):
            sides[-1][Site("stream", layer=0, step=each)] = written if each == step else CLEAN
    seen |= {f"layers|{site}": value for site, value in sides[0].items()}
    found = parting(sides[1], seen, catalogue(seen, "model.layers"))
    where = f"layer 0, step {step}" if step else "layer 0"
    assert (found.step, found.kind) == (step, kind)
    assert found.words.startswith(words.format(step)) and where in found.words
