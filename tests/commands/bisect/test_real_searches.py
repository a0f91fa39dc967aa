"""A real search among the commits of a package. Each candidate has a real environment."""

import random
from datetime import UTC, datetime

import pytest

from conformance.commands.bisect.halving import BisectionEnding
from conformance.commands.bisect.next_step import flaky, run_trials
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
