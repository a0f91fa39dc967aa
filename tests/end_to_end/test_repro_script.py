"""Scripts of `conformance repro` on real engines."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.repro import rerun
from conformance.commands.repro.script import script_name
from conformance.runner.store import RunFolder, details
from conformance.spec.records import Verdict
from tests import command, ours
from tests.end_to_end.conftest import COLUMNS, ROOT, Ran

pytestmark = pytest.mark.engine

BROKEN = Path(__file__).parent / "broken_scenarios"
STREAMS = Path(__file__).parent / "broken_streams"


def written(
    ran: Ran, cell: str, folder: Path, *more: str, scenarios: Path = ROOT / "scenarios"
) -> Path:
    arguments = ("-o", str(folder), "--scenarios", str(scenarios), *more)
    code, said = command.run("repro", cell, *arguments, "--reports", str(ran.reports))
    assert code == 0, said
    [result] = [result for result in ran.results.cells if result.id == cell]
    return folder / script_name(result)


def run(path: Path) -> tuple[int, str]:
    """Run a script where the package is installed; return its exit code and all it printed."""
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=900, check=False
    )
    return done.returncode, done.stdout + done.stderr


#: It looks an attribute up by a name that is known only when the trace runs.
PASSING = "accessors[llama-hf-norm]"


def test_a_passing_cell_passes(llama: Ran, tmp_path: Path) -> None:
    code, output = run(written(llama, PASSING, tmp_path))
    assert code == 0, output[-3000:]
    assert "PASSES" in output


def test_of_every_scenario_a_script_can_be_written(
    llama: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write a script of one cell of each scenario, on the columns in turn."""
    results = llama.results  # parsed once: every command reads it
    monkeypatch.setattr(RunFolder, "results", lambda _: results)
    cells = {
        (cell.scenario, cell.backend): cell
        for cell in llama.results.cells
        if cell.scenario in ours.scenarios()
    }
    columns = itertools.cycle(COLUMNS)
    for scenario in dict.fromkeys(scenario for scenario, _ in cells):
        cell = cells[scenario, next(columns)]
        asked = ["repro", cell.id, "--reports", str(llama.reports), "-o", str(tmp_path)]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, (cell.id, done.exception)
        assert rerun.read(tmp_path / script_name(cell)).recorded.cell.id == cell.id


#: Scenario, case → verdict of the failure that its script must show again.
FAILURES = {
    ("writes", "dropped"): Verdict.DROPPED,
    ("writes", "twice"): Verdict.MISSCALED,
    ("writes", "first_prompt_only"): Verdict.PARTIAL,
    ("reads", "layer_off"): Verdict.WRONG,
    ("swapped_prompts", "all"): Verdict.WRONG,
    ("reads", "short_rows"): Verdict.STRUCTURE,
    ("raises", "all"): Verdict.ERROR,
}
SCRIPTS = [
    *((f"{name}[llama-{on}-{case}]", verdict, BROKEN)
      for (name, case), verdict in FAILURES.items() for on in ("hf", "vllm-pp1")),
    *((f"writes[llama-{on}-correct]", None, BROKEN) for on in ("hf", "vllm-pp1")),
    ("parts[llama-vllm-pp1-first_summand]", Verdict.WRONG, STREAMS),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "verdict", "scenarios"), SCRIPTS)
def test_a_failure_is_seen_again_and_a_write_as_it_should_be_passes(
    broken: Ran, name: str, verdict: Verdict | None, scenarios: Path, tmp_path: Path
) -> None:
    cell = broken.cells()[name]
    assert verdict in (None, cell.verdict), cell.reason
    code, output = run(written(broken, name, tmp_path, scenarios=scenarios))
    assert code == bool(verdict), output[-3000:]
    assert verdict is None or f"FAILS as recorded: {verdict}" in output


@pytest.mark.slow
def test_another_failure_than_the_recorded_one_is_told_apart(broken: Ran, tmp_path: Path) -> None:
    """The negative control: the script of a dropped write, whose write is fixed halfway."""
    path = written(broken, "writes[llama-hf-dropped]", tmp_path, scenarios=BROKEN)
    text = path.read_text(encoding="utf-8")
    line = "        _ = layer.stream + vector\n"
    assert text.count(line) == 1
    path.write_text(text.replace(line, "        layer.stream = layer.stream + 2 * vector\n"))
    code, output = run(path)
    assert code == 3, output[-3000:]
    path.write_text(text.replace(line, "        layer.stream = layer.stream + vector\n"))
    assert run(path)[0] == 0


@pytest.mark.slow
def test_a_failure_on_two_stages_is_seen_again_and_written_up(broken: Ran, tmp_path: Path) -> None:
    more = ("--issue", "--to", "nnsight")
    path = written(broken, "writes[llama-vllm-pp2-dropped]", tmp_path, *more, scenarios=BROKEN)
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "2 pipeline stages" in text
    assert path.read_text(encoding="utf-8").rstrip() in text
    code, output = run(path)
    assert code == 1, output[-2000:]
    assert "FAILS as recorded: dropped" in output


def test_what_models_yaml_does_not_say_wants_trust(
    llama: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For somebody else: what a command line of one's own has named is noted in the cache.
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    manifest = tmp_path / "models.yaml"
    text = (ROOT / "models.yaml").read_text()
    assert "\n  seed: 11\n" in text
    manifest.write_text(text.replace("\n  seed: 11\n", "\n  seed: 12\n"))
    places = ("-o", str(tmp_path), "--models", str(manifest), "--reports", str(llama.reports))
    code, said = command.run("repro", PASSING, *places)
    assert code == 2
    assert "model 'llama': weights of another source" in said
    assert command.run("repro", PASSING, *places, "--trust")[0] == 0


def test_a_scenario_that_has_changed_since_is_refused(llama: Ran, tmp_path: Path) -> None:
    copy = tmp_path / "reports"
    run = llama.folder.path
    (copy / run.name).mkdir(parents=True)
    for name in ("plan.json", details.DETAILS):
        shutil.copy(run / name, copy / run.name)
    whole = json.loads((run / "results.json").read_text())
    for scenario in whole["scenarios"]:
        scenario["trace_source"] += "\n# edited"
    (copy / run.name / "results.json").write_text(json.dumps(whole))
    arguments = ("clean[llama-hf-alone]", "--run", run.name, "--reports", str(copy))
    code, said = command.run("repro", *arguments)
    assert code == 2
    assert "is not what it was in run" in said
