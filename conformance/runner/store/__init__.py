"""Run folders and the cache of observations: storage, without interpretation."""

from conformance.runner.store.cache import ObservationCache
from conformance.runner.store.files import link
from conformance.runner.store.folder import (
    CHECK,
    GroupFolder,
    RunFolder,
    RunPlan,
    create_run,
    gathered_in,
    open_run,
    point_latest,
    read_plan,
    read_results,
)
from conformance.runner.store.keys import ask_versions, read_versions

__all__ = [
    "CHECK",
    "GroupFolder",
    "ObservationCache",
    "RunFolder",
    "RunPlan",
    "ask_versions",
    "create_run",
    "gathered_in",
    "link",
    "open_run",
    "point_latest",
    "read_plan",
    "read_results",
    "read_versions",
]
