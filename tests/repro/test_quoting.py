"""Lines of the harness as text: with all that they need, and nothing that is another's."""

from __future__ import annotations

import ast

import pytest

from conformance.errors import ConformanceError
from conformance.repro import quoting
from conformance.repro.quoting import quote, renamed, unused


def executed(quoted: quoting.Quoted, **given: object) -> dict[str, object]:
    """What the text defines when it is run by itself."""
    names = dict(given)
    exec("from __future__ import annotations", names)
    exec("\n".join(quoting.import_lines(quoted.imports)), names)
    exec(compile(f"from __future__ import annotations\n{quoted.text}", "quoted", "exec"), names)
    return names


def test_a_function_runs_by_itself_and_does_what_it_did() -> None:
    from conformance.judge.measures import metrics

    found = executed(quote(["conformance.judge.measures.metrics:spread"]))
    assert found["spread"]([1.0, 2.0, 5.0]) == metrics.spread([1.0, 2.0, 5.0])


def test_what_a_definition_needs_comes_before_it_and_once() -> None:
    quoted = quote(
        ["conformance.judge.measures.tokens:choice", "conformance.judge.measures.metrics:ulp"]
    )
    defined = [n.name for n in ast.parse(quoted.text).body if hasattr(n, "name")]
    assert len(defined) == len(set(defined))
    assert defined.index("_pair_noise") < defined.index("choice")
    assert quoted.owners["ulp"] == "conformance.judge.measures.metrics"


def test_a_module_of_which_single_names_are_used_is_a_namespace() -> None:
    from types import SimpleNamespace

    text = quote(
        [
            "conformance.judge.measures.relations:differ",
            "conformance.judge.measures.floor:median_limit",
        ]
    )
    assert "metrics = " not in text.text
    quoted = quote(["conformance.judge.measures.floor:within"])
    found = executed(quoted, SimpleNamespace=SimpleNamespace)
    assert callable(found["within"])


def test_nothing_of_the_harness_is_imported() -> None:
    quoted = quote(["conformance.judge.measures.tokens:choice"])
    assert not [one for one in quoted.imports.values() if one.module.startswith("conformance")]
    assert "import conformance" not in quoted.text


def test_names_in_annotations_only_are_told_apart() -> None:
    quoted = quote(["conformance.judge.measures.floor:median_limit"])
    assert quoted.types == {"Thresholds"}
    assert "class Thresholds" not in quoted.text


def test_methods_that_nobody_calls_are_left_out() -> None:
    root = "conformance.records:Site"
    without = unused([[root]], {"Site"}, "nothing", given={"record"})
    assert without == {"Site.parse"}
    assert "def parse" not in quote([root], given={"record"}, without=without).text
    assert not unused([[root]], {"Site"}, "Site.parse(text)", given={"record"})


def test_a_property_is_not_mistaken_for_a_method_of_another_type() -> None:
    entries = [("Layer.norm", "", True)]
    assert not quoting._is_used("norm", entries, "rows.norm(dim=-1)")
    assert quoting._is_used("norm", entries, "lm.norm.output")
    assert quoting._is_used("norm", [("Probe.norm", "", False)], "probe.norm(layer)")


def test_a_method_that_other_classes_call_stays_and_a_property_of_theirs_does_not_count() -> None:
    assert quoting._is_used("rpc", [("VLLMModel.rpc", "", False)], "", "lm.rpc(question)")
    assert not quoting._is_used("norm", [("TracedModel.norm", "", True)], "", "parts.norm")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "def rows(x):\n    return rows(x)",
            "def rows_of_harness(x):\n    return rows_of_harness(x)",
        ),
        ("def f(rows):\n    return rows", "def f(rows):\n    return rows"),
        ("def f(x):\n    rows = x\n    return rows", "def f(x):\n    rows = x\n    return rows"),
        (
            "def f():\n    def rows(x):\n        return x\n\n    return rows(1)",
            "def f():\n    def rows(x):\n        return x\n\n    return rows(1)",
        ),
        (
            "class C:\n    def rows(self):\n        return rows(self)",
            "class C:\n    def rows(self):\n        return rows_of_harness(self)",
        ),
        ("def f(x):\n    return x.rows + rows", "def f(x):\n    return x.rows + rows_of_harness"),
        ("LIMIT = 'ü' + rows", "LIMIT = 'ü' + rows_of_harness"),
        ("class rows:\n    at = rows", "class rows_of_harness:\n    at = rows_of_harness"),
    ],
)
def test_a_name_that_the_scenario_has_is_taken(text: str, expected: str) -> None:
    assert renamed(text, {"rows"}) == expected


def test_two_definitions_of_one_name_are_refused() -> None:
    with pytest.raises(ConformanceError, match="rows is defined in"):
        quote(["conformance.judge.measures.metrics:rows", "conformance.engines.parts:rows"])


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConformanceError, match="has no nothing"):
        quote(["conformance.judge.measures.metrics:nothing"])


def test_one_name_of_two_libraries_is_refused() -> None:
    """A script has one scope: the later import would stand for both."""
    taken = quoting._Taken(frozenset(), frozenset())
    taken._import("save", quoting.Imported("nnsight", "save"))
    taken._import("save", quoting.Imported("nnsight", "save"))
    with pytest.raises(ConformanceError, match=r"save is of safetensors\.torch and of nnsight"):
        taken._import("save", quoting.Imported("safetensors.torch", "save"))
