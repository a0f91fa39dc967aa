"""Write docs/upstream/: for each gap in known.yaml a text with its script, and the index.

    python scripts/upstream.py REPORTS [REPORTS …]
    python scripts/upstream.py --run [NAME …]

Each cell below is taken from the newest run in those folders in which it fails. A cell that no
run has is reported, and its text stays. `--run` executes the scripts of the texts, one after the
other, and writes into the index how each ended.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from conformance.commands.repro import UpstreamProject, issue, script
from conformance.errors import ConformanceError
from conformance.report.render.markdown import plain
from conformance.runner.store import RunFolder
from conformance.spec.records import CellResult, Results
from conformance.spec.scenario import discover

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "upstream"

#: File name → cell, and for whom it is where its attribution does not say, or says who raised an
#: error that another caused.
GAPS: dict[str, tuple[str, UpstreamProject | None]] = {
    "batch_appended": ("batch[llama-vllm-pp1-appended]", None),
    "skip_pair": ("skip[gpt_neox-vllm-pp1-middle-pair]", UpstreamProject.NNSIGHT),
    "chunked": ("chunked[llama-vllm-pp1-all]", UpstreamProject.NNSIGHT),
    "accessors_gemma_embedding": ("accessors[gemma2-vllm-pp1-embedding]", None),
    "accessors_bloom_mlp": ("accessors[bloom-vllm-pp1-mlp]", None),
    "save_alias_falcon": ("save_alias[falcon-hf-mlp]", None),
    "extract_pair": ("extract[llama-hf-pair]", None),
    "samples_transformers": ("samples[llama-hf-all]", UpstreamProject.NNSIGHT),
    "async_several_prompts": ("clean[llama-vllm-async-pair]", UpstreamProject.NNSIGHT),
    "async_edits": ("edits[llama-vllm-async-early]", UpstreamProject.NNSIGHT),
    "serve_list_before_prompts": ("batch[llama-vllm-serve-six]", None),
    "serve_samples": ("samples[llama-vllm-serve-all]", None),
    "tensor_parallel_head": ("logit_lens[llama-vllm-tp2-all]", None),
    "pipeline_native": ("clean[llama-vllm-pp2-native-alone]", UpstreamProject.NNSIGHT),
    "mamba2_pipeline": ("clean[mamba2-vllm-pp2-alone]", UpstreamProject.VLLM),
    "extract_pipeline": ("extract[llama-vllm-pp2-alone]", UpstreamProject.VLLM),
    "extract_gpt2": ("extract[gpt2-vllm-pp1-alone]", UpstreamProject.VLLM),
    "extract_last_normed": ("extract[llama-hf-last]", UpstreamProject.TRANSFORMERS),
    "extract_mamba2": ("extract[mamba2-hf-alone]", None),
    "bloom_sdpa": ("clean[bloom-hf-sdpa-alone]", UpstreamProject.TRANSFORMERS),
    "bloom_gelu": ("clean[bloom-vllm-pp1-alone]", UpstreamProject.VLLM),
    "mla_rotary_cpu": ("clean[deepseek_v2-plain-vllm-pp1-alone]", UpstreamProject.VLLM),
    "gpt_oss_clamp": ("clean[gpt_oss-clamp-vllm-pp1-alone]", UpstreamProject.VLLM),
    "raises_beside_others": ("staggered[llama-hf-raises-trace]", UpstreamProject.NNSIGHT),
    "serve_raises_beside_others": (
        "staggered[llama-vllm-serve-raises-trace]",
        UpstreamProject.NNSIGHT,
    ),
}
#: What a script's exit code says.
_ENDS = {
    0: "passes: it is gone",
    1: "fails as recorded",
    2: "could not be run",
    3: "fails in another way",
}
_INDEX = """\
# Texts for upstream

For each gap in [known.yaml](../../known.yaml) a text that can be sent, with the script that shows
it, as `conformance repro CELL --issue` writes both. A script exits with 1 while the gap is there
and with 0 when it is gone. The table says how each ended when `python scripts/upstream.py --run`
last ran it.

