"""Pages hold: design and transport (places, records, verdicts, safeties), coverage, security."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from conformance.spec import records
from conformance.spec.inputs import manifest
from conformance.spec.records import Verdict
from tests import ours
from tests.engines.relay import relay_faults

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
PIPELINE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    return text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> set[str]:
    """What stands in backticks in the first column of the tables."""
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_place_of_the_package_has_an_owner() -> None:
    listed = {name.rstrip("/") for name in first_cells(section(DESIGN, "Which folder owns what"))}
    there = {
        path.name
        for path in (ROOT / "conformance").iterdir()
        if (path.is_dir() and (path / "__init__.py").is_file()) or path.suffix == ".py"
    }
    assert listed == there - {"__init__.py", "_version.py"}
    rooms = first_cells(section(DESIGN, "Inside the larger rooms"))
    inside = {
        f"{path.parent.name}/{path.name}"
        for room in ("judge", "runner", "spec")
        for path in (ROOT / "conformance" / room).iterdir()
        if (path / "__init__.py").is_file() or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert inside <= {name.rstrip("/") for name in rooms}
    assert all((ROOT / "conformance" / name).exists() for name in rooms)


def test_every_verdict_is_told_with_whether_it_passes() -> None:
    text = section(DESIGN, "Verdicts")
    report = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert first_cells(text) == first_cells(section(report, "Verdicts"))
    assert first_cells(text) == {str(verdict) for verdict in Verdict}
    for names, passes in re.findall(r"^\| (`.*?) \| (yes|no|neutral) \|", text, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            verdict = Verdict(name)
            told = "yes" if verdict.passes else "neutral" if verdict.neutral else "no"
            assert told == passes, name


def test_every_record_that_is_named_is_one() -> None:
    names = first_cells(section(DESIGN, "Records"))
    assert names and {name for name in names if not hasattr(records, name)} == set()


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100


def test_every_safety_of_the_relay_stands_in_the_table_with_what_takes_it_out() -> None:
    named = set(re.findall(r"`(\w+)`", section(PIPELINE, "Its safeties")))
    assert set(relay_faults.FAULTS) == named


def test_the_reference_is_what_the_pages_say_it_is() -> None:
    """transformers' modelling code with forward hooks in float32, without nnsight."""
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "conformance" / "engines" / "reference").glob("*.py")
    }
    every = "\n".join(sources.values())
    assert "AutoModelForCausalLM" in sources["engine.py"]
    assert "register_forward_hook" in sources["places.py"]
    assert re.search(r"^(?:import|from) (?:nnsight|vllm)", every, re.MULTILINE) is None
    assert 'REFERENCE_RUN = EnsembleMember("truth", torch.float32' in sources["ensemble.py"]
    for page in ("README.md", "docs/numerics.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").replace("**", "").split())
        assert "float32 through transformers' own modelling code with PyTorch forward hooks" in text
        assert "witness" in text and "computation in plain PyTorch" not in text


# --- docs/coverage.md: what it names exists, what exists is named, no row is empty -----

SCENARIOS = ours.scenarios()
BACKENDS = {backend.id: backend for backend in manifest.load(ROOT / "models.yaml").backends}
COVERAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
ROWS = [
    tuple(part.strip() for part in line.strip("|").split("|"))
    for line in COVERAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| behaviour"))
]
NAMES = {name for _, where in ROWS for name in re.findall(r"`([\w.-]+)`", where)} - set(BACKENDS)


def test_every_behaviour_has_a_scenario_or_a_reason() -> None:
    covered = re.compile(r"not covered: \S.{15,}|.*`\w.*")
    assert [behaviour for behaviour, where in ROWS if not covered.fullmatch(where)] == []


def test_every_name_is_a_scenario_or_a_case_of_one() -> None:
    cases = {f"{name}.{case}" for name, one in SCENARIOS.items() for case in one.cases}
    assert sorted(NAMES - cases - set(SCENARIOS)) == []
    assert {"clean", "errors.before"} <= NAMES and len(ROWS) > 50


def test_every_scenario_covers_something() -> None:
    covered = re.sub(r"not covered: .*", "", COVERAGE)
    named = {name.partition(".")[0] for name in re.findall(r"`([\w.-]+)`", covered)}
    assert sorted(set(SCENARIOS) - named) == []


def test_every_kind_of_engine_has_a_row_in_the_list_of_coverage() -> None:
    """No page says that a kind of backend is missing which models.yaml has."""
    covered = " ".join(where for _, where in ROWS if "not covered" not in where)
    for engine in ("vllm-async", "vllm-serve"):
        assert any(f"`{b.id}`" in covered for b in BACKENDS.values() if b.engine == engine), engine
    for page in (ROOT / "docs").glob("*.md"):
        said = re.search(r"no (?:a?synchronous|serving|such) backend", page.read_text("utf-8"))
        assert said is None, f"{page.name}: {said}"


# --- SECURITY.md names tests that are there -------------------------------------------

SECURITY = (ROOT / "SECURITY.md").read_text("utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY)


def test_every_threat_is_held_by_a_test() -> None:
    rows = SECURITY.partition("## Threats")[2]
    lines = [line for line in rows.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert len(lines) > 10
    for line in lines[2:]:
        assert re.search(r"`tests/[\w/]+\.py::\w+`", line), line


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
