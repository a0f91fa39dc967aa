"""Every example and every planted mistake on real engines, as a table: what a check answers.

    python bench/check_examples.py [-m llama -m smollm2-135m] [-b vllm-pp1 -b vllm-pp2] [FOLDER …]

A folder has correct scripts, and in `mistakes/` those with a line that is marked by a comment,
`# mistake: KIND`. A correct script must be the same. For a mistake an edit must be verified; it is
applied, and the file that it makes is checked again and must be the same. Where the comment ends
with `no edit`, vLLM cannot do what is meant, and none must be verified. Prints a table in Markdown;
exits 1 when an answer is another one.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.commands.check.show import changes_in

ROOT = Path(__file__).parent.parent
FOLDERS = (ROOT / "examples",)
MODELS = ("llama", "smollm2-135m")
COLUMNS = ("vllm-pp1", "vllm-pp2")
SAME = ("same", "same but for numerics")

Answers = dict[tuple[str, str], dict[str, Any]]


def scripts(folder: Path) -> list[Path]:
    """The correct ones, then the mistakes."""
    return [*sorted(folder.glob("*.py")), *sorted(folder.glob("mistakes/*.py"))]


def planted(path: Path) -> tuple[str, int, bool] | None:
    """The kind of the mistake of this file, the line that has it, and whether an edit can help;
    None for a correct one.
    """
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.search(r"# mistake: ([\w.-]+)(, no edit)?", line)
        if match:
            return match[1], number, not match[2]
    return None


def check(
    files: list[Path], model: str, columns: tuple[str, ...] = COLUMNS, *options: str
) -> tuple[int, Answers]:
    """The exit code, and the answers by file and column."""
    chosen = [word for column in columns for word in ("-b", column)]
    command = [sys.executable, "-m", "conformance", "check", *map(str, files), *chosen]
    ran = subprocess.run(
        [*command, "-m", model, "--json", "--timeout", "300", "--load-timeout", "600", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=False,
    )
    answers = json.loads(ran.stdout)
    return ran.returncode, {(one["file"], one["backend"]): one for one in answers}


def judged(path: Path, answer: dict[str, Any]) -> tuple[bool, str]:
    """Whether the answer is the right one, and what it is in a word or two."""
    wanted = planted(path)
    if answer["answer"] in SAME or wanted is None:
        return wanted is None and answer["answer"] in SAME, answer["answer"]
    lines = [line for line, _ in changes_in(answer["diff"])]
    lines = lines or [one["line"] for one in answer["findings"] if one["line"]]
    words = f"{answer['answer']}, {'verified' if answer['verified'] else 'no edit'}: line {lines}"
    return bool(answer["verified"]) is wanted[2], words


def again(answers: Answers, model: str, columns: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """Apply the verified edits, and return what a check says of the files that they make."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        said: dict[tuple[str, str], str] = {}
        for column in columns:
            fixed = {}
            for (file, where), answer in answers.items():
                if where == column and answer["verified"]:
                    path = folder / column / Path(file).name
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(answer["fixed"])
                    fixed[str(path)] = file
            if fixed:
                _, repeated = check(list(map(Path, fixed)), model, (column,), "--search", "0")
                said |= {(fixed[f], column): a["answer"] for (f, _), a in repeated.items()}
        return said


def where() -> str:
    """The day, the commit and the processor."""
    git = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    return f"{datetime.now(UTC).date()}, commit {commit.stdout.strip()}, on {processor()}"


def processor() -> str:
    """Its name, and which wide instructions it has."""
    told = Path("/proc/cpuinfo").read_text()
    named = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    wide = {"AVX-512": " avx512f ", "AMX": " amx_tile "}
    has = [name if flag in told else f"no {name}" for name, flag in wide.items()]
    return ", ".join([named[1] if named else "this machine", *has])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=FOLDERS)
    parser.add_argument("-m", "--model", action="append", dest="models")
    parser.add_argument("-b", "--backend", action="append", dest="columns")
    asked = parser.parse_args()
    models, columns = tuple(asked.models or MODELS), tuple(asked.columns or COLUMNS)
    files = [path.resolve() for folder in asked.folders for path in scripts(folder)]
    answers = {model: check(files, model, columns)[1] for model in models}
    repeated = {model: again(answers[model], model, columns) for model in models}
    heads = [f"{model}, {column}" for model in models for column in columns]
    print("| file | planted |", " | ".join(heads), "|")
    print("| --- | --- |", " | ".join("---" for _ in heads), "|")
    wrong = []
    for path in files:
        cells = []
        for model in models:
            for column in columns:
                answer = answers[model][str(path), column]
                right, said = judged(path, answer)
                applied = repeated[model].get((str(path), column))
                if applied is not None:
                    right, said = right and applied in SAME, f"{said}; applied: {applied}"
                cells.append(f"{'' if right else '**'}{said}{'' if right else '**'}")
                if not right:
                    wrong.append(f"{path.name} on {model}, {column}: {answer['sentence']}")
        kind = planted(path)
        name = "/".join(path.parts[-2:])
        print(
            f"| {name} | {f'{kind[0]}, line {kind[1]}' if kind else ''} |", " | ".join(cells), "|"
        )
    every = len(files) * len(heads)
    print(f"\n{every - len(wrong)} of {every} as they should be: {where()}.")
    for one in wrong:
        print(one, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
