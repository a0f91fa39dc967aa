"""Two runs of the real command on real engines, shared by the tests of this folder.

`llama` passes and `broken` fails. A test that only reads a run reads one of them. A run imports
transformers and vLLM, and loads an engine for each model, column and precision. That takes far
longer than its cells: another scenario costs little, another run half a minute of a core.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from conformance.runner.processes import sessions
from conformance.runner.store import RunFolder, open_run
from conformance.spec.programs import text
from conformance.spec.records import CellResult, Results
from tests import ours
from tests.spec.programs.toy import charter

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: The pages whose examples run.
PAGES = "\n".join(
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("scenarios", "model-parts")
)
#: The files of these pages, by name.
EXAMPLES = {
    name: f"# {name}\n{source}" if name.endswith(".py") else source
    for name, source in re.findall(r"```(?:python|text)\n# (\S+)\n(.*?)```", PAGES, re.DOTALL)
}
#: One or two cases of each scenario that is a program; the rest differ in a layer, or do a part.
PROGRAMS = (
    "clean-pair", "read_all-pair", "cross_consume-first-middle", "cross_write-two",
    "ablation-middle", "steering-middle-small-all", "multigen-cross",
)  # fmt: skip
#: The default backends, and one that a single case of `llama` runs on.
COLUMNS = ("hf", "vllm-pp1", "vllm-pp2")
SERVER, SERVED = "vllm-serve", "clean"
#: Seconds between two looks at the sockets of a run: an engine is open for longer.
LOOK = 1.0


@dataclass(frozen=True)
class Ran:
    """A finished command: its exit code, all it printed, and the run it left behind."""

    code: int
    output: str
    reports: Path
    #: Where its processes accepted connections, by process, if it was watched.
    listening: Mapping[int, Collection[str]] = field(default_factory=dict)

    @property
    def folder(self) -> RunFolder:
        return open_run(self.reports)

    @cached_property
    def results(self) -> Results:
        """The run's results when first looked at."""
        return self.folder.results()

    def cells(self, backend: str = "") -> dict[str, CellResult]:
        """By `scenario-case`, of one backend; by id of all."""
        cells = self.results.cells
        if not backend:
            return {cell.id: cell for cell in cells}
        return {f"{c.scenario}-{c.case}": c for c in cells if c.backend == backend}


#: The command, where workers of an engine of the tests are forked from transformers' zygote.
PRELOADED = """\
from conformance import engines
import conformance_command
engines.PRELOAD["tests.end_to_end.test_adapters_run:open_engine"] = engines.PRELOAD["hf"]
conformance_command.main()
"""


def conformance(
    reports: Path,
    *arguments: str,
    watch: bool = False,
    command: Sequence[str] = ("-m", "conformance"),
) -> Ran:
    """Run the command as a user does, with reports of its own."""
    places: dict[int, set[str]] = defaultdict(set)
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *command, *arguments, "--reports", str(reports)],
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            while watch and process.poll() is None:
                for pid in sessions.descendants(process.pid):
                    places[pid] |= sessions.listening([pid])
                wait_a_little(process)
            code = process.wait(timeout=1800)
        except BaseException:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        return Ran(code, output.read(), reports, places)


def wait_a_little(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(LOOK)
    except subprocess.TimeoutExpired:
        return


def either(names: list[str]) -> str:
    """An expression for `-k`: cells of one of these scenarios."""
    return f"({' or '.join(f'{name}[' for name in names)})"


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run every scenario that one engine load can run, on a tiny llama and every default backend,
    without what nnsight is known to lose and what transformers does not have. Run the same
    scenarios as programs too, the examples of the pages on HF, and one case on a server. The run is
    in float32: the self-test runs all precisions. Of the cases that combine the same choices in
    other ways, those run that hold every choice.
    """
    folder = tmp_path_factory.mktemp("scenarios")
    programs, examples = folder / "charter_programs", folder / "my_scenarios"
    programs.mkdir()
    for name, program in charter(4).items():
        if name in PROGRAMS:
            plain = name.replace("-", "_")
            (programs / f"{plain}.py").write_text(text(program, plain))
    examples.mkdir()
    for name, source in EXAMPLES.items():
        (folder / name).write_text(source)
    subprocess.run([sys.executable, "make_vector.py"], cwd=folder, check=True)
    taught = either([path.stem for path in examples.glob("*.py")])
    elsewhere = "appended or chunked or preempt or kept or extract or samples"
    drawn = "drawing[ and not 0.5-0.7 or drawing_first[ and -0]"
    steered = "first-small-one or middle-small-all or middle-large-all or last-large-one"
    combined = (
        f"steering[ and not ({steered}) or cross_consume[ and (first-last or early-middle)"
        " or skip[ and (middle-alone or last-pair)"
    )
    loads = "logprobs[ and pp2-processed"  # an engine load for one cell: pp1 has it
    sent = "-clients"  # no default backend has clients: the self-test runs one that has
    left_out = f"{elsewhere} or {sent} or {drawn} or {combined} or {loads}"
    served = f"{SERVER} and {SERVED}[ and alone"
    whole = f"{taught} and -hf- or not ({taught} or {left_out})"
    places = (ours.copied(folder), programs, examples)
    return conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", "-j", "2", "--precision", "float32"),
        *(word for column in (*COLUMNS, SERVER) for word in ("-b", column)),
        *("-k", f"{served} or not {SERVER} and ({whole})"),
        *(word for place in places for word in ("--scenarios", str(place))),
        watch=True,
    )


#: A column that leaves a model's adapter out.
WITHOUT_ADAPTER = """\
extends: built-in
models: {}
backends:
  hf-without-adapter: { engine: "tests.end_to_end.test_adapters_run:open_engine", default: false }
"""


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run scenarios that differ from their reference, reads that are not the residual stream, and
    a model with an adapter, which one column leaves out. In float32: that faults are found in bf16
    is for the self-test.
    """
    manifest = tmp_path_factory.mktemp("manifest") / "models.yaml"
    manifest.write_text(WITHOUT_ADAPTER)
    faults, streams = HERE / "broken_scenarios", HERE / "broken_streams"
    wrong, mistaken = (
        either([path.stem for path in folder.glob("[a-z]*.py")]) for folder in (faults, streams)
    )
    of_the_adapter = "(clean[ or cross_write[)"
    columns = ("hf", "vllm-pp1", "vllm-pp2", "hf-without-adapter")
    cells = (
        f"{wrong} and [llama- and not llama-lora and not without",
        f"{mistaken} and not llama-lora and not without and not vllm-pp2",
        f"{of_the_adapter} and llama-lora",
    )
    return conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-j", "2", "--precision", "float32", "--models", str(manifest), "--trust"),
        *(word for model in ("llama", "gpt2", "llama-lora") for word in ("-m", model)),
        *(word for column in columns for word in ("-b", column)),
        *(word for place in (ours.FOLDER, faults, streams) for word in ("--scenarios", str(place))),
        *("-k", " or ".join(f"({each})" for each in cells)),
        command=("-c", PRELOADED),
    )
