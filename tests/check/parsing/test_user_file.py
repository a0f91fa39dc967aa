"""A user's function is called and its values are taken apart; what is no value is said."""

import subprocess
import sys

import pytest
import torch

from conformance.builtin.user_trace import case_of
from conformance.engines.user_trace import user_file


def call(function, *prompts):
    return user_file.call(function, None, prompts)


def test_lists_are_steps_and_numbered_dicts_layers():
    rows = torch.ones(2, 3)
    found = call(lambda _: {"all": {4: rows}, "steps": [{"a b": rows}, {"a b": rows}], "n": 3})
    assert sorted(found) == ["p0/s0/all.4", "p0/s0/n", "p0/s0/steps_a_b", "p0/s1/steps_a_b"]


def test_an_id_with_its_number_is_two_values():
    found = call(lambda _: {"top": [(40, 0.5), (41, 0.25)], "row": [1, 0.5], "pair": (1, 2)})
    assert found["p0/s0/top_0"].dtype == torch.int64 and float(found["p0/s1/top_1"]) == 0.25
    assert sorted(found) == [
        "p0/s0/pair",
        "p0/s0/row",
        "p0/s0/top_0",
        "p0/s0/top_1",
        "p0/s1/top_0",
        "p0/s1/top_1",
    ]


def test_each_value_is_called_as_it_is_reached_in_what_is_returned():
    rows, called = torch.ones(2, 3), {}
    values = {"all 4": {4: rows}, "steps": [{"mlp": {0: rows}}], "kept": {0: {1: rows}}}
    user_file.call(lambda _: values, None, (), called)
    assert called == {
        "p0/s0/all_4.4": "all 4[4]",
        "p0/s0/steps_mlp.0": 'steps[0]["mlp"][0]',
        "p0/s0/kept__1.0": "kept[0][1]",
    }


def test_a_prompt_is_a_call_and_prompts_are_one():
    each = call(lambda model, prompt: {"length": len(prompt)}, "ab", "abc")
    assert {name: int(value) for name, value in each.items()} == {
        "p0/s0/length": 2,
        "p1/s0/length": 3,
    }
    assert int(call(lambda model, prompts: {"n": len(prompts)}, "a", "b")["p0/s0/n"]) == 2


@pytest.mark.filterwarnings("ignore")  # torch's, of layouts that are new or go out of use
@pytest.mark.parametrize(
    "other",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda rows: torch.complex(rows, -rows).conj().imag,
        lambda rows: torch.quantize_per_tensor(rows, 0.5, 0, torch.qint8),
        lambda rows: rows.T.contiguous().T,
    ],
)
def test_a_tensor_of_any_layout_is_what_it_stands_for(other):
    rows = torch.tensor([[1.0, 0.0, 2.5], [0.0, 3.0, 0.0]])
    [kept] = call(lambda _: {"rows": other(rows)}).values()
    assert torch.equal(kept, rows) and kept.is_contiguous()
    assert not kept.is_neg() and kept.layout is torch.strided


def test_random_numbers_are_the_same_in_every_call():
    def draw(_):
        return {"x": torch.randn(3)}

    assert torch.equal(call(draw)["p0/s0/x"], call(draw)["p0/s0/x"])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned nothing"),
        ([1], "returned a list"),
        ({}, "empty mapping"),
        ({"h": None}, "'h' is None"),
        ({"h": object()}, "no tensor"),
    ],
)
def test_what_cannot_be_compared_is_said(value, words):
    with pytest.raises(user_file.BadValue, match=words):
        call(lambda _: value)


def test_an_allocation_without_end_fails_in_its_process():
    script = (
        "import torch\n"
        "from conformance.engines.user_trace import user_file\n"
        "user_file.bound_memory(1 << 30)\n"
        "kept = []\n"
        "while len(kept) < 64:\n"
        "    kept.append(torch.ones(1 << 26))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ran.returncode == 1 and b"memory" in ran.stderr


def test_a_file_that_hangs_while_it_is_imported_is_the_files_own(tmp_path, monkeypatch):
    monkeypatch.setattr(user_file, "IMPORT_SECONDS", 1)
    (tmp_path / "hangs_on_import.py").write_text("while True:\n    pass\n")
    case = case_of("x", tmp_path / "hangs_on_import.py", "trace", ())
    functions = user_file.Functions([case])
    with pytest.raises(TimeoutError, match="more than 1 s to be imported"):
        functions.of(case)
