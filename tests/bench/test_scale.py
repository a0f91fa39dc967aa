"""What many machines take: the simulation of bench/scale.py."""

from __future__ import annotations

import pytest

from bench.scale import Task, makespan, tasks
from conformance.spec.records import Group


def test_what_waits_for_another_begins_after_it() -> None:
    assert makespan([Task("a", 3.0), Task("b", 2.0, needs=("a",))], 4, 1) == (5.0, 5 / 20)


def test_machines_share_what_is_independent() -> None:
    every = [Task(str(number), 1.0) for number in range(8)]
    assert [makespan(every, machines, 2)[0] for machines in (1, 2, 4)] == [4.0, 2.0, 1.0]


def test_what_is_wide_waits_for_a_machine_with_room() -> None:
    every = [Task("a", 3.0), Task("b", 3.0), Task("wide", 1.0, cpus=2)]
    assert makespan(every, 1, 2)[0] == 4.0
    with pytest.raises(ValueError, match="no machine has room for wide"):
        makespan(every, 8, 1)


def test_a_run_has_its_order_and_each_group_its_overhead() -> None:
    names = ("build", "reference", "hf", "vllm-pp2", "reference-forced")
    groups = {name: [Group("m", name, seconds=10.0)] for name in names}
    made = {
        task.name: task
        for task in tasks(groups, {"vllm-pp2": 2}, models=2, overhead=1.0, judge=5.0)
    }
    assert len(made) == 12
    assert made["1:build"].seconds == 10.0 and made["1:hf"].seconds == 11.0
    assert made["1:vllm-pp2"].cpus == 2 and made["1:hf"].needs == ("1:reference",)
    assert made["1:judged"].needs == ("1:reference-forced",) and made["1:judged"].place == "judge"
    assert makespan(list(made.values()), 100, 2)[0] == 10 + 10 + 11 + 11 + 11 + 5
