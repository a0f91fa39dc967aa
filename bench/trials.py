"""What a campaign of kills tries, drawn from a seed; each trial has a place of its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
MARK = "CONFORMANCE_CAMPAIGN"

SHARED = Path("/dev/shm")

#: Who is there in a phase, by what the run has written: others could not be killed. The engines'
#: own processes are there with a worker's.
_ALL = ("parent", "zygote", "worker")
PHASES: Mapping[str, Sequence[str]] = {
    "plan": ("parent",),
    "import": ("parent", "zygote"),
    "load": _ALL,
    "probe": _ALL,
    "cell": _ALL,
    "collect": _ALL,
    "judge": ("parent",),
    "page": ("parent",),
}
#: What else has processes, by words of their titles: an engine, but for transformers, which runs in
#: the worker itself; and the cluster that a run `on ray` begins.
INNER: Mapping[str, Mapping[str, str]] = {
    "vllm-pp2": {"stage": "Worker_PP"},
    "vllm-async": {"engine core": "EngineCore"},
    "vllm-serve": {"engine core": "EngineCore"},
    "hf on ray": {
        "ray worker": "ray::conformance ",
        "raylet": "/raylet/raylet ",
        "gcs server": "/gcs/gcs_server ",
    },
}
#: The reference has none of these.
_OF_COLUMNS = {"stage", "engine core"}
#: How a run may end without them: its cluster has no other machine, and it can be gone on with.
ENDS: Mapping[str, set[int]] = {"raylet": {3}, "gcs server": {3}}
#: Whose a phase is: the reference's, which is run first, or a column's.
_SHARED_PHASES = ("load", "probe", "cell", "collect")
REFERENCE, COLUMN = "reference", "column"

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGSEGV", "SIGABRT")
REFUSED = (
    "no room for a file",
    "a full disk",
    "no room in shared memory",
    "no room in temporary files",
    "little memory",
    "ASCII locale",
    "no HOME",
    "reports cannot be written",
    "reports on a read-only disk",
    "a cache on a read-only disk",
    "a full cache",
    "two runs on one cache",
    "umask 077",
    "the clock jumps",
)

#: Seconds a run may take.
PATIENCE = 1200.0

Figures = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """`kind` is "kill" or one of `REFUSED`. `share` says how far into the phase it comes, or how
    much is refused; the rest is a kill's.
    """

    number: int
    kind: str
    backend: str
    share: float = 0.0
    who: str = ""
    of: str = ""
    phase: str = ""
    signal: str = ""

    @property
    def words(self) -> str:
        parts = (self.kind, self.who, self.of, self.phase, self.signal, self.backend)
        return " ".join(filter(None, parts))

    @property
    def name(self) -> str:
        """What it is called in the notes of what was tried."""
        return f"{self.number}: {self.words}"


@dataclass
class Place:
    """A trial's own cache, reports and temporary folder."""

    folder: Path
    mark: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def reports(self) -> Path:
        return self.folder / "reports"

    def variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONFORMANCE_CACHE": str(self.folder / "cache"),
            "TMPDIR": str(self.folder / "tmp"),
            MARK: self.mark,
            **self.environment,
        }

    def command(self, backend: str, *more: str) -> list[str]:
        """The run of a column, here or `on` a cluster that it begins."""
        column, _, cluster = backend.partition(" on ")
        more += ("--on", cluster) if cluster else ()
        cells = ("-m", "llama", "-b", column, "-k", "ablation", "--precision", "float32")
        asked = () if "--resume" in more else cells
        place = ("--reports", str(self.reports), "-j", "1")
        # The command that users have: it hears signals from its first line on.
        command = str(Path(sys.executable).with_name("conformance"))
        return [command, "run", *asked, *place, *more]

    def start(self, command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        with (self.folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.variables(),
                stdout=output,
                stderr=output,
                start_new_session=True,
                **more,
            )

    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Those that carry the mark, and those that have a file of the place open, removed ones
        too: a mark is gone where a process has written its title over its variables.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if self._has_open(process.pid) or process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def _has_open(self, pid: int) -> bool:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.readlink().is_relative_to(self.folder):
                    return True
        return False


def drawn(trials: int, seed: int, backends: Sequence[str]) -> list[Trial]:
    """Kills and refusals in turn; the same for the same seed, however many."""
    draw = random.Random(seed)
    found = []
    for number in range(trials):
        backend = draw.choice(list(backends))
        if number % 4 == 3:
            found.append(Trial(number, draw.choice(REFUSED), backend, draw.uniform(0, 1)))
            continue
        phase = draw.choice(list(PHASES))
        inner = [who for who in INNER.get(backend, ()) if phase in _there(who)]
        who = draw.choice((*PHASES[phase], *inner))
        of = draw.choice((REFERENCE, COLUMN)) if phase in _SHARED_PHASES else ""
        number_of = draw.choice(SIGNALS)
        share = draw.uniform(0, 1)
        of = COLUMN if who in _OF_COLUMNS else of
        found.append(Trial(number, "kill", backend, share, who, of, phase, number_of))
    return found


def _there(who: str) -> Sequence[str]:
    """The phases in which an engine's process is there, or a cluster's, which outlives engines."""
    return (*_SHARED_PHASES, "import", "judge", "page") if who in ENDS else _SHARED_PHASES


def figures(reports: Path) -> Figures:
    """All that a run says of its cells, but for how long they took and what the run is called."""
    document = json.loads((reports / "latest" / "results.json").read_text())
    kept = ("verdict", "diagnosis", "observations", "relations", "gain", "worst_site")
    return {cell["id"]: {key: cell.get(key) for key in kept} for cell in document["cells"]}


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: what it says of its cells, and how long its phases last."""

    figures: Figures
    seconds: Mapping[str, float]
    checkpoints: Path


def end(process: subprocess.Popen[bytes]) -> int | str:
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"nothing within {PATIENCE:.0f} s"
