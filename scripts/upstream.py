"""Write docs/upstream/ anew: of each gap that known.yaml names a text, its script, and the index.

    python scripts/upstream.py REPORTS [REPORTS …]

Each cell below is taken from the newest run under those folders that has it and in which it
fails. A name that none has is said, and its files stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.records import CellResult, Results
from conformance.report.render.markdown import plain
from conformance.repro import issue, script
from conformance.repro.upstream import Project
from conformance.scenario import discover
from conformance.store import RunFolder

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "upstream"

#: File name → cell, and for whom it is where its attribution does not say, or says who raised an
#: error that another caused.
GAPS: dict[str, tuple[str, Project | None]] = {
    "batch_appended": ("batch[llama-vllm-pp1-appended]", None),
    "skip_pair": ("skip[gpt_neox-vllm-pp1-middle-pair]", Project.NNSIGHT),
    "chunked": ("chunked[llama-vllm-pp1-all]", Project.NNSIGHT),
    "accessors_gemma_embedding": ("accessors[gemma2-vllm-pp1-embedding]", None),
    "accessors_bloom_mlp": ("accessors[bloom-vllm-pp1-mlp]", None),
    "save_alias_falcon": ("save_alias[falcon-hf-mlp]", None),
    "extract_pair": ("extract[llama-hf-pair]", None),
    "samples_transformers": ("samples[llama-hf-all]", Project.NNSIGHT),
    "async_several_prompts": ("clean[llama-vllm-async-pair]", Project.NNSIGHT),
    "async_edits": ("edits[llama-vllm-async-early]", Project.NNSIGHT),
    "serve_list_before_prompts": ("batch[llama-vllm-serve-six]", None),
    "serve_samples": ("samples[llama-vllm-serve-all]", None),
    "tensor_parallel_head": ("logit_lens[llama-vllm-tp2-all]", None),
    "pipeline_native": ("clean[llama-vllm-pp2-native-alone]", Project.NNSIGHT),
    "mamba2_pipeline": ("clean[mamba2-vllm-pp2-alone]", Project.VLLM),
    "extract_pipeline": ("extract[llama-vllm-pp2-alone]", Project.VLLM),
    "extract_gpt2": ("extract[gpt2-vllm-pp1-alone]", Project.VLLM),
    "extract_last_normed": ("extract[llama-hf-last]", Project.TRANSFORMERS),
    "extract_mamba2": ("extract[mamba2-hf-alone]", None),
    "bloom_sdpa": ("clean[bloom-hf-sdpa-alone]", Project.TRANSFORMERS),
}
_INDEX = """\
# Texts for upstream

Of each gap in [known.yaml](../../known.yaml) a text that can be sent, and the script that shows it,
written by `conformance repro CELL --issue` (`scripts/upstream.py` writes all of them anew). A
script exits with 1 while the gap is there and with 0 when it is gone; how each ended when it was
last run stands in the table.

| text | for | what | script | last run |
|---|---|---|---|---|
"""


def main(reports: list[Path]) -> int:
    """Returns the exit status: 1 when a cell is nowhere."""
    runs = sorted((path for folder in reports for path in folder.glob("*/results.json")), key=str)
    found: dict[str, tuple[RunFolder, Results, CellResult]] = {}
    for path in runs:
        run = RunFolder(path.parent)
        results = run.results()
        failing = {cell.id: cell for cell in results.cells if not cell.verdict.passes}
        found |= {name: (run, results, cell) for name, cell in failing.items()}
    scenarios = discover(ROOT / "scenarios")
    FOLDER.mkdir(exist_ok=True)
    ended = _ended(FOLDER / "README.md")
    rows = []
    missing = 0
    for name, (cell_id, to) in GAPS.items():
        if cell_id not in found:
            sys.stderr.write(f"{cell_id} is in none of the runs\n")
            missing = 1
            continue
        run, results, whole = found[cell_id]
        cell = script.shareable(whole)
        plan = run.plan()
        model = next(model for model in plan.models if model.id == cell.model)
        column = next(column for column in plan.columns if column.id == cell.backend)
        known = script.recorded(results, cell, model, column)
        text = script.text(cell, known, scenarios[cell.scenario], file=f"{name}.py")
        project = to or issue.addressee(cell, column)
        words = issue.text(results, cell, model, project, text, f"{name}.py")
        (FOLDER / f"{name}.py").write_text(text, encoding="utf-8")
        (FOLDER / f"{name}.md").write_text(words, encoding="utf-8")
        last = ended.get(name, "")
        what = plain(issue.title(cell, project))
        rows.append(
            f"| [{name}]({name}.md) | {project} | {what} | [{name}.py]({name}.py) | {last} |"
        )
    (FOLDER / "README.md").write_text(_INDEX + "\n".join(rows) + "\n", encoding="utf-8")
    return missing


def _ended(index: Path) -> dict[str, str]:
    """How each script ended when it was last run, from the index that is there."""
    lines = index.read_text(encoding="utf-8").splitlines() if index.is_file() else []
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| [")]
    return {row[0][1:].partition("]")[0]: row[4] for row in rows if len(row) == 5}


if __name__ == "__main__":
    try:
        sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
    except ConformanceError as error:
        sys.exit(f"error: {error}")
