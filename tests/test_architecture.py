"""The shape of the code: what may import what, and what a scenario may name.

nnsight is no backend: a scenario is written in it.
"""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

import grimp
import pytest

from conformance.runner.store.keys import OBSERVING
from conformance.spec.inputs import manifest
from tests import ours

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "conformance"

#: Libraries that only engines touch.
ENGINE_LIBRARIES = {"accelerate", "gguf", "nnsight", "tokenizers", "transformers", "vllm"}

MODULES = sorted(PACKAGE.rglob("*.py"))
SCENARIOS = [path for path in ours.files() if path.suffix == ".py"]


def libraries(source):
    """The top-level packages that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@cache
def backend_words():
    """Every word by which a scenario could tell one backend from another."""
    known = manifest.load(ROOT / "models.yaml").backends
    engines = {each.engine for each in known}
    return {each.id for each in known} | engines | {"transformers", "backend", "engine"}


def backends_named(source, words):
    """(line, word) of each backend named in a scenario: in names, strings and comments alike."""
    pattern = re.compile(
        "|".join(re.escape(word) for word in sorted(words, key=len)[::-1]), re.IGNORECASE
    )
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
            parts = re.split(r"[^A-Za-z0-9-]+", token.string)
            found += [(token.start[0], part) for part in parts if pattern.fullmatch(part)]
    return found


def test_only_engines_touch_the_engines_libraries():
    touched = {
        str(path.relative_to(PACKAGE)): found
        for path in MODULES
        if not path.is_relative_to(PACKAGE / "engines")
        if (found := libraries(path.read_text()) & ENGINE_LIBRARIES)
    }
    assert touched == {}
    assert len(MODULES) > 300


def test_an_import_inside_a_function_is_found_too():
    assert libraries("def f():\n    from vllm.config import X\n") == {"vllm"}
    assert libraries("import transformers.generation as g") == {"transformers"}
    assert libraries("from . import vllm") == set()


def test_no_scenario_names_a_backend():
    # What a scenario's result depends on is declared with one of the words.
    texts = {
        path.name: re.sub(r'(depends_on=.*)"engine"', r'\1""', path.read_text())
        for path in SCENARIOS
    }
    words = backend_words()
    named = {name: found for name, text in texts.items() if (found := backends_named(text, words))}
    assert named == {}
    assert len(SCENARIOS) > 20


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("if lm.backend == 1:\n    pass\n", "backend"),
        ("from vllm import LLM\n", "vllm"),
        ("x = 'vLLM'\n", "vLLM"),
        ("x = case.is_hf\n", "hf"),
        ("x = 'only on vllm-pp2'\n", "vllm-pp2"),
        ("x = 1  # HF returns a tuple here\n", "HF"),
        ("if type(lm).__module__ == 'conformance.engines.hf':\n    pass\n", "hf"),
    ],
)
def test_a_scenario_that_names_a_backend_would_be_caught(source, word):
    assert word in [name for _, name in backends_named(source, backend_words())]


def test_a_word_that_only_contains_a_backends_name_is_no_offence():
    source = '"""Half of it."""\n@steering.reference\ndef _(halfway, reengineer): ...\n'
    assert backends_named(source, backend_words()) == []


def test_the_parent_starts_without_any_engine():
    """What `conformance list` needs must not bring an engine in."""
    script = (
        "import sys\n"
        "import conformance.cli, conformance.runner.planning.jobs\n"
        "import conformance.judge.runs, conformance.commands.doctor.diagnosis\n"
        f"print(sorted({ENGINE_LIBRARIES!r} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ran.stdout.strip() == "[]"


def contracts(folder, package):
    """What import-linter says about the package's contracts in pyproject.toml."""
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    script = "from importlinter.cli import lint_imports_command as main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(package.parent), "NO_COLOR": "1"},
    )


def test_imports_go_one_way(tmp_path):
    ran = contracts(tmp_path, PACKAGE)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("spec/records/base.py", "from conformance.runner import store", "Imports go one way"),
        ("runner/planning/plan.py", "import conformance.judge.runs", "Imports go one way"),
        (
            "runner/scheduling/loop.py",
            "from conformance.worker import main",
            "The parent needs no engine",
        ),
        (
            "spec/checkpoints.py",
            "from conformance.engines.building import checkpoint_builder",
            "The parent needs no engine",
        ),
        ("worker/main.py", "from conformance.judge import cell", "A worker observes"),
        ("engines/hf.py", "from conformance.spec.inputs import manifest", "A worker observes"),
        (
            "judge/cell/both_precisions.py",
            "from conformance.runner import store",
            "Judging is pure",
        ),
        (
            "commands/check/values/compare.py",
            "from conformance.commands.check import answer",
            "A check measures",
        ),
        ("unplaced.py", "X = 1", "Imports go one way"),
    ],
)
def test_an_import_the_other_way_is_caught(tmp_path, module, line, contract):
    copy = tmp_path / "code" / "conformance"
    for path in MODULES:
        target = copy / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    with (copy / module).open("a") as file:
        file.write(f"\n{line}\n")
    ran = contracts(tmp_path, copy)
    assert ran.returncode != 0
    assert re.search(rf"{contract}.* BROKEN", ran.stdout), ran.stdout


def test_what_decides_an_observation_counts_in_its_key():
    """All that a worker imports of the package counts, but for what only carries."""
    carries = re.compile(
        r"conformance(\.(errors|runner(\.processes(\.(sessions|temporary|unquoted))?|\.store(\..*)?)?"
        r"|spec(\.(authoring|cached_folder|checkpoints|inputs(\.config_keys)?|loose_json|regular_file|stub_modules|wheels"
        r"|records(\.(base|observed|judged|predictions|verdict))?))?"
        r"|worker(\.(frames|opened|process_state|root_cause))?))?$"
    )
    graph = grimp.build_graph("conformance", exclude_type_checking_imports=True)
    needed = {name for name in graph.modules if name.startswith("conformance.engines")}
    needed.add("conformance.worker.main")
    for module in list(needed):
        needed |= graph.find_upstream_modules(module)
    counted = tuple(
        f"conformance.{name.removesuffix('.py').replace('/', '.')}" for name in OBSERVING
    )
    assert {
        name for name in needed if not (name.startswith(counted) or carries.match(name))
    } == set()
