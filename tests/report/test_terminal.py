"""The terminal says what the page says, and nothing in a run can drive the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from conformance.errors import ConformanceError
from conformance.report import terminal_text, words
from conformance.report.sections import findings
from conformance.spec.records import Judged, Precision, Results, Verdict
from tests.report import hostile


def said(show: Callable[..., None], *arguments: object) -> str:
    out = io.StringIO()
    show(*arguments, Console(file=out, width=140))
    return out.getvalue()


def test_the_summary_shows_every_model_and_the_path(results: Results) -> None:
    path = Path("reports") / ("long" * 60) / "index.html"
    text = said(terminal_text.summary, results, path)
    for model in results.models:
        assert model.id in text
    assert "8 dropped of 23" in text
    assert findings.headline_of(results) in " ".join(text.split())
    assert str(path) in text.splitlines()


def test_show_says_the_same_sentences_as_the_page(results: Results) -> None:
    cell = next(cell for cell in results.cells if cell.verdict is Verdict.DROPPED)
    text = " ".join(said(terminal_text.show, results, cell.id).split())
    for sentence in words.reasoning(cell, terminal_text.context(results, cell)):
        assert " ".join(sentence.split()) in text
    assert f"again: {cell.command}" in text
    assert f"alone: conformance repro '{cell.id}' --run {results.run.id}" in text


def test_what_is_off_is_shown_before_what_follows_from_it_and_in_which_precision(
    results: Results,
) -> None:
    sizes = {
        "p0/s0/passes": (1.0, Verdict.MATCH),
        "p0/s0/stream.1": (200.0, Verdict.WRONG),
        "p0/s0/stream.2": (900.0, Verdict.WRONG),
        "p0/s0/logits": (400.0, Verdict.NONFINITE),
    }
    seen = tuple(
        Judged(site, verdict, q_med=size, q_max=size) for site, (size, verdict) in sizes.items()
    )
    cell = replace(
        results.cells[0],
        verdict=Verdict.WRONG,
        observations=seen,
        precision=Precision.FLOAT32,
        beside=None,
    )
    text = said(terminal_text.show, replace(results, cells=(cell,)), cell.id)
    words, _, table = text.partition("\nin float32\n")
    assert "3 of 4 observations are off in float32." in words
    rows = ["p0/s0/stream.1", "p0/s0/stream.2", "p0/s0/logits", "p0/s0/passes"]
    assert [line.split()[0] for line in table.splitlines() if line.startswith("p0/")] == rows


def test_a_part_that_only_one_id_has_is_enough_and_an_exact_id_wins(results: Results) -> None:
    assert terminal_text.find(results, "READ_ALL[llama-hf").id == "read_all[llama-hf-all]"
    cells = [cell for cell in results.cells if cell.scenario == "clean"][:2]
    some = replace(
        results, cells=(replace(cells[0], id="clean[a]"), replace(cells[1], id="clean[a]x"))
    )
    assert terminal_text.find(some, "clean[a]") is some.cells[0]


@pytest.mark.parametrize(
    ("text", "words", "remedy"),
    [
        ("steering", "cells are like 'steering'", "steering[smollm2-hf-first-small-one]"),
        ("clean[lama-hf-all]", "has no cell", "near: .*clean[llama-hf-all]"),
        ("zzz", "has no cell", "it has ablation[smollm2-hf-first]"),
    ],
)
def test_what_names_no_cell_is_refused_with_what_is_near(
    results: Results, text: str, words: str, remedy: str
) -> None:
    with pytest.raises(ConformanceError, match=words) as caught:
        terminal_text.find(results, text)
    assert all(part in caught.value.remedy for part in remedy.split(".*"))


def test_one_case_on_several_backends_is_shown_on_all_of_them(results: Results) -> None:
    cells = [replace(results.cells[0], id=f"{number}", case="my-trace") for number in (1, 2)]
    other = replace(results.cells[0], id="check[my-trace-2]", case="my-trace-2")
    some = replace(results, cells=(*cells, other))
    for wanted in ("my-trace", "my-trace.py"):
        assert terminal_text.find_all(some, wanted) == cells
    with pytest.raises(ConformanceError, match="2 cells are like"):
        terminal_text.find(some, "my-trace")
    assert said(terminal_text.show, some, "my-trace").count("again: ") == 2


def test_nothing_in_a_run_reaches_the_terminal_as_a_command(results: Results) -> None:
    run = hostile.hostile()
    shown = [said(terminal_text.summary, run, Path("x"))]
    text = "".join(shown + [said(terminal_text.show, run, cell.id) for cell in run.cells])
    assert "\x1b" not in text and "\x07" not in text
    assert hostile.ATTACK.split()[0] in text
    cell = replace(results.cells[0], reason="[bold red]oops[/]", command="run -k '[/nope]'")
    text = said(terminal_text.show, replace(results, cells=(cell,)), cell.id)
    assert "[bold red]oops[/]" in text and "[/nope]" in text


def test_the_end_of_the_log_is_shown_for_a_crash(results: Results) -> None:
    crash = next(cell for cell in results.cells if cell.verdict is Verdict.CRASH)
    assert "WARNING prefix cache is off" in said(terminal_text.show, results, crash.id)
