"""A list to which the blocks of several prompts append."""

import pytest

from conformance.check.advice.reads.appended import appended
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places

FILE = """\
import torch


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        kept = {made}
        for number, prompt in enumerate(["a", "b"]):
            with tracer.invoke(prompt):
                rows = []
                rows.append(model.logits)
                {fill}
    return {{{returned}}}


def hf(model):
    return {{}}
"""

MEAN = '"mean": torch.stack(list(kept)).mean(dim=0)'


def read(tmp_path, **parts):
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(**parts))
    return appended(Places(source.read(path), "vllm"))


def test_what_is_made_of_it_is_explained_by_the_line_that_appends(tmp_path):
    [found] = read(tmp_path, made="[].save()", fill="kept.append(rows)", returned=MEAN)
    assert found.edit.line == 11 and "append to `kept` in line 11" in found.words


@pytest.mark.parametrize(
    "parts",
    [
        {"made": "{}.save()", "fill": "kept[number] = rows", "returned": MEAN},
        {"made": "[].save()", "fill": "kept.append(rows)", "returned": '"kept": kept'},
    ],
)
def test_a_key_of_its_own_and_a_returned_list_are_not(tmp_path, parts):
    assert read(tmp_path, **parts) == []


def test_one_prompt_alone_may_append(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def vllm(model):\n"
        "    with model.trace() as tracer:\n"
        "        kept = [].save()\n"
        "        with tracer.invoke('a'):\n"
        "            kept.append(model.logits)\n"
        "    return {'mean': sum(kept)}\n\n\n"
        "def hf(model):\n    return {}\n"
    )
    assert appended(Places(source.read(path), "vllm")) == []
