"""A real search between two lock files: tiny packages from the index, real environments."""

import subprocess
from datetime import UTC, datetime

import pytest

from conformance.bisect import loop, trial
from conformance.bisect.history import locks
from conformance.bisect.next_step import BisectionEnding
from conformance.bisect.signature import Signature
from conformance.bisect.state import BisectionRequest, BisectionState, create
from conformance.records import Verdict

GOOD = "iniconfig==1.1.1\nidna==3.6\npluggy==1.4.0\nsix==1.16.0\ntomli==2.0.1\n"
BAD = "iniconfig==2.0.0\nidna==3.7\npluggy==1.5.0\nsix==1.17.0\ntomli==2.0.2\n"

ASK = """
from importlib.metadata import version
print("bad" if (version("idna"), version("six")) == ("3.7", "1.17.0") else "good")
"""


def look(environment, again):
    """Bad only where both idna and six are the new ones."""
    done = subprocess.run(
        [environment.python, "-c", ASK], check=True, capture_output=True, text=True
    )
    bad = done.stdout.strip() == "bad"
    return trial.Observed((Signature("toy", Verdict.WRONG if bad else Verdict.MATCH),))


@pytest.mark.slow
def test_two_changes_that_do_it_together_are_found_among_five(tmp_path):
    for name, text in (("good.txt", GOOD), ("bad.txt", BAD)):
        (tmp_path / name).write_text(text)
    row = locks.row(tmp_path / "good.txt", tmp_path / "bad.txt")
    state = BisectionState(
        BisectionRequest("lock", "good.txt", "bad.txt", ""), row.candidates, locks=row.locks
    )
    folder = create(tmp_path, state, datetime(2026, 11, 21, tzinfo=UTC))
    conclusion = loop.carry_on(
        folder,
        lambda one, again: trial.attempt(
            one, look, again=again, cache=tmp_path / "cache", needs=()
        ),
    )
    steps = locks.changes(*row.locks)
    assert [steps[index].name for index in conclusion.cause] == ["idna", "six"]
    assert conclusion.ending is BisectionEnding.CULPRIT
    assert not any(one.untestable for one in folder.read().attempts)
