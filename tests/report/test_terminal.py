"""The terminal says what the page says, and nothing in a run can drive the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from conformance.errors import ConformanceError
from conformance.records import Judged, Precision, Results, Verdict
from conformance.report import cell_text, terminal_summary, words
from conformance.report.sections import findings
from tests.report import hostile, synthetic


def console(*, is_terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=140, force_terminal=is_terminal), out


def test_the_summary_shows_every_model_and_the_path(results: Results) -> None:
    screen, out = console()
    path = Path("reports") / ("long" * 60) / "index.html"
    terminal_summary.summary(results, path, screen)
    text = out.getvalue()
    for model in results.models:
        assert model.id in text
    assert "8 dropped of 23" in text
    assert findings.headline_of(results) in " ".join(text.split())
    assert str(path) in text.splitlines()


def test_show_says_the_same_sentences_as_the_page(results: Results) -> None:
    cell = next(cell for cell in results.cells if cell.verdict is Verdict.DROPPED)
    screen, out = console()
    cell_text.show(results, cell.id, screen)
    text = " ".join(out.getvalue().split())
    for sentence in words.reasoning(cell, cell_text.context(results, cell)):
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
    screen, out = console()
    cell_text.show(replace(results, cells=(cell,)), cell.id, screen)
    said, _, table = out.getvalue().partition("\nin float32\n")
    assert "3 of 4 observations are off in float32." in said
    rows = ["p0/s0/stream.1", "p0/s0/stream.2", "p0/s0/logits", "p0/s0/passes"]
    assert [line.split()[0] for line in table.splitlines() if line.startswith("p0/")] == rows


def test_show_accepts_a_part_that_only_one_id_has(results: Results) -> None:
    assert cell_text.find(results, "READ_ALL[llama-hf").id == "read_all[llama-hf-all]"


def test_an_exact_id_wins_over_ids_that_contain_it(results: Results) -> None:
    cells = [cell for cell in results.cells if cell.scenario == "clean"][:2]
    some = replace(
        results, cells=(replace(cells[0], id="clean[a]"), replace(cells[1], id="clean[a]x"))
    )
    assert cell_text.find(some, "clean[a]") is some.cells[0]


def test_an_ambiguous_part_names_candidates(results: Results) -> None:
    with pytest.raises(ConformanceError, match="cells are like 'steering'") as caught:
        cell_text.find(results, "steering")
    assert "steering[smollm2-hf-first-small-one]" in caught.value.remedy


def test_one_case_on_several_backends_is_shown_on_all_of_them(results: Results) -> None:
    cells = [replace(results.cells[0], id=f"{number}", case="my-trace") for number in (1, 2)]
    other = replace(results.cells[0], id="check[my-trace-2]", case="my-trace-2")
    some = replace(results, cells=(*cells, other))
    for wanted in ("my-trace", "my-trace.py"):
        assert cell_text.find_all(some, wanted) == cells
    with pytest.raises(ConformanceError, match="2 cells are like"):
        cell_text.find(some, "my-trace")
    screen, out = console()
    cell_text.show(some, "my-trace", screen)
    assert out.getvalue().count("again: ") == 2


def test_a_misspelt_id_names_near_ones(results: Results) -> None:
    with pytest.raises(ConformanceError, match="has no cell") as caught:
        cell_text.find(results, "clean[lama-hf-all]")
    assert "clean[llama-hf-all]" in caught.value.remedy


def test_where_no_id_is_near_it_is_said_what_there_is(results: Results) -> None:
    with pytest.raises(ConformanceError) as caught:
        cell_text.find(replace(results, cells=results.cells[:1]), "zzz")
    assert caught.value.remedy == f"it has {results.cells[0].id}"


def test_nothing_in_a_run_reaches_the_terminal_as_a_command() -> None:
    run = hostile.hostile()
    screen, out = console()
    terminal_summary.summary(run, Path("x"), screen)
    for cell in run.cells:
        cell_text.show(run, cell.id, screen)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert hostile.ATTACK.split()[0] in text


def test_markup_of_rich_in_a_run_is_text(results: Results) -> None:
    from dataclasses import replace

    cell = replace(results.cells[0], reason="[bold red]oops[/]", command="run -k '[/nope]'")
    screen, out = console()
    cell_text.show(replace(results, cells=(cell,)), cell.id, screen)
    assert "[bold red]oops[/]" in out.getvalue()
    assert "[/nope]" in out.getvalue()


def test_the_end_of_the_log_is_shown_for_a_crash(results: Results) -> None:
    crash = next(cell for cell in results.cells if cell.verdict is Verdict.CRASH)
    screen, out = console()
    cell_text.show(results, crash.id, screen)
    assert "WARNING prefix cache is off" in out.getvalue()


def test_an_empty_run_is_not_called_clean() -> None:
    screen, out = console()
    terminal_summary.summary(synthetic.wrapped(()), Path("x"), screen)
    assert "Nothing was run" in out.getvalue()
