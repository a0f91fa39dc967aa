"""The table of docs/check.md: what moves from transformers to vLLM, from examples/porting.

    python bench/porting_table.py

Each pair is a file that can be checked; its lines that are marked `# moves` are shown. That both
sides of each are the same is checked by `make test-all`.
"""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "examples" / "porting"
MARK = "  # moves"


def table() -> str:
    """Return the rows in Markdown, in the order of the files' names."""
    rows = ["| what | transformers | vLLM |", "| --- | --- | --- |"]
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text()
        what = (ast.get_docstring(ast.parse(text)) or "").rstrip(".")
        hf, vllm = text.split("def vllm", 1)
        rows.append(f"| {what} | {_lines(hf)} | {_lines(vllm)} |")
    return "\n".join(rows)


def _lines(side: str) -> str:
    marked = [line for line in side.splitlines() if line.endswith(MARK)]
    return "<br>".join(f"`{line.strip().removesuffix(MARK)}`" for line in marked)


if __name__ == "__main__":
    print(table())
