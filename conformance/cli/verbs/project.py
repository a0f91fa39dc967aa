"""`conformance init` and `validate`: create and check a project's files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from conformance.cli.options import (
    Environments,
    Expectations,
    Folder,
    Manifest,
    note,
    say,
)
from conformance.errors import ConformanceError, ExitCode
from conformance.inputs import project, text_file
from conformance.inputs.project import TABLE


def validate(
    *,
    manifest: Manifest,
    scenarios: Folder,
    expectations: Expectations,
    environments: Environments,
) -> None:
    """Check models.yaml, the scenarios, known.yaml and environments.yaml without starting anything.

    Exits 0 when all files are valid, 2 otherwise, and prints every mistake with its file, line and
    remedy. Needs no engine. In a GitHub workflow the mistakes also become annotations.
    """
    from conformance.planning.validation import validate as read

    places = replace(project.here(), models=manifest, scenarios=tuple(scenarios))
    validated = read(replace(places, known=expectations, environments=environments))
    for line in validated.lines:
        say(line)
    for error in validated.errors:
        note(f"error: {error}")
        if os.environ.get("GITHUB_ACTIONS"):
            typer.echo(_annotation(error))
    raise typer.Exit(ExitCode.BAD_INPUT if validated.errors else ExitCode.OK)


def _annotation(error: ConformanceError) -> str:
    """Return a command of GitHub's runner, with its special characters escaped."""
    words = f"{error.message} → {error.remedy}" if error.remedy else error.message
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        words = words.replace(sign, code)
    path = os.path.relpath(error.path) if error.path else ""
    line = f",line={error.line}" if error.line else ""
    return f"::error file={path}{line}::{words}"


def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder.")] = Path(),
) -> None:
    """Write a first models.yaml, known.yaml and scenario, and name them in pyproject.toml.

    No existing content is changed: the table [tool.conformance] is appended to an existing
    pyproject.toml, and any other file that exists is refused.
    """
    for path in start(folder):
        typer.echo(path)
    note("next: conformance validate, then conformance run -m my-model")


FOLDER = "conformance_scenarios"

_TABLE = f"""\
[{TABLE}]
models = "models.yaml"
scenarios = ["built-in", "{FOLDER}"]
known = "known.yaml"
"""

_MODELS = """\
# The models of this project, beside the built-in ones. `conformance list` shows the cells that a
# run would have, `conformance validate` reads this file.
extends: built-in

models:
  my-model: # a small model with random weights, made on the spot
    architecture: llama
    tiny: { intermediate_size: 704, num_key_value_heads: 2 }
  # a real one: sources are tried in order
  # my-real-model:
  #   architecture: qwen2
  #   sources:
  #     - path: /data/my-real-model
  #     - hub: me/my-real-model
  #       revision: a commit
"""

_KNOWN = """\
# What is expected not to pass: `conformance known update` proposes entries. What is known of the
# built-in models and scenarios holds besides.
extends: built-in

known: []
"""

_SCENARIO = '''\
"""Halve: half of the residual stream after one layer, for every token.

Read back at the layer, at every later one and in the logits.
"""

from conformance import scenario


def block(lm, case):
    """What each prompt's block does. In the clean run, which the write is compared with,
    the case is not active.
    """
    at = case.layers["at"]
    if case.active:
        lm.layers[at].stream = lm.layers[at].stream * 0.5
    after = range(at, len(lm.layers))
    return {"stream": {index: lm.layers[index].stream for index in after}, "logits": lm.logits}


@scenario(layers={"at": ("first", "middle")}, twin=True)
def halve(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm, case).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm, case).save()
    return [first, second]


@halve.reference
def _(model, case):
    at = case.layers["at"]
    edits = {at: lambda stream, earlier: stream * 0.5} if case.active else {}
    runs = [model.run(prompt, edits=edits) for prompt in case.prompts]
    return [{"stream": run.after(at), "logits": run.logits} for run in runs]
'''


def start(folder: Path) -> tuple[Path, ...]:
    """Write the files and return their paths. Raises ConformanceError, before writing anything, if
    one of them exists.
    """
    from conformance.store.files import write_text

    settings = folder / "pyproject.toml"
    before = text_file.read(settings) if settings.is_file() else ""
    texts = {
        folder / "models.yaml": _MODELS,
        folder / "known.yaml": _KNOWN,
        folder / FOLDER / "__init__.py": '"""Scenarios of this project."""\n',
        folder / FOLDER / "halve.py": _SCENARIO,
    }
    for path in texts:
        if path.exists():
            raise ConformanceError("is there already", path=path, remedy="name another folder")
    if f"[{TABLE}]" in before:
        raise ConformanceError(f"has [{TABLE}] already", path=settings, remedy="edit it by hand")
    for path, text in texts.items():
        write_text(path, text)
    write_text(settings, f"{before.rstrip()}\n\n{_TABLE}" if before else _TABLE)
    return (*texts, settings)
