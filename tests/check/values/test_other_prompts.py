"""A prompt that has other ids: which one it is, what it has, and the line that gives it."""

import pytest
import torch

from conformance.check.advice.requests import prompts, reordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values import compare
from conformance.judge.cell import Judgement
from conformance.judge.measures import structure
from conformance.records import Precision, Site, Thresholds, Verdict

FIRST, SECOND = (7, 8, 9, 10), (7, 8, 5, 10)

FILE = """\
FIRST, SECOND = "the capital of France", "the capital of Italy"


def hf(model):
    with model.trace(FIRST):
        a = model.lm_head.output.save()
    with model.trace(SECOND):
        b = model.lm_head.output.save()
    with model.trace(FIRST):
        c = model.lm_head.output.save()
    return {"a": a, "b": b, "c": c}


def vllm(model):
    with model.trace(FIRST, max_tokens=1):
        a = model.logits.clone().save()
    with model.trace(SECOND, max_tokens=1):
        b = model.logits.clone().save()
    with model.trace(FIRST, max_tokens=1):
        c = model.logits.clone().save()
    return {"a": a, "b": b, "c": c}
"""

LOOP = """\
def hf(model, prompts):
    with model.trace(prompts):
        logits = model.lm_head.output.save()
    return {"logits": logits}


def vllm(model, prompts):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        logits = {}.save()
        for number, prompt in enumerate(prompts):
            with tracer.invoke(prompt):
                logits[number] = model.logits[0].clone()
    return {"logits": logits}
"""


def told(tmp_path, ours, theirs, text=FILE):
    path = tmp_path / "mine.py"
    path.write_text(text)
    mine, truth = (
        {Site("ids", prompt=n): torch.tensor(ids) for n, ids in enumerate(side)}
        for side in (ours, theirs)
    )
    relation = structure.prompt_ids(tuple(sorted(ours)), tuple(sorted(theirs)))
    judgement = Judgement(Verdict.STRUCTURE, "", (), (relation,))
    [one] = prompts(judgement, Places(source.read(path), "vllm"), mine, truth)
    return one


def test_the_ids_of_another_prompt_are_said_to_be_those(tmp_path):
    text = FILE.replace("FIRST, max_tokens=1):\n        c", "SECOND, max_tokens=1):\n        c")
    one = told(tmp_path, [FIRST, SECOND, SECOND], [FIRST, SECOND, FIRST], text)
    assert one.words.endswith("prompt 2 has those of prompt 1, so it is given another text")
    assert (one.prompt, one.edit.line) == (2, 19)
    assert one.edit.after.strip() == "with model.trace(FIRST, max_tokens=1):"


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ((7, 8, 6, 10), "prompt 1 has id 6 instead of 5 at position 2: another text"),
        ((1, 7, 8, 5, 10), "prompt 1 has 5 ids instead of 4: a first token is added, 1"),
        ((8, 5, 10), "prompt 1 has 3 ids instead of 4: the first token is missing, 7"),
        ((7, 2, 8, 5, 10, 3), "prompt 1 has 6 ids instead of 4, others since position 1: a temp"),
    ],
)
def test_other_ids_are_told_by_their_number(tmp_path, ours, words):
    one = told(tmp_path, [FIRST, ours, FIRST], [FIRST, SECOND, FIRST])
    assert words in one.words and one.edit.line == 17
    # The two functions give it the same text.
    assert one.edit.after == ""


def test_a_prompt_of_a_loop_is_shown_where_it_is_given(tmp_path):
    one = told(tmp_path, [FIRST, (1, *SECOND)], [FIRST, SECOND], LOOP)
    assert (one.prompt, one.edit.line, one.edit.after) == (1, 11, "")


def test_a_prompt_that_is_run_in_another_order_is_no_other_one(tmp_path):
    one = told(tmp_path, [SECOND, (1, *FIRST), FIRST], [FIRST, SECOND, FIRST])
    assert "prompt 2 has 5 ids instead of 4: a first token is added, 1" in one.words
    assert one.edit.line == 17