| text | for | what | last run |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A line of the index. `last` is how the script ended when it was last run, and when."""

    name: str
    project: str
    what: str
    last: str = ""

    def __str__(self) -> str:
        name = self.name
        return f"| [{name}]({name}.md) | {self.project} | {self.what} | {self.last} |"


def write(reports: list[Path]) -> int:
    """Write each text whose cell some run has, and the index. Returns 1 when one has none."""
    failing = _failing(reports)
    scenarios = discover(ROOT / "scenarios")
    FOLDER.mkdir(exist_ok=True)
    index = read_index()
    for name, (cell_id, to) in GAPS.items():
        if cell_id not in failing:
            sys.stderr.write(f"{cell_id} is in none of the runs\n")
            continue
        run, results, whole = failing[cell_id]
        cell = script.hide_folders(whole)
        plan = run.plan()
        model = next(model for model in plan.models if model.id == cell.model)
        column = next(column for column in plan.columns if column.id == cell.backend)
        recorded = script.collect_facts(results, cell, model, column)
        text = script.text(cell, recorded, scenarios[cell.scenario], file=f"{name}.py")
        project = to or issue.addressee(cell, column)
        words = issue.text(results, cell, model, project, text, f"{name}.py")
        (FOLDER / f"{name}.md").write_text(words, encoding="utf-8")
        last = index[name].last if name in index else ""
        index[name] = Row(name, project, plain(issue.title(cell, project)), last)
        write_index(index)
    return int(any(cell_id not in failing for cell_id, _ in GAPS.values()))


def run(names: list[str]) -> int:
    """Execute the scripts of these texts, or of all. Returns 1 when one does not fail as recorded,
    and shows what that one printed.
    """
    index = read_index()
    strange = [name for name in names if name not in index]
    if strange:
        remedy = f"those that are there are listed in {FOLDER.name}/README.md"
        raise ConformanceError(f"there is no text {', '.join(strange)}", remedy=remedy)
    codes = {}
    for name in names or list(index):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{name}.py")
            path.write_text(issue.script_in((FOLDER / f"{name}.md").read_text(encoding="utf-8")))
            command = [sys.executable, str(path)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
        codes[name] = ended.returncode
        words = _ENDS.get(ended.returncode, f"exit {ended.returncode}")
        index[name] = replace(index[name], last=f"{words}, {datetime.now(UTC):%Y-%m-%d}")
        write_index(index)
        sys.stdout.write(f"{name}: {words}\n")
        if ended.returncode != 1:
            sys.stderr.write(ended.stdout + ended.stderr)
    return int(any(code != 1 for code in codes.values()))


def read_index() -> dict[str, Row]:
    """The lines of the index that is there, by name."""
    path = FOLDER / "README.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = {}
    for line in lines:
        if match := re.fullmatch(r"\| \[(\w+)\]\S* \| (.*?) \| (.*) \| (.*?) ?\|", line):
            rows[match[1]] = Row(*match.groups())
    return rows


def write_index(rows: dict[str, Row]) -> None:
    """In the order of GAPS."""
    lines = "\n".join(str(rows[name]) for name in GAPS if name in rows)
    (FOLDER / "README.md").write_text(f"{_INDEX}{lines}\n", encoding="utf-8")


def _failing(reports: list[Path]) -> dict[str, tuple[RunFolder, Results, CellResult]]:
    """The cells that fail, each of the newest run that has it."""
    runs = [path.parent for folder in reports for path in folder.glob("*/results.json")]
    failing: dict[str, tuple[RunFolder, Results, CellResult]] = {}
    for folder in sorted(runs, key=lambda path: path.name):
        run = RunFolder(folder)
        results = run.results()
        failing |= {
            cell.id: (run, results, cell) for cell in results.cells if not cell.verdict.passes
        }
    return failing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arguments", nargs="*", metavar="REPORTS or NAME")
    parser.add_argument("--run", action="store_true", help="execute the scripts of the texts")
    options = parser.parse_args()
    if not (options.run or options.arguments):
        parser.error("name folders of runs, or --run")
    try:
        sys.exit(
            run(options.arguments)
            if options.run
            else write([Path(argument) for argument in options.arguments])
        )
    except ConformanceError as error:
        sys.exit(f"error: {error}")
