"""Choose the interpreter for commands that judge or observe: this one, or the tool's own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from conformance.cli.options import err
from conformance.errors import ConformanceError, ExitCode
from conformance.inputs import project

if TYPE_CHECKING:
    from conformance.environments.spec import InstalledEnvironment

#: The variable that overrides `engine` of [tool.conformance].
VARIABLE = "CONFORMANCE_ENGINE"


def chosen() -> str:
    """Return `here`, `cpu`, `gpu`, requirements, or "" to choose by the machine."""
    return os.environ.get(VARIABLE) or project.here().engine


def needed() -> None:
    """Return if this interpreter has torch, transformers and nnsight. Otherwise run the same
    command in the engine environment, which is built if necessary.

    Raises ConformanceError if it cannot be built.
    """
    from conformance.environments import importable, own

    wanted = chosen()
    if wanted == own.HERE or (not wanted and own.is_here()):
        return
    environment = had(wanted)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [str(environment.python), "-P", "-m", "conformance", *sys.argv[1:]]
    paths = [str(importable()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {**os.environ, VARIABLE: own.HERE, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(arguments[0], arguments, variables)  # noqa: S606 - a list, and no shell


def had(wanted: str) -> InstalledEnvironment:
    """Return the engine environment. If it must be built, which takes minutes, print a line."""
    from conformance.checkpoints import cache_folder
    from conformance.environments import Untestable, own

    cache = cache_folder()
    environment = own.present(cache, wanted)
    if environment is not None:
        return environment
    spec = own.wanted(wanted)
    err.print(f"first use: building the engine environment ({spec})", markup=False)
    with err.status("engine environment") as status:

        def say(line: str) -> None:
            if line.strip():
                status.update(f"engine environment: {line.strip()[:100]}")

        try:
            made = own.had(cache, wanted, on_line=say)
        except Untestable as cannot:
            sys.stderr.write(f"{cannot.log}\n" if cannot.log else "")
            raise ConformanceError(
                str(cannot),
                remedy=f"an index of your own: UV_DEFAULT_INDEX; wheels in a folder: "
                f"PIP_FIND_LINKS; an interpreter that has torch, transformers, nnsight and "
                f"vLLM: install this tool there, or {VARIABLE}=here",
                code=ExitCode.HARNESS,
            ) from None
    err.print(f"engine environment: built in {made.seconds:.0f} s", highlight=False)
    return made