def related(ours, theirs):
    """The relation of the prompts' ids that a comparison of the same values comes to."""
    truth = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    ways = ("float32:truth", "float32:split", "float32:sdpa")
    honest = compare.honest({f"{way}|p0/s0/x": truth for way in ways}, Precision.FLOAT32)
    ids, mine = (ours, theirs), {"p0/s0/x": truth}
    told = compare.compare(mine, honest, ids, Thresholds(), Precision.FLOAT32)
    [one] = [one for one in told.judgement.relations if one.name == structure.PROMPT_IDS]
    return one


def test_the_evidence_numbers_prompts_as_they_are_run():
    first, second, third = (9, 9), (5, 6, 7), (8, 8, 8, 8)
    found = related([first, second, third, third], [first, second, third, second])
    assert not found.holds
    assert found.detail == "prompt 3: 4 ids instead of 3, at position 0 8 instead of 5"


def test_of_ids_that_are_as_many_no_number_is_said():
    assert related([FIRST], [SECOND]).detail == "prompt 0: at position 2 9 instead of 5"
    longer = related([(*FIRST, 3, 4)], [FIRST]).detail
    assert longer == "prompt 0: 6 ids instead of 4, at position 4 3 instead of nothing"


def test_the_same_prompts_in_another_order_are_no_others():
    assert related([SECOND, FIRST], [FIRST, SECOND]).holds


def test_prompts_are_in_the_order_of_their_numbers():
    numbers = [0, 10, 11, 2]  # as a file has them whose keys are sorted as text
    seen = {f"layers|p{n}/s0/ids": torch.tensor([n]) for n in numbers}
    assert compare.prompt_ids(compare.layers(seen)) == [[0], [2], [10], [11]]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (
            [FIRST, FIRST],
            [FIRST],
            "other prompts are run, 2 instead of 1: one more has the tokens of prompt 0",
        ),
        (
            [FIRST],
            [FIRST, SECOND],
            ": none has the tokens of prompt 1",
        ),
        ([FIRST], [FIRST, FIRST], "one fewer has the tokens of prompt 0"),
        ([FIRST, SECOND], [FIRST], "other prompts are run, 2 instead of 1"),
    ],
)
def test_of_more_or_fewer_prompts_it_is_said_which_one(tmp_path, ours, theirs, words):
    one = told(tmp_path, ours, theirs, LOOP)
    assert words in one.words and one.edit.line == 11
    # Which of several calls is run more often is not known.
    assert told(tmp_path, ours, theirs).edit is None


LOOPS = """\
A, B = "the capital of France", "the capital of Italy"


def hf(model):
    with model.trace(B):
        x = model.lm_head.output.save()
    with model.trace([A, B]):
        y = model.lm_head.output.save()
    with model.trace(A):
        z = model.lm_head.output.save()
    return {"x": x, "y": y, "z": z}


def vllm(model):
    with model.trace(A, max_tokens=1):
        x = model.logits.clone().save()
    with model.trace(max_tokens=1) as tracer:
        y = {}.save()
        for number, prompt in enumerate([B, B]):
            with tracer.invoke(prompt):
                y[number] = model.logits[0].clone()
    with model.trace(A, max_tokens=1):
        z = model.logits.clone().save()
    return {"x": x, "y": torch.stack([y[0], y[1]]), "z": z}
"""


@pytest.mark.parametrize(
    ("ours", "line", "after", "beside"),
    [
        ([FIRST, FIRST, SECOND, FIRST], 15, "with model.trace(B, max_tokens=1):", ""),
        (
            [SECOND, SECOND, SECOND, FIRST],
            19,
            "for number, prompt in enumerate([A, B]):",
            "`hf` gives `[A, B]`, line 7",
        ),
        ([SECOND, FIRST, SECOND, SECOND], 22, "", ""),
    ],
)
def test_beside_a_loop_the_trace_that_runs_the_prompt_gives_it(tmp_path, ours, line, after, beside):
    one = told(tmp_path, ours, [SECOND, FIRST, SECOND, FIRST], LOOPS)
    assert (one.edit.line, one.edit.after.strip()) == (line, after)
    assert one.words.endswith(beside or "so it is given another text")


