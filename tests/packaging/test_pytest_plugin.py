"""The plug-in as another project's pytest has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TEST = """
import torch

def test_mine(assert_same):
    truth = torch.arange(1.0, 129.0).reshape(2, 64)
    floor = [truth * (1 + 1e-7), truth * (1 - 1e-7)]
    assert_same(truth * (1 + 1e-7), truth, floor=floor)

def test_other(assert_same):
    truth = torch.arange(1.0, 129.0).reshape(2, 64)
    floor = [truth * (1 + 1e-7), truth * (1 - 1e-7)]
    assert_same(2 * truth, truth, floor=floor)
"""

#: Answers the plug-in's one question without any engine.
CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from conformance import api
from conformance.spec.records import Verdict
from tests.known_runs import cell, results

def run(*, cells, options):
    made = []
    for name in cells:
        scenario, rest = name.rstrip("]").split("[llama-hf-")
        kind = (
            Verdict.WRONG if scenario == "ablation"
            else Verdict.UNSUPPORTED if scenario == "tokens" else Verdict.MATCH
        )
        made.append(cell("llama", "hf", scenario, rest, id=name, verdict=kind, reason="in short"))
    print("ran", len(cells), options)
    return results(cells=made)

api.run = run
"""


def shell(folder: Path, *words: str, every_plugin: bool = False) -> tuple[int, str]:
    """Run pytest in a folder, with this plug-in alone unless every installed one is wanted."""
    few = [] if every_plugin else ["-p", "conformance_pytest"]
    alone = {} if every_plugin else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *few, *words],
        cwd=folder, env={**os.environ, **alone}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_imported_where_it_is_not_used(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert 'conformance_pytest' in sys.modules\n"
        "    assert not {'conformance', 'pydantic', 'torch'} & set(sys.modules)\n"
    )
    assert shell(tmp_path, every_plugin=True)[0] == 0


def test_cells_are_collected_beside_the_projects_own_tests(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    code, said = shell(
        tmp_path, "--conformance-backend", "hf", "--conformance-model", "llama",
        "--conformance-cells", "ablation", "--collect-only",
    )  # fmt: skip
    assert code == 0
    assert "test_it.py::test_it" in said
    assert {line for line in said.splitlines() if line.startswith("conformance::")} == {
        f"conformance::ablation[llama-hf-{case}]" for case in ("first", "middle", "last")
    }


def test_the_cells_that_are_left_run_together_and_fail_with_their_reasoning(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    code, said = shell(
        tmp_path, "--conformance-backend", "hf", "--conformance-model", "llama", "-s",
        "--conformance-cells", "ablation or tokens or clean", "-k", "not last",
        "--conformance-precision", "float32", "-rs", "--strict-markers",
    )  # fmt: skip
    assert code == 1, said
    assert said.count("['--precision', 'float32', '--tier', 'full']") == 1
    assert "2 failed" in said and "1 deselected" in said
    assert "again: conformance run -m llama -b hf -k 'ablation[llama-hf-first]'" in said
    assert "unsupported: in short" in said


def test_the_fixture_is_the_judge_and_notes_what_it_found(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)
    code, said = shell(tmp_path, "--junitxml=junit.xml")
    assert code == 1
    assert "1 failed, 1 passed" in said and "NotSame: wrong" in said
    noted = (tmp_path / "junit.xml").read_text()
    assert '<property name="conformance" value="exact"' in noted
    assert '<property name="conformance" value="wrong"' in noted


def test_a_name_that_nothing_has_is_a_usage_error(tmp_path):
    code, said = shell(tmp_path, "--conformance-backend", "vlm")
    assert code == 4 and "there is no backend 'vlm'" in said
