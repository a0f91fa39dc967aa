"""Which cells are already done, in this run's folder or in the cache."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.runner.scheduling.planned import Launch
from conformance.runner.store import GroupFolder, ObservationCache
from conformance.runner.store.keys import (
    are_unchanged,
    ask_versions,
    deciding_variables,
    files_installed_in,
    observation_key,
    scenario_digest,
    sources_digest,
)
from conformance.spec.checkpoints import cache_folder
from conformance.spec.records import Group, Job, Outcome, Status

#: Messages of systems and engines when a machine has too little space, which may be temporary.
NO_ROOM = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Insufficient space in /dev/shm"
    r"|Cannot allocate memory"
)


def keys_of(job: Job, launch: Launch, device: str) -> dict[str, str]:
    """Return each case's content key. Raises ConformanceError if the interpreter is unusable."""
    variables = deciding_variables() | dict(launch.env)
    surroundings = {
        "python": ask_versions(launch.python).get("python", ""),
        "installed": files_installed_in(launch.python, cache_folder() / "installed"),
        **{f"env {name}": value for name, value in variables.items()},
    }
    digests = {
        name: scenario_digest(job.scenarios, name) for name in {c.scenario for c in job.cases}
    }
    around: dict[str, Any] = {
        "surroundings": surroundings,
        "device": device,
        "sources": sources_digest(),
    }
    return {
        case.key: observation_key(job, case, scenario=digests[case.scenario], **around)
        for case in job.cases
    }


def most_finished(
    folder: GroupFolder, keys: Mapping[str, Mapping[str, str]], cache: ObservationCache | None
) -> str:
    """Return the device on which most cells were observed, here or in the cache. `keys` has the
    cells' keys on each device. One group never mixes devices.
    """
    if len(keys) == 1:
        return next(iter(keys))
    old = folder.keys()

    def finished(device: str) -> int:
        return sum(
            old.get(case) == content or (cache is not None and cache.entry(content).is_dir())
            for case, content in keys[device].items()
        )

    return max(keys, key=finished)


def finished_before(
    folder: GroupFolder,
    keys: Mapping[str, str],
    *,
    ours: bool = False,
    folders: Sequence[Path] = (),
) -> dict[str, Outcome]:
    """Return the cells of an interrupted run that are still valid.

    Drops cells that must be observed again: damaged ones, ones with another key or changed input
    files (`folders` are the scenarios'), and ones that failed for the harness's reasons, by a kill
    from outside or for lack of space. In a job that is `ours`, any failure but a refusal counts.
    """
    old = folder.keys()
    outcomes: dict[str, Outcome] = {}
    for key, content in keys.items():
        outcome = None
        with suppress(ConformanceError):
            outcome = folder.outcome(key)
        if (
            outcome is None
            or outcome.harness
            or outcome.outside
            or NO_ROOM.search(outcome.reason)
            or (ours and outcome.status not in {Status.OK, Status.UNSUPPORTED})
            or old.get(key) != content
            or not are_unchanged(outcome.opened, folders)
        ):
            folder.drop_cell(key)
        else:
            outcomes[key] = outcome
    return outcomes


def take(
    folder: GroupFolder,
    keys: Mapping[str, str],
    cache: ObservationCache | None,
    *,
    ours: bool = False,
    folders: Sequence[Path] = (),
) -> tuple[dict[str, Outcome], Group | None]:
    """Return the cells that need not be run, after bringing them into the run's folder.

    Also return the group record that came with a cell from the cache.
    """
    outcomes = finished_before(folder, keys, ours=ours, folders=folders)
    group: Group | None = None
    for key, content in keys.items():
        if cache is None or key in outcomes:
            continue
        made_by = cache.fetch(content, folder, key, folders)
        outcome = folder.outcome(key) if made_by is not None else None
        if outcome is not None:
            outcomes[key], group = outcome, made_by
    return outcomes, group
