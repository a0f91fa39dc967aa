"""Engine settings of scenarios: cells with equal settings share an engine load.

Each engine translates the words below, or ignores those for which it has nothing. The cells stay
cells of their column: their folders are links into that of the other load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.errors import ConformanceError
from conformance.runner.store import RunFolder, link
from conformance.spec.records import Cell, Column, Job
from conformance.spec.scenario import Scenario

#: Setting → its meaning.
WORDS = {
    "prefix_cache": "True: tokens known from an earlier request are not computed again",
    "step_tokens": "so many tokens a step, and longer prompts are split",
    "blocks": "so many blocks of memory for all requests together",
    "block_tokens": "tokens in one such block",
    "length": "room for so many tokens of prompt and generation",
    "logprobs": "processed: log-probabilities after temperature, not of the logits as they were",
    "extraction": "True: the engine hands out the states after its layers by itself",
}

#: Engines without such settings: one load is enough.
WITHOUT = frozenset({"hf"})

#: Separates a column's name from its settings in a folder's name. No environment's name has it.
MARK = "~"


@dataclass(frozen=True)
class SettingsGroup:
    """Cells of one column that require the same engine settings. The `main` group of a column is
    the one without settings, or the only one.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()
    main: bool = False

    def folder(self, own: str) -> str:
        """Return the name of the group's folder: the column's `own`, or another next to it."""
        if self.main:
            return own
        words = (f"{name}-{value}".lower() for name, value in sorted(self.settings.items()))
        return f"{own}{MARK}{MARK.join(words)}"


def split(
    column: Column, cells: Sequence[Cell], scenarios: Mapping[str, Scenario]
) -> tuple[SettingsGroup, ...]:
    """Split a column's cells into groups, the main one without settings first.

    Raises ConformanceError for an unknown setting.
    """
    if column.engine in WITHOUT:
        return (SettingsGroup(cells=tuple(cells), main=True),)
    settings_of = {
        (case.scenario, case.name): case.settings
        for name in dict.fromkeys(cell.scenario for cell in cells)
        for case in scenarios[name].expand(1)
    }
    by_settings: dict[tuple[tuple[str, Any], ...], list[Cell]] = {}
    for cell in cells:
        settings = settings_of.get((cell.scenario, cell.case), {})
        if unknown := set(settings) - set(WORDS):
            raise ConformanceError(
                f"scenario {cell.scenario!r} asks for {', '.join(sorted(unknown))} of the engine",
                path=scenarios[cell.scenario].path,
                remedy=f"use {', '.join(WORDS)}",
            )
        by_settings.setdefault(tuple(sorted(settings.items())), []).append(cell)
    groups = sorted(by_settings.items(), key=lambda item: bool(item[0]))
    return tuple(
        SettingsGroup(dict(key), tuple(members), main=index == 0)
        for index, (key, members) in enumerate(groups)
    )


def separate(run: RunFolder, job: Job, group: SettingsGroup, own_folder: str) -> Job:
    """Return the job in a separate folder, linked cell by cell from the column's folder.

    Runs of the engine without nnsight are linked too; their names contain the settings.
    """
    own = run.group_folder(job.model.id, own_folder)
    target = run.group_folder(job.model.id, group.folder(own_folder))
    (own.path / "cells").mkdir(parents=True, exist_ok=True)
    for case in job.cases:
        link(own.cell(case.key), target.cell(case.key))
    return replace(job, folder=target.path)
