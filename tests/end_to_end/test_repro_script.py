"""Scripts written by `conformance repro`, run alone: the harness cannot even be imported."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.records import Verdict
from conformance.repro.script import script_name
from tests.end_to_end.conftest import Ran, conformance

pytestmark = pytest.mark.engine

BROKEN = Path(__file__).parent / "broken_scenarios"
STREAMS = Path(__file__).parent / "broken_streams"
#: Imported by every interpreter at its start: the package is not there.
BLOCKER = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"conformance", "tests", "scenarios"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
"""


@dataclass(frozen=True)
class Alone:
    """A script that has run: its exit code and all it printed."""

    code: int
    output: str
    path: Path


def written(ran: Ran, cell: str, folder: Path) -> Path:
    done = conformance(ran.reports, "repro", cell, "-o", str(folder))
    assert done.code == 0, done.output
    [found] = [one for one in ran.results.cells if one.id == cell]
    return folder / script_name(found)


def alone(path: Path, folder: Path) -> Alone:
    """Run it from elsewhere, where nothing of the project can be imported."""
    blocked = folder / "blocked"
    blocked.mkdir(exist_ok=True)
    (blocked / "sitecustomize.py").write_text(BLOCKER)
    environment = os.environ | {"PYTHONPATH": str(blocked)}
    control = subprocess.run(
        [sys.executable, "-c", "import conformance"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'conformance'" in control.stderr
    done = subprocess.run(
        [sys.executable, str(path)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return Alone(done.returncode, done.stdout + done.stderr, path)


def test_a_passing_cell_passes_alone(llama: Ran, tmp_path: Path) -> None:
    path = written(llama, "steering[llama-hf-middle-small-one]", tmp_path)
    found = alone(path, tmp_path)
    assert found.code == 0, found.output[-3000:]
    assert "PASSES" in found.output


def test_every_cell_can_be_written_and_imports_nothing_of_the_project(
    llama: Ran, tmp_path: Path
) -> None:
    """Of each scenario a cell, on the columns in turn: it is sound, and says what it imports."""
    cells = {(cell.scenario, cell.backend): cell for cell in llama.results.cells}
    columns = itertools.cycle(sorted({backend for _, backend in cells}))
    for scenario in dict.fromkeys(scenario for scenario, _ in cells):
        cell = cells[scenario, next(columns)]
        asked = ["repro", cell.id, "--reports", str(llama.reports), "-o", str(tmp_path)]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, (cell.id, done.exception)
        text = (tmp_path / script_name(cell)).read_text(encoding="utf-8")
        foreign = imported(ast.parse(text)) - set(sys.stdlib_module_names)
        assert foreign <= {"torch", "transformers", "nnsight", "vllm", "safetensors"}, cell.id
        relayed = "conformance.engines.vllm.relay" in text
        assert relayed == (cell.backend == "vllm-pp2"), cell.id
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F823,E9", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout[-3000:]


def imported(tree: ast.Module) -> set[str]:
    """The packages that a script imports, at its top or inside."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.split(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


#: Scenario → verdict of the failure that its script must show again.
FAILURES = {
    "dropped_write": Verdict.DROPPED,
    "twice_write": Verdict.MISSCALED,
    "first_prompt_only": Verdict.PARTIAL,
    "layer_off": Verdict.WRONG,
    "swapped_prompts": Verdict.WRONG,
    "short_rows": Verdict.STRUCTURE,
    "raises": Verdict.ERROR,
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", "-b", "hf", "-b", "vllm-pp1", "-b", "vllm-pp2"),
        *("--scenarios", str(BROKEN)),
        *("-k", " or ".join((*FAILURES, "honest_write"))),
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "vllm-pp1"])
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_seen_again_alone(
    broken: Ran, name: str, backend: str, tmp_path: Path
) -> None:
    cell = broken.cells()[f"{name}[llama-{backend}-all]"]
    assert cell.verdict is FAILURES[name], cell.reason
    found = alone(written(broken, cell.id, tmp_path), tmp_path)
    assert found.code == 1, found.output[-3000:]
    assert f"FAILS as recorded: {cell.verdict}" in found.output


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "vllm-pp1"])
def test_a_write_as_it_should_be_passes_alone(broken: Ran, backend: str, tmp_path: Path) -> None:
    path = written(broken, f"honest_write[llama-{backend}-all]", tmp_path)
    found = alone(path, tmp_path)
    assert found.code == 0, found.output[-3000:]


@pytest.mark.slow
def test_half_a_stream_is_seen_again_alone(tmp_path: Path) -> None:
    ran = conformance(
        tmp_path / "reports",
        *("run", "-m", "llama", "-b", "vllm-pp1", "-k", "first_summand"),
        *("--scenarios", str(STREAMS)),
    )
    found = alone(written(ran, "parts[llama-vllm-pp1-first_summand]", tmp_path), tmp_path)
    assert found.code == 1, found.output[-3000:]
    assert "FAILS as recorded: wrong" in found.output


@pytest.mark.slow
def test_another_failure_than_the_recorded_one_is_told_apart(broken: Ran, tmp_path: Path) -> None:
    """The negative control: the script of a dropped write, whose write is mended halfway."""
    path = written(broken, "dropped_write[llama-hf-all]", tmp_path)
    text = path.read_text(encoding="utf-8")
    line = "        _ = layer.stream + vector\n"
    assert text.count(line) == 1
    path.write_text(text.replace(line, "        layer.stream = layer.stream + 2 * vector\n"))
    found = alone(path, tmp_path)
    assert found.code == 3, found.output[-3000:]
    path.write_text(text.replace(line, "        layer.stream = layer.stream + vector\n"))
    assert alone(path, tmp_path).code == 0


@pytest.mark.slow
def test_through_the_relay_the_script_needs_the_harness_and_says_so(
    broken: Ran, tmp_path: Path
) -> None:
    path = written(broken, "dropped_write[llama-vllm-pp2-all]", tmp_path)
    assert "`conformance` must be installed as well" in path.read_text(encoding="utf-8")
    assert alone(path, tmp_path).code == 3
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert "FAILS as recorded: dropped" in done.stdout


def test_a_scenario_that_has_changed_since_is_refused(llama: Ran, tmp_path: Path) -> None:
    import json
    import shutil

    copy = tmp_path / "reports"
    run = llama.folder.path
    (copy / run.name).mkdir(parents=True)
    shutil.copy(run / "plan.json", copy / run.name)
    whole = json.loads((run / "results.json").read_text())
    for scenario in whole["scenarios"]:
        scenario["trace_source"] += "\n# edited"
    (copy / run.name / "results.json").write_text(json.dumps(whole))
    done = conformance(copy, "repro", "clean[llama-hf-alone]", "--run", run.name)
    assert done.code == 2
    assert "is not what it was in run" in done.output
