"""Runs of several machines on one page, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.errors import ConformanceError
from conformance.report.merging import merge
from conformance.runner.store import RunFolder
from conformance.spec.records import Backend, Column, Results, Thresholds, Verdict, widened
from tests import known_runs
from tests.report import synthetic

SMALL = synthetic.Maker(models=synthetic.MODELS[1:3])


@pytest.fixture(scope="module")
def cpu() -> Results:
    return named(synthetic.results(SMALL), "20260301-cpu")


@pytest.fixture(scope="module")
def gpu(cpu: Results) -> Results:
    cells = tuple(
        replace(c, verdict=Verdict.WRONG) if c.scenario == "clean" else c for c in cpu.cells
    )
    machine = replace(cpu.environment, device="cuda", devices=("NVIDIA H200",))
    versions = {**machine.versions, "nnsight": "0.9"}
    return named(
        replace(cpu, cells=cells, environment=replace(machine, versions=versions)), "20260302-gpu"
    )


def named(run: Results, name: str) -> Results:
    return replace(run, run=replace(run.run, id=name))


def test_each_machine_has_its_columns_and_every_cell_is_there(cpu: Results, gpu: Results) -> None:
    found = merge([cpu, gpu])
    columns = {cell.backend for cell in found.results.cells}
    assert columns == {f"{b.id}@{kind}" for b in cpu.columns for kind in ("cpu", "cuda")}
    assert len({cell.id for cell in found.results.cells}) == len(cpu.cells) + len(gpu.cells)
    assert {one.backend for one in found.results.groups} == columns
    assert found.results.footer.judged == len(found.results.cells)
    assert found.origin["clean[llama-hf@cuda-all]"] == ("20260302-gpu", "clean[llama-hf-all]")
    verdicts = {c.id: c.verdict for c in found.results.cells}
    assert verdicts["clean[llama-hf@cuda-all]"] is Verdict.WRONG
    assert verdicts["clean[llama-hf@cpu-all]"] is not Verdict.WRONG
    assert found.results.environment.versions["nnsight"] == "0.8.1 / 0.9"


def only(run: Results, name: str, *, hf: bool) -> Results:
    """The cells on hf, or those on the other columns."""
    cells = tuple(cell for cell in run.cells if (cell.backend == "hf") is hf)
    footer = replace(run.footer, planned=len(cells), judged=len(cells))
    return replace(named(run, name), cells=cells, footer=footer)


def test_different_columns_of_one_machine_keep_their_names(cpu: Results) -> None:
    found = merge([only(cpu, "a", hf=True), only(cpu, "b", hf=False)])
    assert {cell.id for cell in found.results.cells} == {cell.id for cell in cpu.cells}


def test_a_column_of_one_name_must_be_the_same(cpu: Results) -> None:
    other = replace(only(cpu, "b", hf=True), columns=(Column(Backend("hf", "vllm")),))
    with pytest.raises(ConformanceError, match="is another one in run b"):
        merge([only(cpu, "a", hf=False), other])


WIDE = widened(Thresholds(), 2.0)
Change = Callable[[Results], Results]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: replace(r, cells=r.cells[:-1]), "is incomplete"),
        (lambda r: replace(r, footer=replace(r.footer, judged=3)), "is incomplete"),
        (lambda r: replace(r, environment=replace(r.environment, thresholds=WIDE)), "thresholds"),
        (
            lambda r: replace(r, models=tuple(replace(m, digest="other") for m in r.models)),
            "another checkpoint",
        ),
        (
            lambda r: replace(
                r, scenarios=tuple(replace(s, trace_source="other") for s in r.scenarios)
            ),
            "asks for something else",
        ),
        (lambda r: replace(r, schema="conformance-results/1"), "different versions"),
        (lambda r: named(r, "20260301-cpu"), "nothing to merge"),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused(
    cpu: Results, gpu: Results, change: Change, words: str
) -> None:
    with pytest.raises(ConformanceError, match=words) as caught:
        merge([cpu, change(gpu)])
    assert caught.value.remedy


def test_the_same_cells_of_the_same_hardware_are_refused(cpu: Results) -> None:
    with pytest.raises(ConformanceError, match="both hold") as caught:
        merge([cpu, named(cpu, "20260303-again")])
    assert "conformance diff 20260301-cpu 20260303-again" in caught.value.remedy


def stored(reports: Path, *runs: Results) -> None:
    for run in runs:
        known_runs.stored(reports / run.run.id, run)


def command(reports: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments, "--reports", str(reports)])


def test_the_command_writes_the_page_and_the_data(
    cpu: Results, gpu: Results, tmp_path: Path
) -> None:
    stored(tmp_path, cpu, gpu)
    ran = command(tmp_path, cpu.run.id, gpu.run.id)
    assert ran.exit_code == 0, ran.output
    folder = tmp_path / "20260301-cpu+20260302-gpu"
    assert ran.output.strip() == str(folder / "index.html")
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert "vllm-pp1@cuda" in text
    assert "NVIDIA H200" in text
    again = RunFolder(folder).results()
    assert len(again.cells) == len(cpu.cells) + len(gpu.cells)
    pages = {path.name for path in folder.glob("*.html")}
    assert pages == {"index.html", "llama.html", "qwen2.html"}


def test_the_page_of_a_run_says_what_changed_since_the_one_before(
    cpu: Results, tmp_path: Path
) -> None:
    cells = tuple(
        replace(c, verdict=Verdict.DROPPED, diagnosis="planted <b>here</b>")
        if c.id == "clean[llama-hf-all]"
        else c
        for c in cpu.cells
    )
    later = replace(named(cpu, "20260304-later"), cells=cells)
    stored(tmp_path, named(cpu, "20260301-before"), later)
    ran = command(tmp_path, later.run.id)
    assert ran.exit_code == 0, ran.output
    text = (tmp_path / later.run.id / "index.html").read_text(encoding="utf-8")
    assert "1 × new failure" in text
    assert "<bdi>Compared with 20260301-before</bdi>" in text
    assert "planted &lt;b&gt;here&lt;/b&gt;" in text
    assert "clean: all" in text
    own = (tmp_path / later.run.id / "qwen2.html").read_text(encoding="utf-8")
    assert "0 changes here" in own
    assert "clean: all" not in own
    for run, *against in ((later.run.id, "--against", "none"), ("20260301-before",)):
        assert command(tmp_path, run, *against).exit_code == 0
        assert "Compared with" not in (tmp_path / run / "index.html").read_text("utf-8")


def test_a_run_of_other_cells_or_a_damaged_one_is_not_the_one_before(
    cpu: Results, tmp_path: Path
) -> None:
    other = synthetic.results(synthetic.Maker(models=synthetic.MODELS[6:7]))
    stored(tmp_path, named(cpu, "20260301-a"), named(other, "20260302-b"), named(cpu, "20260304-d"))
    (tmp_path / "20260303-c").mkdir()
    (tmp_path / "20260303-c" / "results.json").write_text("{")
    assert command(tmp_path, "20260304-d").exit_code == 0
    text = (tmp_path / "20260304-d" / "index.html").read_text("utf-8")
    assert "since <bdi>20260301-a</bdi>: <bdi>no verdict changed</bdi>" in text
