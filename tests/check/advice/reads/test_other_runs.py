"""Two runs of one prompt, and prompts that begin alike: whose rows a value holds."""

import pytest
import torch

from conformance.check.advice.findings import _Explaining
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.known_values import catalogue
from conformance.records import Site

TOKENS, WIDTH = 4, 32
MAKER = torch.Generator().manual_seed(0)
CLEAN, EDITED, OTHER = (torch.randn(TOKENS, WIDTH, generator=MAKER) for _ in range(3))
MLP = "model.layers.1.mlp|output"


def explained(folder, seen, mine, truth):
    path = folder / "runs.py"
    path.write_text("def hf(model):\n    return {}\n\n\ndef vllm(model):\n    return {}\n")
    known = catalogue(seen, "model.layers")
    site = Site("x")
    places = Places(source.read(path), "vllm")
    return _Explaining(places, {site: truth}, {site: mine}, known, {}, written=True).read(site)


def runs(ids):
    """Of two sequences, of which the trace wrote in the second."""
    return {
        "layers|p0/s0/ids": torch.tensor([1, 2, 3, 4]),
        "layers|p1/s0/ids": torch.tensor(ids),
        f"value|0/0|{MLP}": CLEAN,
        f"written|1/0|{MLP}": EDITED,
    }


@pytest.mark.parametrize(
    ("ids", "mine", "truth", "kind", "words"),
    [
        ([1, 2, 3, 4], CLEAN, EDITED, "unwritten", "as in another run of this prompt"),
        ([1, 2, 3, 4], EDITED, CLEAN, "other-prompt", "another run of the same prompt has, with"),
        ([1, 2, 3, 5], CLEAN, EDITED, "other-prompt", "another prompt's rows: those of prompt 0"),
    ],
)
def test_rows_of_another_run_of_the_same_prompt_are_no_other_prompt_s(
    tmp_path, ids, mine, truth, kind, words
):
    found = explained(tmp_path, runs(ids), mine, truth)
    assert found.kind == kind and words in found.words


def test_rows_that_prompts_have_in_common_are_a_prompt_s_own(tmp_path):
    rows = torch.cat([CLEAN[:2], OTHER[2:]])
    seen = {
        "layers|p0/s0/ids": torch.tensor([1, 2, 3, 4]),
        "layers|p1/s0/ids": torch.tensor([1, 2, 8, 9]),
        f"value|0/0|{MLP}": CLEAN,
        f"value|1/0|{MLP}": rows,
    }
    found = explained(tmp_path, seen, rows[0], rows[-1])
    assert found.kind == "mlp" and "holds token 0 instead of" in found.words


@pytest.mark.parametrize(("due", "kind"), [(OTHER[:, 0], "positions"), (torch.arange(4), None)])
def test_positions_are_held_where_an_activation_was_due(tmp_path, due, kind):
    """Integers that a function computes, of a layer and a head, may count up as well."""
    found = explained(tmp_path, runs([1, 2, 3, 4]), torch.arange(TOKENS), due * 2)
    assert (found.kind == "positions") == (kind == "positions")
