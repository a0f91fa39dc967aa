"""Build the environments that commands need, and print which."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from conformance.commands.shared.options import note, show_activity
from conformance.spec.checkpoints import cache_folder

if TYPE_CHECKING:
    from conformance.runner.environments import InstalledEnvironment, Spec, Untestable


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
