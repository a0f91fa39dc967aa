"""Real searches: commits of a package, and two lock files of tiny packages from the index. Each
candidate has a real environment.
"""

import random
import subprocess
from datetime import UTC, datetime

import pytest

from conformance.commands.bisect import candidates
from conformance.commands.bisect.next_step import flaky, run_trials
from conformance.commands.bisect.search import BisectionEnding
from conformance.commands.bisect.signature import Observed, Signature
from conformance.commands.bisect.state import BisectionRequest, BisectionState, create
from conformance.spec.records import Verdict
from tests.commands.bisect import toys

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def searched(tmp_path, monkeypatch, fault, **more):
    monkeypatch.setenv("TOY_NOTES", str(tmp_path / "notes"))
    repo = tmp_path / "repo"
    commits = toys.repository(repo, 40, fault, **more)
    folder = toys.bisect_of(tmp_path / "reports", repo, commits[0], "main", NOW)
    conclusion = run_trials(folder, toys.trier(tmp_path / "cache"))
    index = {commit: number for number, commit in enumerate(commits)}
    return conclusion, folder.read(), index


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
def test_planted_faults_are_found_among_real_commits(tmp_path, monkeypatch, seed):
    """The first candidate in the middle is flaky, so that the search is misled at first."""
    random_ = random.Random(seed)
    fault = random_.randrange(22, 38)
    broken = set(random_.sample([i for i in range(1, 39) if i != 20], 6))
    conclusion, state, index = searched(tmp_path, monkeypatch, fault, broken=broken, flaky=20)
    good = max(i for i in range(fault) if i not in broken)
    bad = min(i for i in range(fault, 40) if i not in broken)
    assert (index[conclusion.good], index[conclusion.bad]) == (good, bad)
    assert [index[key] for key in conclusion.between] == list(range(good + 1, bad))
    assert conclusion.ending is (
        BisectionEnding.RANGE if bad - good > 1 else BisectionEnding.CULPRIT
    )
    assert flaky(state, state.candidates[20].key)
    refused = [one.untestable for one in state.attempts if one.untestable]
    assert all("no compiler" in words for words in refused)
    assert len(state.attempts) <= 2 + 6 + len(refused) + 2 * 3 + 6
    # No commit was built twice, though some were tried several times.
    built = [one.candidate for one in state.attempts if one.built]
    assert len(built) == len(set(built))
    assert len({one.environment for one in state.attempts if one.environment}) == len(built)


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
    return Observed((Signature("toy", Verdict.WRONG if bad else Verdict.MATCH),))


@pytest.mark.slow
def test_two_changes_that_do_it_together_are_found_among_five(tmp_path):
    for name, text in (("good.txt", GOOD), ("bad.txt", BAD)):
        (tmp_path / name).write_text(text)
    row = candidates.list_changes(tmp_path / "good.txt", tmp_path / "bad.txt")
    state = BisectionState(
        BisectionRequest("lock", "good.txt", "bad.txt", ""), row.candidates, locks=row.locks
    )
    folder = create(tmp_path, state, NOW)
    conclusion = run_trials(folder, toys.trier(tmp_path / "cache", look))
    steps = candidates.changes(*row.locks)
    assert [steps[index].name for index in conclusion.cause] == ["idna", "six"]
    assert conclusion.ending is BisectionEnding.CULPRIT
    assert not any(one.untestable for one in folder.read().attempts)
