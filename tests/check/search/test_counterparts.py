"""Statements of `hf` carried over to `vllm`, in the forms that values have there."""

from __future__ import annotations

import pytest

from conformance.check.search.candidates import propose
from conformance.check.search.change import Clues

SUM = "(layers[1].output[0] + layers[1].output[1])"


def sides(theirs: str, ours: str) -> str:
    """A file with these two bodies, in which each line has its indent."""
    return f"def hf(model):\n{theirs}    return a\n\n\ndef vllm(model):\n{ours}    return a\n"


@pytest.mark.parametrize(
    ("theirs", "before", "after"),
    [
        (  # a name for a module's value
            "z = block.o_proj.input\na = z.reshape(1, -1, 4, 8).transpose(1, 2)[0]",
            "z = block.o_proj.input\na = z.reshape(4, -1, 8)",
            "z = block.o_proj.input\na = z[None].reshape(1, -1, 4, 8).transpose(1, 2)[0]",
        ),
        (  # a module's value itself, and a result without the axis
            "a = block.mlp.output.mean(dim=1)",
            "a = block.mlp.output.mean(dim=-1)",
            "a = block.mlp.output[None].mean(dim=1)[0]",
        ),
        (  # a sum of two tensors, and a name for another value
            "z = read(model)\na = torch.einsum('btw,tw->w', z, layers[1].output[0])",
            "z = read(model)\na = z",
            f"z = read(model)\na = torch.einsum('btw,tw->w', z[None], {SUM}[None][0])",
        ),
        (
            "rows = [].save()\nrows.append(1)\na = torch.cat(rows).mean(dim=0)",
            "rows = {}.save()\nrows[0] = 1\na = torch.stack([rows[0]]).mean(dim=0)",
            "rows = {}.save()\nrows[0] = 1\na = torch.cat(list(rows.values())).mean(dim=0)",
        ),
        (
            "rows = []\nrows.append(1)\na = torch.cat(rows, dim=1)",
            "rows = {}\nrows[0] = 1\na = torch.cat([rows[0]])",
            "rows = {}\nrows[0] = 1\na = torch.cat([one[None] for one in rows.values()], dim=1)",
        ),
        (
            "rows, b = {}.save(), 1\nrows[0] = 1\na = max(rows.items())",
            "rows, b = [].save(), 1\nrows.append(1)\na = max(rows)",
            "rows, b = [].save(), 1\nrows.append(1)\na = max(dict(enumerate(rows)).items())",
        ),
    ],
)
def test_a_statement_of_hf_takes_the_forms_that_its_values_have_in_vllm(theirs, before, after):
    theirs, before, after = (
        "".join(f"    {line}\n" for line in text.splitlines()) for text in (theirs, before, after)
    )
    found = propose(sides(theirs, before), "vllm", Clues(dual=True, modules=("mlp", "o_proj")))
    assert {one.text: one.cost for one in found}[sides(theirs, after)] <= 6


def test_a_statement_that_takes_no_axes_gets_none():
    body = "    z = block.mlp.output\n    a = z * 2\n"
    assert not [one for one in propose(sides(body, body), "vllm", Clues()) if "[None]" in one.text]
