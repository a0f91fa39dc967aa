"""What a run costs as a model grows: seconds and bytes, and a straight line through each.

    python bench/cost_curves.py [--axis layers ...] [--points FILE]

Each point is a tiny Llama that differs from the base model in one thing: layers, hidden width,
vocabulary, tokens of the prompt; or so many models like it. A run of it reads every layer, steers
in the middle and generates four tokens, on every column given, in both precisions, one process at
a time and nothing in the cache of observations. Seconds are the workers' own, by what they ran,
and the rest of the whole (planning, zygotes' imports, judging, the page); bytes are those of the
run's folder and of its cache. Lines are least squares, in the square of the width and in the value
itself of all others; the furthest point from each is printed beside it, as a share of that point.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness import seconds_by_part
from conformance.runner.store import open_run

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("hf", "vllm-pp1", "vllm-pp2")

BASE: Mapping[str, int] = {"layers": 4, "width": 256, "vocabulary": 512, "tokens": 16, "models": 1}
AXES: Mapping[str, Sequence[int]] = {
    "layers": (4, 8, 16, 32),
    "width": (256, 512, 1024, 2048),
    "vocabulary": (512, 8192, 32768, 131072),
    "tokens": (16, 128, 512, 1024),
    "models": (1, 2, 4),
}

#: A layer's weights grow with the square of its width; a line is laid through that power.
POWERS: Mapping[str, int] = {"width": 2}

#: A prompt of so many tokens is so many of these: each is a word of its own to the tokenizer.
_WORD = "a "
_HEAD = """\"\"\"What costs are measured on.\"\"\"

from conformance import scenario

PROMPT = {prompt!r}
SETTINGS = {{"length": {length}}}


"""
_SCENARIOS = {
    "reads": """@scenario(prompts=(PROMPT,), settings=lambda _: SETTINGS)
def reads(lm, case):
    with lm.trace(case.prompts[0]):
        streams = [layer.stream for layer in lm.layers].save()
        logits = lm.logits.save()
    return [{"stream": dict(enumerate(streams)), "logits": logits}]


@reads.reference
def _(model, case):
    run = model.run(case.prompts[0])
    return [{"stream": run.stream, "logits": run.logits}]
""",
    "steers": """@scenario(layers={"at": "middle"}, prompts=(PROMPT,), settings=lambda _: SETTINGS)
def steers(lm, case):
    at = case.layers["at"]
    with lm.trace(case.prompts[0]):
        stream = lm.layers[at].stream
        stream[:] = stream + 0.5 * lm.direction(at)
        lm.layers[at].stream = stream
        last = lm.layers[-1].stream.save()
        logits = lm.logits.save()
    return [{"stream": {len(lm.layers) - 1: last}, "logits": logits}]


@steers.reference
def _(model, case):
    at = case.layers["at"]
    vector = 0.5 * model.direction(at)
    run = model.run(case.prompts[0], edits={at: lambda stream, earlier: stream + vector})
    last = max(run.stream[0])
    return [{"stream": {last: run.stream[0][last]}, "logits": run.logits}]
""",
    "generates": """@scenario(prompts=(PROMPT,), settings=lambda _: SETTINGS, steps=4)
def generates(lm, case):
    with lm.trace(case.prompts[0], steps=case.steps) as tracer:
        logits, tokens = list().save(), list().save()
        for _ in tracer.iter[: case.steps]:
            logits.append(lm.logits)
            tokens.append(lm.token)
    return [{"logits": logits, "tokens": tokens}]


@generates.reference
def _(model, case):
    run = model.run(case.prompts[0], steps=case.steps)
    return [{"logits": run.logits, "tokens": run.tokens}]
