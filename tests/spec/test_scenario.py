"""Scenario files: cases from choices, positions of layers, and what is refused."""

import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands import validate
from conformance.engines import Refused
from conformance.engines.model_parts import require_layers
from conformance.errors import ConformanceError, ExitCode
from conformance.spec.builtin.probe import PROBE
from conformance.spec.records import Case
from conformance.spec.scenario import discover, position


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = tmp_path / f"kind_{abs(hash(tmp_path))}"
    made.mkdir()
    (made / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return made


def write(folder, name, source):
    (folder / f"{name}.py").write_text(textwrap.dedent(source))


GOOD = '''
    """Good: a scenario as it should be."""
    from conformance import scenario

    @scenario(layers={"at": ("first", "last")}, options={"dose": ("small", "large"), "x": (1,)})
    def good(lm, case): ...

    @good.reference
    def _(model, case): ...
'''


def test_every_combination_of_what_varies_is_a_case(folder):
    write(folder, "good", GOOD)
    good = discover(folder)["good"]
    assert list(good.cases) == ["first-small", "first-large", "last-small", "last-large"]
    case = good.expand(5)[2]
    assert (case.layers, case.options) == ({"at": 4}, {"dose": "small", "x": 1})
    assert good.meaning == "Good: a scenario as it should be."
    assert case.key == "good.last-small"


def test_the_probes_prompt_is_nobody_elses(folder):
    write(folder, "good", GOOD)
    assert PROBE not in discover(folder)["good"].prompts


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "declares no scenario called 'bad'"),
        ("import nothing_of_that_name", "cannot be imported"),
        (
            "from conformance import scenario\n@scenario()\ndef bad(lm, case): ...\n",
            "no meaning",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_remedy(folder, source, words):
    write(folder, "bad", source)
    with pytest.raises(ConformanceError, match=words) as refused:
        discover(folder)
    assert refused.value.path == folder / "bad.py"
    assert refused.value.remedy


def test_a_scenario_without_a_reference_says_so(folder):
    write(folder, "good", GOOD.split("@good.reference", maxsplit=1)[0])
    with pytest.raises(ConformanceError, match="no reference"):
        _ = discover(folder)["good"].specification


@given(st.integers(min_value=2, max_value=200))
def test_early_and_late_lie_on_both_sides_of_the_middle(layers):
    assert 0 == position("first", layers) <= position("early", layers) < layers / 2
    assert layers / 2 <= position("late", layers) + 1 <= position("last", layers) + 1 == layers


def test_a_layer_is_named_by_its_number_too(folder):
    write(folder, "good", GOOD.replace('("first", "last")', '(0, "12", "last")'))
    good = discover(folder)["good"]
    assert list(good.cases)[:4] == ["0-small", "0-large", "12-small", "12-large"]
    assert [case.layers["at"] for case in good.expand(16)] == [0, 0, 12, 12, 15, 15]
    assert position("3", 8) == position(3, 8) == 3


@pytest.mark.parametrize("place", ["-1", '"frist"', '("first", -1)'])
def test_a_position_that_is_none_is_refused_where_it_is_declared(folder, place):
    write(folder, "good", GOOD.replace('("first", "last")', place))
    with pytest.raises(ConformanceError, match="unknown layer position") as refused:
        discover(folder)
    assert refused.value.path == folder / "good.py"


def test_a_model_without_such_a_layer_refuses_the_case():
    case = Case("mine", "12", ("One",), layers={"at": 12})
    require_layers(case, 13)
    with pytest.raises(Refused, match="the model has 12 layers, and the case asks for at=12"):
        require_layers(case, 12)


@pytest.mark.parametrize("status", ["0", "", "'words'"])
def test_a_file_that_ends_the_program_is_refused(folder, status):
    """With 0 a run, a gate and a validation would be green, and nothing was run."""
    write(folder, "quits", f"import sys\nsys.exit({status})\n")
    with pytest.raises(ConformanceError, match=r"quits\.py.*it ends the program") as caught:
        discover(folder)
    assert caught.value.code is ExitCode.BAD_INPUT and caught.value.remedy


def test_nothing_ends_a_verb_with_a_status_of_its_own(monkeypatch):
    def quits(*_: object) -> None:
        sys.exit(0)

    monkeypatch.setattr(validate, "validate_project", quits)
    ran = CliRunner().invoke(app, ["validate"])
    assert isinstance(ran.exception, ConformanceError), (ran.exit_code, ran.output)
    assert ran.exception.code is ExitCode.HARNESS
