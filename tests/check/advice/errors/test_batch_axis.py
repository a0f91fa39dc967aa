"""An index or an axis that counts a batch axis which is not there: the line, as it should be."""

import pytest

from conformance.check.advice.errors import failures
from conformance.check.advice.reads import batch_axis
from conformance.check.advice.reads.batch_axis import AXIS
from conformance.check.advice.writes.causes import ordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.records import Outcome, Status

MLP, ATTENTION = "model.model.layers[1].mlp.output", "model.model.layers[1].self_attn.output"
STREAM = "model.model.layers[2].output"


def ported(folder, theirs, ours):
    """A file of these lines in the blocks of `hf` and of `vllm`."""
    text = ""
    for name, lines in (("hf", theirs), ("vllm", ours)):
        body = "".join(f"        {line}\n" for line in lines)
        text += f'def {name}(model):\n    with model.trace("a"):\n{body}    return {{"x": x}}\n\n\n'
    path = folder / "port.py"
    path.write_text(f"{text}def add(a):\n    return a.topk(2)\n")
    return source.read(path)


def mended(file, **more):
    return [one.edit.after.strip() for one in batch_axis.lost(Places(file, "vllm", **more))]


#: Lines of `hf`, lines of `vllm`, and those of the latter that are mended.
COUNTED = {
    "a row": ([f"x = {MLP}[:, -1]"], [f"x = {MLP}[:, -1]"], [f"x = {MLP}[-1]"]),
    "a row of a sum": (
        [f"h = {STREAM}", "x = h[:, -1].save()"],
        [f"h, r = {STREAM}", "h = h + r", "x = h[:, -1].save()"],
        ["x = h[-1].save()"],
    ),
    "a row of a sum in parentheses": (
        [f"x = {STREAM}[0, -1].float()"],
        [f"h = {STREAM}", "x = (h[0] + h[1])[0, -1].float()"],
        ["x = (h[0] + h[1])[-1].float()"],
    ),
    "several rows of a sum": (
        [f"x = {STREAM}[0, [place, -1]].float()"],
        [f"h = {STREAM}", "x = (h[0] + h[1])[0, [place, -1]].float()"],
        ["x = (h[0] + h[1])[[place, -1]].float()"],
    ),
    "a row with the width": (
        [f"x = {MLP}[:, -1, :]"],
        [f"x = {MLP}[:, -1, :]"],
        [f"x = {MLP}[-1]"],
    ),
    "hf's whole line": (
        [f"z = {MLP}", "z[:, -1, cols] = z[:, :, cols].mean(dim=1)", "x = z"],
        [f"z = {MLP}", "z[:, -1, cols] = z[:, :, cols].mean(dim=1)", "x = z"],
        ["z[-1, cols] = z[:, cols].mean(dim=0)"],
    ),
    "the axis behind an index that is right": (
        [f"z = {MLP}", "z[:, -1, cols] = z[:, :, cols].mean(dim=1)", "x = z"],
        [f"z = {MLP}", "z[-1, cols] = z[:, cols].mean(dim=1)", "x = z"],
        ["z[-1, cols] = z[:, cols].mean(dim=0)"],
    ),
    "hf's index": ([f"x = {MLP}[0, -1]"], [f"x = {MLP}[:, -1]"], [f"x = {MLP}[-1]"]),
    "the first prompt": ([f"m = {MLP}", "x = m[0]"], [f"m = {MLP}", "x = m[0]"], ["x = m"]),
    "a tuple's first": (
        [f"x = {ATTENTION}[0][0, -1]"],
        [f"x = {ATTENTION}[0][-1]"],
        [f"x = {ATTENTION}[-1]"],
    ),
    "both halves": (
        [f"h = {STREAM}", "h[:, -1] *= 2", "x = 1"],
        [f"h, r = {STREAM}", "h[:, -1] *= 2", "r[:, -1] *= 2", "x = 1"],
        ["h[-1] *= 2", "r[-1] *= 2"],
    ),
    "a mean": ([f"x = {MLP}.mean(dim=1)"], [f"x = {MLP}.mean(dim=1)"], [f"x = {MLP}.mean(dim=0)"]),
    "a mean by torch": (
        [f"x = torch.mean({MLP}, 1)"],
        [f"x = torch.mean({MLP}, 1)"],
        [f"x = torch.mean({MLP}, 0)"],
    ),
    "a lens": (
        [f"h = {STREAM}", "x = model.lm_head(model.model.norm(h))[0]"],
        [
            f"h = ({STREAM}[0] + {STREAM}[1])",
            "y = linear(model.model.norm(h), model.lm_head.weight)",
            "x = y[0]",
        ],
        ["x = y"],
    ),
    "a product": (
        [f"h = {STREAM}", "x = model.lm_head(h).float().softmax(-1)[:, -1]"],
        [f"a, b = {STREAM}", "h = a + b", "x = (h @ W.T).float().softmax(-1)[:, -1]"],
        ["x = (h @ W.T).float().softmax(-1)[-1]"],
    ),
    "a function of torch": (
        [f"x = torch.relu({MLP})[0, -1]"],
        [f"x = torch.relu({MLP})[0, -1]"],
        [f"x = torch.relu({MLP})[-1]"],
    ),
    "a write of everything": (
        [f"x = {STREAM}[:, -1]", f"h = {STREAM}", "h[:] += x"],
        [f"h, r = {STREAM}", "x = (h + r)[-1]", "h[:, -1] += x"],
        ["h[:] += x"],
    ),
    "a write of a row beside a read of all": (
        [f"x = {MLP}[:]", f"{MLP}[:, -1] = 0"],
        [f"x = {MLP}[:]", f"{MLP}[:, -1] = 0"],
        [f"{MLP}[-1] = 0"],
    ),
    "no such axis": ([f"x = {MLP}.sum(-1)"], [f"x = {MLP}.sum(dim=2)"], [f"x = {MLP}.sum(dim=1)"]),
}

