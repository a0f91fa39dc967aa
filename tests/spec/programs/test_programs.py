"""Programs are data: they survive JSON, mean something or are refused, and become a file."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.fuzz import shrinking as smaller
from conformance.commands.fuzz.draw import ModelShape, draw, draw_program
from conformance.errors import ConformanceError
from conformance.spec import programs
from conformance.spec.programs import Do, ModelPart, Operation, Program, Tokens
from conformance.spec.records import from_json, to_json
from conformance.spec.scenario import discover
from tests.spec.programs.toy import charter

SHAPE = ModelShape(4, ("embedding", "attention", "mlp", "norm", "head"))
READ = Operation(Do.READ, layer=1)
TWO = ("One", "One two three")

#: Programs of the generator, by hypothesis' choice of its random numbers.
PROGRAMS = st.randoms(use_true_random=True).map(lambda chance: draw_program(chance, SHAPE))


@given(PROGRAMS)
def test_a_program_survives_json(program: Program):
    assert from_json(Program, to_json(program)) == program


@pytest.mark.parametrize(("step", "forced"), [(None, [0, 1, 2]), (1, [1])])
def test_an_id_that_is_laid_down_is_no_draw_and_the_others_are_greedy(step, forced):
    """Whatever the id: the one that the model would have chosen as well looks like a cold draw."""
    operation = Operation(Do.FORCE, ModelPart.TOKEN, prompt=1, step=step, amount=20)
    program = Program(TWO, (operation,), steps=3)
    saved = [{("token", at): torch.tensor(7) for at in range(3)} for _ in TWO]
    first, second = programs.gathered(program, saved)
    assert {name for name, steps in first.items() if any(at != {} for at in steps)} == {"tokens"}
    assert [at for at, token in enumerate(second["forced"]) if token != {}] == forced
    others = [at for at, token in enumerate(second.get("tokens", [])) if token != {}]
    assert others == [at for at in range(3) if at not in forced]
    inactive = programs.gathered(program, saved, active=False)
    assert all("forced" not in outputs for outputs in inactive)


@given(PROGRAMS)
def test_what_is_drawn_means_something_and_so_does_all_that_is_smaller(program: Program):
    assert list(programs.complaints(program)) == []
    for one in (*smaller.keep_few(program), *smaller.simplify(program)):
        assert programs.valid(one)
        assert smaller.size(one) < smaller.size(program)


@given(PROGRAMS)
def test_the_file_of_a_program_is_python_that_says_nothing_of_engines(program: Program):
    text = programs.text(program)
    compile(text, program.name, "exec")
    assert "vllm" not in text


def test_the_same_seed_draws_the_same_programs_and_another_seed_others():
    assert draw(20, 7, SHAPE) == draw(20, 7, SHAPE)
    assert draw(20, 7, SHAPE) != draw(20, 8, SHAPE)


def test_a_few_hundred_cover_every_operation_and_values_flow_between_prompts_and_steps():
    many = draw(400, 3, SHAPE)
    operations = [one for program in many for one in program.operations]
    assert {one.do for one in operations} == set(Do)
    assert {one.part for one in operations} == set(ModelPart)
    taken = [(p, one) for p in many for one in p.operations if one.value is not None]
    assert len(taken) > 100
    givers = [(p.operations[one.value], one) for p, one in taken]
    assert any(g.prompt is not None and one.prompt not in (None, g.prompt) for g, one in givers)
    assert any(g.step is not None and one.step not in (None, g.step) for g, one in givers)
    assert any(one.part is ModelPart.LOGITS and one.do.writes for _, one in givers)
    assert {len(program.prompts) for program in many} >= {1, 6}
    assert {program.steps for program in many} >= {1, 8}


def of(*operations: Operation, prompts: tuple[str, ...] = TWO, **more: Any) -> Program:
    return Program(prompts, operations, **more)


def act(do: Do, part: ModelPart = ModelPart.STREAM, **more: Any) -> Operation:
    return Operation(do, part, **more)


FIRST = replace(READ, prompt=0)
THEN = act(Do.ADD, layer=2, prompt=1, value=0)
STOP = act(Do.STOP, layer=1, prompt=0)
SKIP = act(Do.SKIP, layer=1)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (of(prompts=()), "no prompt"),
        (of(traces=((0,),)), "every prompt once"),
        (of(act(Do.READ)), "names no layer"),
        (of(act(Do.READ, ModelPart.NORM, layer=1)), "names a layer"),
        (of(act(Do.ZERO, ModelPart.INPUT, layer=1)), "not written to"),
        (of(act(Do.READ, layer=0, prompt=2)), "no such prompt"),
        (of(act(Do.READ, layer=0, step=1)), "no such step"),
        (of(act(Do.FORCE, ModelPart.TOKEN, amount=0.5)), "no id"),
        (of(READ, act(Do.SCALE, layer=2, value=0)), "takes no value"),
        (of(READ, act(Do.ADD, layer=0, value=0)), "read after it"),
        (of(act(Do.ZERO, layer=0), act(Do.ADD, layer=1, value=0)), "reads"),
        (of(FIRST, THEN), "earlier trace"),
        (of(FIRST, THEN, traces=((0,), (1,))), "do not fit"),
        (of(READ, act(Do.PROJECT, layer=2, value=0)), "one row"),
        (of(act(Do.ZERO, ModelPart.LOGITS)), "no id could be chosen"),
        (of(act(Do.ADD, ModelPart.LOGITS)), "as wide as the stream"),
        (of(act(Do.READ, ModelPart.LOGITS, tokens=Tokens.LAST)), "last token's"),
        (of(READ, act(Do.ADD, ModelPart.LOGITS, value=0)), "do not fit each other"),
        (of(STOP), "one prompt and one step"),
        (of(STOP, prompts=TWO[:1]), "before anything is observed"),
        (of(STOP, act(Do.READ, layer=2), prompts=TWO[:1]), "after the end"),
        (of(SKIP, act(Do.READ, ModelPart.MLP, layer=1)), "inside of the layer"),
        (of(act(Do.SKIP, layer=1, step=0), steps=2), "in every step"),
        (of(act(Do.SKIP, layer=1, prompt=0)), "every prompt of a trace"),
    ],
)
def test_what_means_nothing_is_refused_in_words(program: Program, words: str):
    with pytest.raises(ConformanceError, match=words):
        programs.check(program)


def test_a_layer_is_left_out_once_its_input_was_read():
    left_out = Operation(Do.SKIP, layer=1)
    text = programs.text(Program(TWO, (left_out, Operation(Do.READ, ModelPart.INPUT, layer=1))))
    assert 0 < text.index(".input") < text.index(".skip()")


def test_a_row_flows_to_a_later_trace_and_a_later_step():
    last = Operation(Do.READ, layer=1, tokens=Tokens.LAST, prompt=0, step=0)
    to_prompt = Operation(Do.REPLACE, layer=0, tokens=Tokens.LAST, prompt=1, step=0, value=0)
    to_step = Operation(Do.ADD, layer=0, prompt=0, step=1, value=0)
    assert programs.valid(Program(TWO, (last, to_prompt, to_step), 2, traces=((0,), (1,))))
    assert not programs.valid(Program(TWO, (last, to_prompt), 2))


def test_logits_flow_to_a_later_step_and_are_written_whole():
    read = Operation(Do.READ, ModelPart.LOGITS, step=0)
    put = Operation(Do.REPLACE, ModelPart.LOGITS, step=1, value=0)
    program = Program(TWO, (read, put), 2)
    text = programs.text(program)
    assert "rows = lm.logits" in text and "lm.logits = rows" in text
    assert text.index("lm.logits = rows") < text.index('["logits", step] = lm.logits')


def test_operations_keep_their_values_when_others_go():
    first, second = Operation(Do.READ, layer=0), Operation(Do.READ, layer=1)
    taker = Operation(Do.ADD, layer=2, value=1)
    program = Program(TWO, (first, second, taker))
    assert smaller.keep_operations(program, {2}).operations == (
        second,
        Operation(Do.ADD, layer=2, value=0),
    )
    assert smaller.remove_operations(program, {1}).operations == (first,)
    left = smaller.without_prompt(Program(TWO, (Operation(Do.ZERO, layer=0, prompt=1),)), 0)
    assert left == Program(TWO[1:], (Operation(Do.ZERO, layer=0, prompt=0),))


def test_the_files_of_programs_are_scenarios_with_a_case_for_models_with_such_layers(tmp_path):
    folder = tmp_path / f"programs_{random.randrange(10**9)}"
    folder.mkdir()
    for name, program in charter(4).items():
        plain = name.replace("-", "_")
        (folder / f"{plain}.py").write_text(programs.text(program, plain))
    found = discover(folder)
    assert len(found) == len(charter(4)) > 15
    [case] = found["steering_middle_large_all"].expand(4)
    assert case.layers == {"highest": 3} and found["steering_middle_large_all"].twin(case)
    assert not found["read_all_pair"].twin(case)
    assert "Program: 2 prompts in 1 trace" in found["steering_middle_large_all"].meaning