""",
}


@dataclass(frozen=True)
class Point:
    """One run: what was varied and how far, its seconds by part, its bytes."""

    axis: str
    value: int
    seconds: Mapping[str, float]
    run_bytes: int
    cache_bytes: int


@dataclass(frozen=True)
class Line:
    """`begin` + `slope` × value; `furthest` is the largest share that a point is off by."""

    begin: float
    slope: float
    furthest: float

    def at(self, value: float) -> float:
        return self.begin + self.slope * value


def fitted(values: Sequence[float], costs: Sequence[float]) -> Line:
    """The straight line of least squares. Raises ValueError for fewer than three points."""
    if len(values) < 3:
        raise ValueError(f"a line wants three points, not {len(values)}")
    slope, begin = np.polyfit(values, costs, 1)
    off = [abs(begin + slope * x - y) / y for x, y in zip(values, costs, strict=True) if y]
    return Line(float(begin), float(slope), max(off, default=math.nan))


def manifest(value: Mapping[str, int]) -> dict[str, Any]:
    """models.yaml of one point: so many Llamas, each from a seed of its own."""
    known = yaml.safe_load((ROOT / "models.yaml").read_text(encoding="utf-8"))
    tiny = {
        "num_hidden_layers": value["layers"],
        "hidden_size": value["width"],
        "num_attention_heads": value["width"] // 64,
        "num_key_value_heads": value["width"] // 128,
        "intermediate_size": 11 * value["width"] // 4,
        "vocab_size": value["vocabulary"],
        "max_position_embeddings": 2048,
    }
    parts = ["embedding", "attention", "mlp", "norm", "head", "long"]
    models = {
        f"point-{number}": {
            "architecture": "llama",
            "seed": 11 + number,
            "parts": parts,
            "tiny": tiny,
        }
        for number in range(value["models"])
    }
    return {key: known[key] for key in ("defaults", "backends")} | {"models": models}


def measured(axis: str, value: int, backends: Sequence[str], folder: Path) -> Point:
    """Run one point, its checkpoints made before. Raises SystemExit when a cell does not pass."""
    size = {**BASE, axis: value}
    folder.mkdir(parents=True)
    (folder / "models.yaml").write_text(yaml.safe_dump(manifest(size)), encoding="utf-8")
    (folder / "costs").mkdir()
    prompt = _WORD * (size["tokens"] - 1)
    head = _HEAD.format(prompt=prompt.strip(), length=2048 if size["tokens"] > 128 else 256)
    for name, text in _SCENARIOS.items():
        (folder / "costs" / f"{name}.py").write_text(head + text, encoding="utf-8")
    cache, reports = folder / "cache", folder / "reports"
    environment = {**os.environ, "CONFORMANCE_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "conformance", "run", "-j", "1", "--timeout", "600"]
    command += ["--models", str(folder / "models.yaml"), "--scenarios", str(folder / "costs")]
    command += ["--reports", str(reports), *(word for name in backends for word in ("-b", name))]

    def run() -> None:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            words = (done.stdout + done.stderr)[-3000:]
            raise SystemExit(f"{axis} {value}: ended with {done.returncode}\n{words}")

    run()  # makes the checkpoints, which are made once in a machine's life
    shutil.rmtree(reports)
    shutil.rmtree(cache / "observations", ignore_errors=True)
    begun = time.perf_counter()
    run()
    whole = time.perf_counter() - begun
    ran = open_run(reports)
    parts: defaultdict[str, float] = defaultdict(float)
    for part, seconds in seconds_by_part(ran).items():
        parts[part.partition("+")[0]] += seconds  # a column's in both precisions
    tokens = {len(ids) for cell in ran.results().cells for ids in cell.prompt_ids}
    at = max(tokens) if axis == "tokens" else value
    point = Point(
        axis,
        at,
        {**parts, "the rest": whole - sum(parts.values())},
        _bytes(ran.path),
        _bytes(cache) - _bytes(cache / "checkpoints"),
    )
    shutil.rmtree(folder)
    return point


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def costs(point: Point) -> dict[str, float]:
    """What a line is laid through, by name."""
    whole = {"whole, s": sum(point.seconds.values())}
    parts = {f"{part}, s": seconds for part, seconds in point.seconds.items()}
    size = {"run, MiB": point.run_bytes / 2**20, "cache, MiB": point.cache_bytes / 2**20}
    return {**whole, **parts, **size}


def table(points: Sequence[Point]) -> str:
    """One Markdown table of an axis: each cost at each value, and its line."""
    axis, values = points[0].axis, [point.value for point in points]
    power = POWERS.get(axis, 1)
    grows = axis + ("²" if power == 2 else "")
    head = " | ".join(f"{value:,}" for value in values)
    lines = [f"| {axis} | {head} | line | furthest |"]
    lines.append("| --- " * (len(values) + 3) + "|")
    for name in costs(points[0]):
        found = [costs(point)[name] for point in points]
        line = fitted([value**power for value in values], found)
        cells = " | ".join(f"{cost:.2f}" for cost in found)
        slope = f"{line.begin:.2f} + {line.slope:.3g} × {grows}"
        lines.append(f"| {name} | {cells} | {slope} | {line.furthest:.0%} |")
    return "\n".join(lines)


def main(
    axis: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    backend: Annotated[list[str] | None, typer.Option("--backend", "-b")] = None,
    points: Annotated[Path | None, typer.Option(help="Keep points here, and go on.")] = None,
) -> None:
    """Measure each axis's points and print a table and a line for every cost."""
    kept: dict[str, Any] = json.loads(points.read_text()) if points and points.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        for each in axis or AXES:
            for value in AXES[each]:
                size = {**BASE, each: value}
                key = ", ".join(f"{one} {number}" for one, number in size.items())
                if key not in kept:
                    at = Path(name) / f"{each}-{value}"
                    kept[key] = asdict(measured(each, value, backend or COLUMNS, at))
                    sys.stderr.write(f"{key}: {sum(kept[key]['seconds'].values()):.1f} s\n")
                if points:
                    points.write_text(json.dumps(kept, indent=1))
            of = [{**BASE, each: value} for value in AXES[each]]
            keys = [", ".join(f"{one} {number}" for one, number in size.items()) for size in of]
            # The base is a point of every axis, measured once.
            found = [Point(**kept[key]) for key in keys]
            at_base = {"tokens": found[0].value}.get(each, BASE[each])
            found[0] = Point(**{**asdict(found[0]), "axis": each, "value": at_base})
            print(table([Point(**{**asdict(one), "axis": each}) for one in found]) + "\n")


if __name__ == "__main__":
    typer.run(main)