#: What is right there: the same without the axis, columns on purpose, all of it.
RIGHT = {
    "a row": ([f"x = {MLP}[:, -1]"], [f"x = {MLP}[-1]"]),
    "columns": ([f"x = {MLP}[:, :, 4:8]"], [f"x = {MLP}[:, 4:8]"]),
    "other columns": ([f"x = {MLP}[:, :, 4:8]"], [f"x = {MLP}[:, 8:12]"]),
    "everything": ([f"x = {MLP}[:]"], [f"x = {MLP}[:]"]),
    "token 0": ([f"x = {ATTENTION}[0][:, 0]"], [f"x = {ATTENTION}[0]"]),
    "an axis": ([f"x = {MLP}.mean(dim=2)"], [f"x = {MLP}.mean(dim=1)"]),
    "a lens": (
        [f"h = {STREAM}", "x = model.lm_head(model.model.norm(h))[0]"],
        [f"a, b = {STREAM}", "x = model.model.norm(a + b) @ model.lm_head.weight.T"],
    ),
    "a pair of a projection": (
        [f"x = model.model.layers[1].mlp.down_proj({MLP})"],
        [f"x = model.model.layers[1].mlp.down_proj({MLP})[0]"],
    ),
    "a helper of that name": ([f"x = add({MLP})[0]"], [f"x = add({MLP})[0]"]),
    "columns, and a token": ([f"x = {MLP}[:, -1, cols]"], [f"x = {MLP}[-1, cols]"]),
    "columns of every token": ([f"x = {MLP}[:, -1, cols]"], [f"x = {MLP}[:, cols]"]),
    "two writes": (
        [f"x = {MLP}[:, -1]", f"{MLP}[:] = 0", f"{MLP}[:, :, 3] = 1"],
        [f"x = {MLP}[-1]", f"{MLP}[:, -1] = 0", f"{MLP}[:, 3] = 1"],
    ),
    "columns of everything": (
        [f"x = {MLP}[:, -1]", f"{MLP}[:] *= mask"],
        [f"x = {MLP}[-1]", f"{MLP}[:, cols] = 0"],
    ),
    "everything in other words": (
        [f"x = {MLP}[:, -1]", f"{MLP}[:] = 0"],
        [f"x = {MLP}[-1]", f"{MLP}[:, :] = 0"],
    ),
    "the head": (["x = model.lm_head.output[:, -1]"], ["x = model.logits[:, -1]"]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_what_counts_the_axis_is_mended_by_what_hf_does(tmp_path, name):
    theirs, ours, after = COUNTED[name]
    assert mended(ported(tmp_path, theirs, ours)) == after


@pytest.mark.parametrize("name", RIGHT)
def test_what_does_without_it_is_left_alone(tmp_path, name):
    assert mended(ported(tmp_path, *RIGHT[name])) == []


def test_an_engine_with_the_axis_is_left_alone(tmp_path):
    theirs, ours, _ = COUNTED["a row"]
    assert mended(ported(tmp_path, theirs, ours), flat=False) == []


def test_the_reason_says_that_the_line_reads_as_in_hf(tmp_path):
    theirs, ours, _ = COUNTED["a row"]
    places = Places(ported(tmp_path, theirs, ours), "vllm")
    [one] = batch_axis.lost(places)
    assert one.edit.why == f"it reads as in `hf`, but {AXIS}: `[:, -1]` takes columns"
    assert batch_axis.read_by(places, places.way("x")) == one.edit


def test_a_write_of_columns_is_mended_with_what_it_writes_and_its_neighbour(tmp_path):
    read, write = f"donor = {MLP}[:, -1]", f"{MLP}[:, -1] = donor"
    lines = [read, write, "x = 1"]
    places = Places(ported(tmp_path, lines, lines), "vllm")
    found = ordered(Parting(1, 0, 0, (0, 1), 2), places, [], dual=True)
    assert [one.edit.after.strip() for one in found] == [
        f"donor = {MLP}[-1]",
        f"{MLP}[-1] = donor",
    ]
    theirs, ours, after = COUNTED["both halves"]
    places = Places(ported(tmp_path, theirs, ours), "vllm")
    found = ordered(Parting(2, 0, 0, (0, 1), 2), places, [], dual=True)
    assert [one.edit.after.strip() for one in found] == after


def test_columns_that_are_written_at_every_token_get_the_token_of_hf(tmp_path):
    """A head is the columns of what the projection is given: these are no token."""
    given = "model.model.layers[1].self_attn.o_proj.input"
    lines = [
        ["x = 1", f"donor = {given}[0, -1]", f"{given}[{index}, cols] = donor[cols]"]
        for index in (":, -1", ":")
    ]
    places = Places(ported(tmp_path, *lines), "vllm")
    part = Parting(1, 0, 0, (0, 1), 3, kind="too-many", words="other tokens")
    edits = [one.edit for one in ordered(part, places, [], dual=True)]
    assert f"{given}[-1, cols] = donor[cols]" in [one.after.strip() for one in edits if one]
    assert batch_axis.written_by(places, places.writes()) == []


def test_a_write_of_everything_is_not_said_to_read_as_in_hf(tmp_path):
    theirs, ours, _ = COUNTED["a write of everything"]
    [one] = batch_axis.lost(Places(ported(tmp_path, theirs, ours), "vllm"))
    assert one.edit.why == f"{AXIS}: `[:, -1]` takes columns, and `hf` writes `[:]`"


@pytest.mark.parametrize(
    "reason",
    [
        "IndexError: too many indices for tensor of dimension 1",
        "IndexError: Dimension out of range (expected to be in range of [-2, 1], but got 2)",
        "RuntimeError: stack expects each tensor to be equal size, but got [6] and [19]",
        "RuntimeError: shape '[1, 6, 4, 16]' is invalid for input of size 64",
        "RuntimeError: start (5) + length (3) exceeds dimension size (4).",
        "RuntimeError: 1D tensors expected, but got 2D and 1D tensors",
    ],
)
def test_an_error_of_a_shape_is_told_by_the_line_that_counts_the_axis(tmp_path, reason):
    theirs, ours, after = COUNTED["a tuple's first"]
    outcome = Outcome(Status.ERROR, 0.1, reason)
    told = failures.explain(
        failures.Failed(outcome, ported(tmp_path, theirs, ours), "vllm", True, dual=True)
    )
    [finding] = told.findings
    assert finding.edit.after.strip() == after[0]
    assert "attention returns one tensor" in told.words and reason in told.words


MODULES = """\
from sae_lens import load


class SAE(torch.nn.Module):
    def __init__(self, width):
        self.W, self.b = torch.randn(width, 8), torch.zeros(width)
        self.head = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    def encode(self, x):
        x = x - self.b
        before = x @ self.W
        return torch.relu(before)

    def forward(self, x, scale=1):
        return self.head(self.encode(scale * x))

    def pooled(self, x):
        return self.encode(x.mean(dim=1))

    def across(self, x):
        return self.W @ x


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def made(width):
    sae = SAE(width)
    return sae


read = torch.nn.Linear(8, 1)
bought = load("it")
"""


def with_modules(folder, *lines):
    """A file whose two functions have these lines alike, with modules and functions of its own."""
    file = ported(folder, lines, lines)
    file.path.write_text(f"{file.text}{MODULES}")
    return source.read(file.path)


@pytest.mark.parametrize(
    "called",
    [
        "SAE(8).eval().encode({})",
        "made(8).encode({})",
        "made(8)({})",
        "SAE.load(2)(x={})",
        "unit({})",
        "read(unit({}))",
    ],
)
def test_what_a_function_of_the_file_makes_has_the_axes_that_it_is_given(tmp_path, called):
    file = with_modules(tmp_path, f"y = {called.format(MLP)}", "x = y[:, -1]")
    assert mended(file) == ["x = y[-1]"]


def test_the_object_that_is_called_is_followed_by_its_name(tmp_path):
    lines = ["sae = made(8)", f"y = sae.encode({MLP})", "x = y[:, -1].topk(5)"]
    assert mended(with_modules(tmp_path, *lines)) == ["x = y[-1].topk(5)"]


@pytest.mark.parametrize(
    "called", ["made(8).pooled({})", "made(8).across({})", "add({})", "made(8).none({})"]
)
def test_what_it_makes_of_other_axes_is_left_alone(tmp_path, called):
    file = with_modules(tmp_path, f"y = {called.format(MLP)}", "x = y[:, -1]")
    assert mended(file) == []


def shape_error(file, line):
    detail = f'File "{file.path}", line {line}, in vllm\n    {file.line(line).strip()}'
    outcome = Outcome(Status.ERROR, 0.1, "RuntimeError: selected index k out of range", detail)
    return failures.explain(failures.Failed(outcome, file, "vllm", True, dual=True))


def test_of_a_function_without_a_text_an_error_of_a_shape_is_told_and_no_edit(tmp_path):
    lines = [f"y = bought.encode({MLP})", "last = y[:, -1]", "x = last.topk(5)"]
    file = with_modules(tmp_path, *lines)
    assert mended(file) == []
    told = shape_error(file, 13)
    [finding] = told.findings
    assert (finding.edit.line, finding.edit.after) == (12, "")
    assert "it reads as in `hf`, but" in told.words
    assert "`[:, -1]` takes columns, if `bought.encode` leaves the axes" in told.words


def test_of_other_functions_without_a_text_nothing_is_told(tmp_path):
    lines = [f"y = bought.encode({MLP})", "x = y[-1].topk(5)"]
    assert "batch axis" not in shape_error(with_modules(tmp_path, *lines), 11).words
    file = with_modules(tmp_path, f"y = made(8).pooled({MLP})", "x = y[:, -1]")
    assert "batch axis" not in shape_error(file, 11).words


def test_every_index_behind_the_first_prompt_is_mended_on_transformers(tmp_path):
    theirs = [
        f"a = {STREAM}[0][:, -1, :].save()",
        f"h = {STREAM}[0]",
        "b = h[:, -1].save()",
        f"x = {STREAM}[0][-1].save()",
    ]
    file = ported(tmp_path, theirs, ["x = 1"])
    outcome = Outcome(
        Status.ERROR,
        0.1,
        "IndexError: too many indices for tensor of dimension 2",
        f'File "port.py", line 3, in hf\n    {theirs[0]}',
    )
    told = failures.explain(failures.Failed(outcome, file, "hf"))
    assert [(one.edit.line, one.edit.after.strip()) for one in told.findings] == [
        (3, f"a = {STREAM}[:, -1, :].save()"),
        (5, "b = h[-1].save()"),
    ]
    assert batch_axis.doubled_by(file, "x") is None
    elsewhere = Outcome(Status.ERROR, 0.1, outcome.reason)
    assert failures.explain(failures.Failed(elsewhere, file, "hf")).findings == ()


#: Lines of `hf`, and the last but one of them as it is on vLLM.
THERE = {
    "columns of a row": (
        [f"z = {MLP}", "z[:, -1, cols] = z[:, :, cols].mean(dim=1)", "x = z"],
        "z[-1, cols] = z[:, cols].mean(dim=0)",
    ),
    "the last axis": (
        [f"z = {MLP}", "z[:, 2] = z[:, 1].softmax(dim=-1)", "x = z"],
        "z[2] = z[1].softmax(dim=-1)",
    ),
    "the module itself": ([f"{MLP}[:, -1] += 2", f"x = {MLP}"], f"{MLP}[-1] += 2"),
    "the first prompt": (
        [f"z = {MLP}[0]", "z[-1] = z.mean(dim=0)", "x = z"],
        "z[-1] = z.mean(dim=0)",
    ),
    "a mean of prompts": ([f"z = {MLP}", "z[:, 2] = z.mean(dim=0)", "x = z"], None),
    "a layer": ([f"z = {STREAM}", "z[:, 2] = 0", "x = z"], None),
    "a row of rows": ([f"z = {MLP}[:, 1:]", "z[:, 0] = 1", "x = z"], None),
}


@pytest.mark.parametrize("name", THERE)
def test_a_statement_of_hf_as_it_is_there(tmp_path, name):
    lines, there = THERE[name]
    theirs = Places(ported(tmp_path, lines, ["x = 0"]), "hf", dual=False)
    statement = next(one.statement for one in theirs.writes())
    assert batch_axis.as_there(theirs, statement) == there