def test_a_trace_of_each_prompt_is_not_given_all_of_them(tmp_path):
    begin = LOOPS.partition("    with model.trace(max_tokens=1)")[0]
    text = f"""{begin}    y = []
    for prompt in [B, B]:
        with model.trace(prompt, max_tokens=1):
            y.append(model.logits.clone().save())
    with model.trace(A, max_tokens=1):
        z = model.logits.clone().save()
    return {{"x": x, "y": y, "z": z}}
"""
    one = told(tmp_path, [SECOND] * 3 + [FIRST], [SECOND, FIRST, SECOND, FIRST], text)
    assert one.edit.before == "    for prompt in [B, B]:"
    assert one.edit.after == "    for prompt in [A, B]:"
    assert one.words.endswith("`hf` gives `[A, B]`, line 7")


OTHERWISE = LOOP.replace("enumerate(prompts)", "enumerate(prompts[::-1])")


@pytest.mark.parametrize(("text", "line"), [(LOOP, 10), (OTHERWISE, 10)])
def test_the_same_prompts_in_another_order_are_told_where_nothing_else_is(tmp_path, text, line):
    path = tmp_path / "mine.py"
    path.write_text(text)
    mine, truth = (
        {Site("ids", prompt=n): torch.tensor(ids) for n, ids in enumerate(side)}
        for side in ((SECOND, FIRST), (FIRST, SECOND))
    )
    places = Places(source.read(path), "vllm")
    [found] = reordered(places, mine, truth)
    assert "prompt 0 is the one that is prompt 1 on transformers" in found.words
    assert found.edit.line == line
    assert reordered(places, truth, truth) == []
    assert reordered(places, {**truth, Site("ids", prompt=2): torch.tensor(FIRST)}, truth) == []


SEVERAL = """\
GOOD, BAD, LAST = ["a", "b"], ["c", "d"], "e"


def hf(model):
    with model.trace(GOOD):
        good = model.lm_head.output.save()
    for text in BAD:
        with model.trace(text):
            bad = model.lm_head.output.save()
    with model.trace(LAST):
        last = model.lm_head.output.save()
    for head in range(model.config.num_attention_heads):
        with model.trace(LAST):
            logits = model.lm_head.output.save()
    return {"good": good, "bad": bad, "last": last, "logits": logits}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        good = {}.save()
        for n, prompt in enumerate(GOOD):
            with tracer.invoke(prompt):
                good[n] = model.logits[0].clone()
    for text in BAD:
        with model.trace(text, temperature=0.0, max_tokens=1):
            bad = model.logits.clone().save()
    with model.trace(LAST, temperature=0.0, max_tokens=1):
        last = model.logits.clone().save()
    for head in range(model.config.num_attention_heads):
        with model.trace(LAST, temperature=0.0, max_tokens=1):
            logits = model.logits.clone().save()
    return {"good": good, "bad": bad, "last": last, "logits": logits}
"""


@pytest.mark.parametrize(
    ("was", "now", "number", "line", "after"),
    [
        ("enumerate(GOOD)", "enumerate(BAD)", 0, 21, "for n, prompt in enumerate(GOOD):"),
        ("text in BAD", "text in GOOD", 2, 24, "for text in BAD:"),
        # What a loop leaves behind it is the last of what it went over.
        (
            "trace(LAST",
            "trace(text",
            4,
            27,
            "with model.trace(LAST, temperature=0.0, max_tokens=1):",
        ),
    ],
)
def test_the_call_that_gives_a_prompt_is_counted_by_the_text(
    tmp_path, was, now, number, line, after
):
    head, _, tail = SEVERAL.partition("def vllm")
    theirs = [(n, n) for n in (1, 2, 3, 4, 5, 5, 5)]
    ours = [*theirs]
    ours[number] = (9, 9)
    one = told(tmp_path, ours, theirs, f"{head}def vllm{tail.replace(was, now, 1)}")
    assert (one.prompt, one.edit.line) == (number, line)
    assert one.edit.after.strip() == after
