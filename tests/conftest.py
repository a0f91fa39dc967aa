"""Settings of every test, and how tests are distributed over the workers of pytest-xdist."""

from __future__ import annotations

import os
import random
import signal
import sys
from fnmatch import fnmatchcase
from typing import Any

import psutil
import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

# Some tests interrupt a run of their own. What nohup, or a shell's background job, has ignored
# for pytest would stay ignored in it, rightly, and the test would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline: an example that took 200 ms on a busy machine says nothing about the code.
# `--hypothesis-profile nightly` searches ten times as many examples.
settings.register_profile("commit", deadline=None, max_examples=30)
settings.register_profile("nightly", deadline=None, max_examples=300)
settings.load_profile("commit")


#: Files that share a fixture of the session which starts engines, by that fixture.
SHARED = {
    "llama": (
        "end_to_end/test_run.py",
        "end_to_end/test_programs_run.py",
        "end_to_end/test_scenarios_page.py",
        "end_to_end/test_repro_script.py",
        "end_to_end/test_listening.py",
        "end_to_end/test_preload_engines.py",
    ),
    "broken": (
        "end_to_end/test_adapters_run.py",
        "end_to_end/test_broken_scenarios.py",
        "end_to_end/test_half_streams.py",
    ),
    "lab": ("engines/relay/*", "engines/vllm/test_client.py"),
}


class GroupScheduling(LoadScopeScheduling):
    """Run the tests of a file, and of files that share a fixture of the session, on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        groups = (
            fixture
            for fixture, patterns in SHARED.items()
            if any(fnmatchcase(file, f"tests/{pattern}") for pattern in patterns)
        )
        return next(groups, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each core; 5 GiB for each, as its tests start engines."""
    fitting = psutil.virtual_memory().total // (5 << 30)
    return max(1, min(len(os.sched_getaffinity(0)), fitting, 8))


#: Files without an engine that take longest.
LONG = ("tests/runner/scheduling/test_runner.py", "tests/engines/test_honoured_writes.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start engines first in a distributed run, then what takes long: else one worker is left with
    it at the end.
    """
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: (
                item.get_closest_marker("engine") is None,
                item.nodeid.partition("::")[0] not in LONG,
            )
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Give torch one thread in a worker: there is a worker for each core."""
    if hasattr(session.config, "workerinput") and (torch := sys.modules.get("torch")):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Seed what tests draw from: a result that depends on the tests before it is no result."""
    random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
