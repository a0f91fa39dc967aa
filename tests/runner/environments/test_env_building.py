"""Environments built by the real uv, from wheels made here: no index is asked."""

import fcntl
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from wheelhouse import add_wheel, commit, source_tree

from conformance.errors import ConformanceError
from conformance.runner.environments import (
    Untestable,
    build,
    find_environments,
    parse,
    remove,
)
from conformance.runner.environments.building import STAMP
from conformance.runner.environments.resolving import resolve


def had(text, cache, **more):
    return build(parse(text), cache, needs=(), **more)


def asked(environment, code):
    command = [environment.python, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_holds_what_was_asked_for_and_is_kept(wheels, cache):
    first = had("tiny==1.0", cache)
    assert asked(first, "import tiny; print(tiny.VERSION)") == "1.0"
    assert first.versions == {"tiny": "1.0"}
    assert not first.reused
    again = had("tiny==1.0", cache)
    assert again.reused
    assert (again.python, again.versions) == (first.python, first.versions)
    other = had("tiny==2.0", cache)
    assert other.python != first.python
    assert asked(other, "import tiny; print(tiny.VERSION)") == "2.0"


def test_what_is_left_open_is_as_in_the_lock_file_unless_it_cannot_be(wheels, cache):
    named = resolve(parse("tiny"), cache, needs=())
    assert named.lines == ("tiny==2.0",)  # what is asked for is not held back by a pin
    add_wheel(wheels, "modest", "1.0", needs=["tiny"])
    kept_pin = resolve(parse("modest==1.0"), cache, needs=())
    assert kept_pin.lines == ("modest==1.0", "tiny==1.0")
    assert kept_pin.moved == {}
    moved = resolve(parse("needy==1.0"), cache, needs=())
    assert moved.lines == ("needy==1.0", "tiny==2.0")
    assert moved.moved == {"tiny": "1.0 → 2.0"}
    assert len({named.key, kept_pin.key, moved.key}) == 3


def test_exact_specifications_mean_the_same_when_the_index_has_grown(wheels, cache):
    add_wheel(wheels, "modest", "1.0", needs=["tiny>=1.5"])
    before = resolve(parse("modest==1.0"), cache, needs=())
    open_before = resolve(parse("modest"), cache, needs=())
    add_wheel(wheels, "tiny", "3.0")
    assert resolve(parse("modest==1.0"), cache, needs=()) == before
    assert resolve(parse("modest"), cache, needs=()).lines == ("modest==1.0", "tiny==3.0")
    assert open_before.key == before.key  # the same versions are the same environment


@pytest.mark.parametrize(
    ("stage", "text", "said"),
    [
        ("resolve", "tiny==9.9", "tiny==9.9"),
        ("resolve", "tiny==1.0 needy==1.0", "needy"),
        ("install", "hollow==1.0", "hollow"),
        ("start", "nnsight==9.9", "RuntimeError: no greenlets today"),
    ],
)
def test_an_environment_that_cannot_be_had_says_why_and_is_not_there(
    wheels, cache, stage, text, said
):
    add_wheel(wheels, "hollow", "1.0", whole=False)
    add_wheel(wheels, "nnsight", "9.9", code="raise RuntimeError('no greenlets today')\n")
    for _ in range(2):
        with pytest.raises(Untestable) as caught:
            had(text, cache)
        assert caught.value.stage == stage
        assert said in caught.value.reason
        assert said in str(caught.value)
    assert all(one.environment is None for one in find_environments(cache))


@pytest.mark.parametrize("asks", [{"needs": ["absent==1.0"]}, {"python": ">=3.98"}])
def test_a_package_that_asks_for_what_cannot_be_had_is_installed_regardless(wheels, cache, asks):
    add_wheel(wheels, "proud", "1.0", code="import tiny\n", **asks)
    spec = parse("proud==1.0 tiny==1.0")
    with pytest.raises(Untestable, match="proud"):
        build(spec, cache, needs=())
    made = build(replace(spec, regardless=("proud",)), cache, needs=())
    assert asked(made, "import proud; print(proud.tiny.VERSION)") == "1.0"
    assert made.versions == {"proud": "1.0", "tiny": "1.0"}
    assert build(replace(spec, regardless=("proud",)), cache, needs=()).reused


def test_a_source_tree_is_known_by_what_it_holds(wheels, cache, tmp_path):
    tree = source_tree(tmp_path / "checkout", "VERSION = 'first'\n")
    before = sorted(tree.iterdir())
    first = had(f"tiny @ {tree}", cache)
    assert sorted(tree.iterdir()) == before, "nothing is built in it"
    assert asked(first, "import tiny; print(tiny.VERSION)") == "first"
    (tree / "tiny.egg-info").mkdir()  # as an editable installation leaves it
    (tree / "tiny.egg-info" / "SOURCES.txt").write_text("tiny.py")
    assert had(f"tiny @ {tree}", cache).reused
    copy = source_tree(tmp_path / "elsewhere", "VERSION = 'first'\n")
    assert had(f"tiny @ {copy}", cache).reused
    source_tree(tree, "VERSION = 'other'\n")
    second = had(f"tiny @ {tree}", cache)
    assert not second.reused
    assert asked(second, "import tiny; print(tiny.VERSION)") == "other"


def test_revisions_of_a_repository_are_environments_of_their_own(wheels, cache, tmp_path):
    tree = tmp_path / "repository"

    def committed(code):
        head = commit(source_tree(tree, code))
        return f"tiny @ git+{tree.as_uri()}@{head}"

    first, second = committed("VERSION = 'first'\n"), committed("VERSION = 'second'\n")
    environments = [had(text, cache) for text in (first, second)]
    said = [asked(one, "import tiny; print(tiny.VERSION)") for one in environments]
    assert said == ["first", "second"]
    assert had(first, cache).reused


_BUILDER = """
import json, os, signal, sys
from pathlib import Path
from conformance.runner.environments import build, parse, resolving

resolving._LOCK = Path(sys.argv[1])

def die_at(line):
    if line.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

build(parse("tiny==1.0"), Path(sys.argv[2]), needs=(), on_line=die_at)
"""


@pytest.mark.parametrize("moment", ["building", "starting"])
def test_what_a_killed_build_leaves_is_never_used(wheels, cache, tmp_path, moment):
    command = [sys.executable, "-c", _BUILDER, tmp_path / "lock.txt", cache, moment]
    killed = subprocess.run(command, check=False)
    assert killed.returncode == -9
    folder = cache / "environments" / resolve(parse("tiny==1.0"), cache, needs=()).key
    assert not (folder / STAMP).exists()
    folder.mkdir(exist_ok=True)
    (folder / "half").touch()
    made = had("tiny==1.0", cache)
    assert not made.reused
    assert made.python.is_relative_to(folder)
    assert not (folder / "half").exists()
    assert asked(made, "import tiny; print(tiny.VERSION)") == "1.0"


_PARENT = """
import os, sys
from pathlib import Path
from conformance.runner.environments import uv
from conformance.runner.environments.building import locked

child = "import os, sys; open(sys.argv[1], 'w').write('here'); open(sys.argv[2]).read()"
with locked(Path(sys.argv[1])) as lock:
    uv.run([sys.executable, "-c", child, sys.argv[2], sys.argv[3]], print, holding=lock)
"""


def test_the_children_of_a_killed_builder_keep_the_others_out(tmp_path):
    """uv, left over, may still be writing into the folder that the next one would build in."""
    folder, here, go = tmp_path / "environments" / "abc", tmp_path / "here", tmp_path / "go"
    os.mkfifo(here)
    os.mkfifo(go)
    builder = subprocess.Popen([sys.executable, "-c", _PARENT, folder, here, go])
    assert here.read_text() == "here"
    builder.kill()
    builder.wait()
    with (folder.parent / "locks" / "abc").open("w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        go.write_text("")  # the child reads this, and ends
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_of_two_builds_at_once_one_is_done_and_both_have_it(wheels, cache):
    resolve(parse("tiny==1.0"), cache, needs=())
    lines, found = [], []
    together = threading.Barrier(2)

    def ask():
        together.wait()
        found.append(had("tiny==1.0", cache, on_line=lines.append))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.reused for one in found) == [False, True]
    assert found[0].python == found[1].python
    assert sum(line.startswith("building") for line in lines) == 1


def test_environments_are_listed_and_removed(wheels, cache):
    first, second = had("tiny==1.0", cache), had("tiny==2.0", cache)
    assert {one.id for one in find_environments(cache)} == {first.id, second.id}
    assert all(one.mib >= one.own_mib > 0 for one in find_environments(cache))
    remove(cache, first.id)
    assert [one.id for one in find_environments(cache)] == [second.id]
    assert not had("tiny==1.0", cache).reused
    for name in ("", "..", "locks", "resolved", "nothing"):
        with pytest.raises(ConformanceError, match="there is no environment"):
            remove(cache, name)


def _write(text):
    return lambda made: (made.python.parent.parent / STAMP).write_text(text)


@pytest.mark.parametrize(
    "damage", [lambda made: made.python.unlink(), *map(_write, ["", "{", '{"id": "x"}'])]
)
def test_an_environment_that_is_damaged_is_built_again(wheels, cache, damage):
    made = had("tiny==1.0", cache)
    damage(made)
    assert not had("tiny==1.0", cache).reused
    assert made.python.exists()
