"""Values that are right, and stand elsewhere or without padding."""

import torch

from conformance.check.advice import findings
from conformance.check.advice.errors.error_meanings import mended
from conformance.check.advice.reads import arrangement
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.records import Site

APPENDS = """\
def trace(lm):
    with lm.trace() as tracer:
        kept = [].save()
        for prompt in ("One", "Two"):
            with tracer.invoke(prompt):
                kept.append(lm.layers[0].stream)
    return {"kept": kept}
"""


def entries(*values):
    return {Site("kept", layer=number): value for number, value in enumerate(values)}


def rows(seed, tokens=3):
    return torch.randn(tokens, 8, generator=torch.Generator().manual_seed(seed))


A, B, C = rows(1), rows(2, 5), rows(3)


def test_another_order_is_named_by_its_first_entries():
    said = arrangement.reordered("kept", entries(A, C, rows(4)), entries(A, rows(4), C))
    assert said == "`kept[1]` holds `kept[2]`, `kept[2]` holds `kept[1]`"


def test_an_entry_that_holds_anothers_value_twice_is_no_order():
    assert arrangement.reordered("kept", entries(C, C), entries(A, C)) == ""
    assert arrangement.reordered("kept", entries(A, C), entries(A, C)) == ""
    assert arrangement.reordered("kept", entries(A, C * 2), entries(A, C)) == ""
    assert arrangement.reordered("other", entries(C, A), entries(A, C)) == ""


def test_entries_that_are_alike_have_not_moved():
    assert arrangement.reordered("kept", entries(A, A, C), entries(A, A, C)) == ""


def test_integers_have_an_order_too():
    one, two = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert arrangement.reordered("kept", entries(two, one), entries(one, two)) != ""


def test_padding_is_in_front_and_the_rest_is_the_same():
    padded = torch.cat([torch.zeros(2, 8), A])[None]
    both = (3, 5)
    assert arrangement.padding(A, padded, both) == 2
    assert arrangement.padding(A, A[None], both) == 0
    assert arrangement.padding(A * 2, padded, both) == 0
    assert arrangement.padding(padded, A, both) == 0
    assert arrangement.padding(A[:2], torch.cat([A[:2], rows(9)]), (2, 5)) == 0


def test_the_last_rows_of_a_prompt_are_not_what_is_left_without_padding():
    assert arrangement.padding(B[-1:], B[None], (5,)) == 0
    assert arrangement.padding(B[-1:], B[None], (5, 3)) == 0


def test_one_of_a_batch_is_told_from_padding():
    batch, two = torch.stack([A, C]), (3, 3)
    assert arrangement.member(C, batch, two) == 1
    assert arrangement.member(C[None], batch, two) == 1
    assert arrangement.member(C * 2, batch, two) is None
    assert arrangement.member(A, A[None], two) is None
    assert arrangement.padding(C, batch, two) == 0
    top = torch.tensor([[1, 2], [3, 4]])
    assert arrangement.member(top[1], top, two) == 1
    assert arrangement.padding(top[1], top, two) == 0


def test_a_token_of_one_prompt_is_no_prompt_of_a_batch():
    assert arrangement.member(B[0], B, (5,)) is None
    assert arrangement.member(B[0], B, (5, 3)) is None


def test_a_call_of_the_head_becomes_a_product():
    mend = mended(r"LMHead's weights should be used")
    line = "        logits = model.lm_head(model.model.norm(h)).save()"
    product = "torch.nn.functional.linear(model.model.norm(h), model.lm_head.weight)"
    assert mend(line) == f"        logits = {product}.save()"
    assert mend("    x = (") == "    x = ("


def test_logits_are_a_value():
    mend = mended(r"'Tensor' object has no attribute '(?:output|input)'")
    assert mend("t.append(model.logits.output[-1])") == "t.append(model.logits[-1])"


def test_entries_of_one_block_alone_are_counted_before_any_is_compared(tmp_path):
    path = tmp_path / "appends.py"
    path.write_text(APPENDS)
    truth, values = entries(A, B, C, rows(4)), entries(B, rows(4))
    places = Places(source.read(path), "trace")
    explain = findings._Explaining(places, truth, values, [], {}, written=False)
    told = explain.read(Site("kept", layer=0))
    assert told.words.startswith("`kept` has 2 entries, and 4 on transformers")
    assert "the blocks of several prompts append" in told.words
    assert told.edit is not None and told.edit.line == 6
