"""Whole folders that are read as one: a check, a sweep, a bisect, a campaign, a model."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import save

from conformance.bisect import files
from conformance.bisect.history.candidates import Candidate
from conformance.bisect.next_step import Next, following
from conformance.bisect.presentation import document, report
from conformance.bisect.state import BisectFolder, Request, State
from conformance.bisect.trial import write_cells
from conformance.builtin.user_trace import CALLED
from conformance.check import gather, kept, models, source
from conformance.check.kept import Kept
from conformance.check.search.edits import Found
from conformance.check.searching import Edits
from conformance.cli import selecting
from conformance.environments import parse
from conformance.errors import ConformanceError
from conformance.expectations import Known
from conformance.fuzz import campaign, tally
from conformance.fuzz.causes import Difference, Failure
from conformance.inputs import manifest
from conformance.planning import plan
from conformance.programs import Do, Operation, Part, Program
from conformance.records import (
    Backend,
    Cell,
    Column,
    Model,
    Outcome,
    Precision,
    Side,
    Source,
    Status,
    Verdict,
)
from conformance.records.injected import (
    SCHEMA,
    Alarm,
    Ending,
    Limit,
    Rate,
    Row,
    SelfTest,
    Totals,
)
from conformance.records.injected import Kind as Sort
from conformance.report.render import page as pages
from conformance.report.render import terminal
from conformance.report.sections import selftest as selftest_section
from conformance.report.sections.section import Document, Text
from conformance.store import ObservationCache, RunFolder, RunPlan
from conformance.store.folder import GroupFolder
from conformance.sweep import page
from conformance.sweep import points as sweeps
from tests.check import test_kept_check as checks
from tests.sweep import test_trend as trends

#: The folder of a run within that of an input.
RUN = "run"

MODEL = Model("llama", "llama", (Source("tiny", config={"vocab_size": 512}),))

# --- a check ------------------------------------------------------------------------------------

CHECK = Kept("llama", ("a",), {"my-trace": "/somewhere/my trace.py"})
EDITS = Edits((Found("my-trace", "vllm-pp1", "text", verified=True, tried=3),))
CALLED_NAMES = {"p0/s0/hidden": "hidden", "p0/s1/hidden.3": "hidden[3]"}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "text_config": {"num_key_value_heads": 2, "head_dim": 16},
}
MINE = "import other\n\n\ndef trace(lm):\n    return {'a': other.a, 'b': 'list.txt'}\n"


@cache
def _filled(fill: Callable[[Path], None]) -> tempfile.TemporaryDirectory[str]:
    """Removed when Python ends."""
    folder = tempfile.TemporaryDirectory(prefix="hostile-")
    fill(Path(folder.name))
    return folder


def whole(fill: Callable[[Path], None]) -> Path:
    """A folder that is filled once, and copied for each input."""
    return Path(_filled(fill).name)


def copied(fill: Callable[[Path], None]) -> Callable[[Path], None]:
    """Puts such a folder around a file."""

    def around(folder: Path) -> None:
        shutil.copytree(whole(fill), folder, symlinks=True, dirs_exist_ok=True)

    return around


def check(folder: Path) -> None:
    """A check that was gathered and not answered yet."""
    _, run = checks.checked(folder, factor=2.0)
    run.path.rename(folder / RUN)
    (folder / "checks" / "latest").unlink()
    (folder / RUN / "unfinished").unlink(missing_ok=True)


def read_check(folder: Path) -> object:
    """As `show`, `judge` and `repro` do."""
    selecting.elsewhere(folder / RUN)
    run = RunFolder(folder / RUN)
    asked = kept.asked_of(run)
    for file in asked.files:
        kept.command_for(asked, file.name, "hf")
    if asked.dump:
        return asked
    return kept.answered_again(run)


def called(text: bytes) -> bytes:
    """What transformers' worker saw, with this text for the values' names."""
    seen = {"float32:truth|p0/s0/hidden": torch.ones(4, 8), "layers|p0/s0/ids": torch.arange(4)}
    return save({**seen, CALLED: torch.tensor(list(text), dtype=torch.uint8)})


def model(folder: Path) -> None:
    (folder / "model").mkdir()


def read_model(folder: Path) -> object:
    """As `check` does before anything starts, and while its engine is opened."""
    gather.room(folder / "model")
    found = models.resolve(str(folder / "model"), folder / "models.yaml")
    models.require_layers(models.columns(["vllm-pp2"]), found)
    return found


def file_with_sibling(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    (folder / "list.txt").touch()


def read_sibling(folder: Path) -> object:
    file = source.read(folder / "mine.py")
    return kept.needed_files(file.path)


# --- a self-test --------------------------------------------------------------------------------

_RATE = Rate(1, 2, 0.1, 0.9)
SELFTEST = SelfTest(
    SCHEMA,
    "run",
    "2026-01-02",
    quick=False,
    thresholds="abc",
    rows=(
        Row(
            "half",
            Side.ENGINE,
            "half.middle",
            "llama",
            "hf",
            "steering",
            "middle",
            1.0,
            "stream",
            Ending.MISSED,
            Verdict.MATCH,
            (Verdict.WRONG,),
            right_verdict=False,
        ),
    ),
    alarms=(Alarm("steering[llama-hf-middle]", Verdict.WRONG, "off"),),
    totals=Totals(_RATE, _RATE, _RATE, {Side.ENGINE: _RATE}, below=1, absent=1),
    broken=("no false alarm",),
    limits=(
        Limit(
            *("llama", "hf", "steering", "middle"),
            *(Precision.FLOAT32, Sort.LATER_LEAK, 10, 1e-4, None, 0.5),
        ),
    ),
)


def read_selftest(folder: Path) -> object:
    """As the page of every run does, and the terminal."""
    section = selftest_section.read(folder)
    if section is None:
        raise ConformanceError("left out")
    terminal.blocks([section], Console(file=io.StringIO()))
    return pages.document(Document(Text("a self-test"), "", (), (section,)))


# --- sweeps, bisects, campaigns -----------------------------------------------------------------

SWEPT = trends.SWEPT
_SWEPT_CELLS = tuple(
    Cell(cell.model, cell.backend, cell.scenario, cell.case) for cell in trends.results().cells
)


def sweep(folder: Path) -> None:
    run = RunFolder(folder / RUN)
    run.path.mkdir(parents=True)
    found = trends.results()
    run.write_plan(RunPlan("r1", "now", "conformance sweep", (MODEL,), found.columns, _SWEPT_CELLS))
    run.write_results(found)
    sweeps.write(run, SWEPT)
    first = _SWEPT_CELLS[0]
    seen = {"p0/s0/stream.1": torch.zeros(2, 2)}
    run.write_cell(first.model, first.backend, "read_all.first", Outcome(Status.ERROR), seen)


def read_sweep(folder: Path) -> object:
    """As `judge` and `sweep --resume` do."""
    run = RunFolder(folder / RUN)
    swept = sweeps.read(run)
    for point in swept.points:
        _ = point.spec
    return page.publish(run, trends.results(), swept)


STATE = State(
    Request("vllm", "0.28.0", "0.32.0", "bisect"),
    (Candidate("a", "a", ("vllm==1",)), Candidate("b", "b", ("vllm==2",))),
)


def bisect(folder: Path) -> None:
    bisected = BisectFolder(folder)
    bisected.write(STATE)
    cell = Cell("llama", "hf", "read", "all")
    planned = RunPlan("bisect", "now", "bisect", (MODEL,), (Column(Backend("hf", "hf")),), (cell,))
    write_cells(bisected, planned)


def read_bisect(folder: Path) -> object:
    """As `bisect --resume` does, as far as to what it would start."""
    bisected = BisectFolder(folder)
    state = bisected.read()
    bisected.write(state.without_untestable())
    step = following(state)
    if isinstance(step, Next):
        return parse("\n".join(step.candidate.requirements))
    made = report.make(state, step, bisected, folder / "cache")
    terminal.document(document.document(made), Console(file=io.StringIO()))
    return files.write(made, bisected)


_PROGRAM = Program(("One", "One two"), (Operation(Do.ADD, Part.MLP, 1),))
_DIFFERENCE = Difference(
    "llama", _PROGRAM, (Failure("pp2", "value", Verdict.WRONG, "off"),), _PROGRAM, "llama|pp2|value"
)
CAMPAIGN = tally.State(
    tally.Request(("llama",), ("hf", "pp2"), 0, 1.0, None, 40, "corpus", frozen=True),
    drawn={"llama": 3},
    differences=(_DIFFERENCE,),
    waiting=(_DIFFERENCE,),
)
_LISTED = {
    "models": {"llama": {"tiny": {"vocab_size": 512}}},
    "backends": {"hf": {"engine": "hf"}, "pp2": {"engine": "vllm", "pipeline": 2}},
}


def listed(folder: Path) -> None:
    (folder / "models.yaml").write_text(json.dumps(_LISTED))


def read_campaign(folder: Path) -> object:
    """As `fuzz --resume` does, as far as to what it would start."""
    whole = manifest.load(folder / "models.yaml")
    state = campaign.read(folder)
    one = campaign.Campaign(
        replace(state, asked=replace(state.asked, corpus=str(folder / "corpus"))),
        plan.choose(whole.models, state.asked.models, "model"),
        plan.choose(whole.backends, state.asked.backends, "backend"),
        folder=folder,
        known=Known(),
        cache=folder / "cache",
    )
    one.describe(one.state.differences)
    return list(tally.summary(one.state)), tally.exit_code(one.state)


# --- the cache ----------------------------------------------------------------------------------


def cache_entry(folder: Path) -> None:
    entry = ObservationCache(folder).entry("abcdef")
    entry.mkdir(parents=True)
    for name in ("outcome.json", "observations.safetensors", "group.json"):
        (entry / name).touch()


def read_cache_entry(folder: Path) -> object:
    return ObservationCache(folder).fetch("abcdef", GroupFolder(folder / "group"), "a.b")
