"""In which order the loop begins the jobs that wait."""

from __future__ import annotations

import dataclasses

from conformance.runner.scheduling import Launch
from conformance.runner.scheduling.group import GroupRun
from conformance.runner.scheduling.loop import Runner
from conformance.runner.scheduling.planned import Planned
from tests.faulty_run import job


class Recording:
    """Workers that begin and never load."""

    peak_mib = 0.0

    def __init__(self, room: int) -> None:
        self.room = room
        self.begun: list[str] = []

    def has_room_for(self, planned: Planned) -> bool:
        return len(self.begun) < self.room

    def reuse(self, group: GroupRun, cache: object) -> None:
        """Nothing was finished before."""

    def prepare(self, waiting: object) -> None:
        """Nothing is imported."""

    def begin(self, group: GroupRun) -> None:
        self.begun.append(group.planned.id)

    def work(self) -> list[GroupRun]:
        raise KeyboardInterrupt

    def keep_only(self, wanted: object) -> None:
        """Nothing is kept."""

    def end(self) -> set[int]:
        return set()


def begun(tmp_path, room):
    """The jobs that began: of three engines and a reference, where `room` have a worker."""

    def planned(model, column, preload):
        folder = tmp_path / model / column
        made = dataclasses.replace(job("healthy", tmp_path), folder=folder)
        return Planned(f"{model}:{column}", lambda: made, Launch(preload=preload), folder=folder)

    waiting = [
        planned("first", "vllm-pp1", "vllm"),
        planned("first", "vllm-pp2", "vllm"),
        planned("first", "reference", "hf"),
        planned("second", "vllm-pp1", "vllm"),
    ]
    workers = Recording(room)
    Runner(waiting, workers=workers, cache=None, on_event=lambda _: None).run()
    return workers.begun


def test_an_engine_begins_last_while_a_similar_one_of_its_model_loads(tmp_path):
    assert begun(tmp_path, 3) == ["first:vllm-pp1", "first:reference", "second:vllm-pp1"]


def test_it_begins_all_the_same_where_nothing_else_is_ready(tmp_path):
    assert begun(tmp_path, 4)[-1] == "first:vllm-pp2"
