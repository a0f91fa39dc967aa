"""Environments of a source tree: nothing is built in it, and its commits are told apart."""

import subprocess
from dataclasses import replace

from test_env_building import asked, had
from typer.testing import CliRunner
from wheelhouse import commit, source_tree

from conformance.cli import app
from conformance.commands.env import _made_from
from conformance.runner.environments import parse
from conformance.runner.environments.building import STAMP
from conformance.runner.environments.columns import short
from conformance.runner.environments.trees import commit as commit_of
from conformance.runner.environments.trees import copy_trees, digest
from conformance.runner.store.files import write_record


def test_two_commits_of_one_tree_are_two_environments_with_names_of_their_own(
    wheels, cache, tmp_path
):
    tree = source_tree(tmp_path / "checkout", "VERSION = 'first'\n")
    text = f"tiny @ {tree}"
    commits, made, names = [], [], []
    for code in ("VERSION = 'first'\n", "VERSION = 'second'\n"):
        source_tree(tree, code)
        commits.append(commit(tree))
        made.append(had(text, cache))
        names.append(short(parse(text)))
        assert had(text, cache).reused
    assert names == [f"tiny-{name[:7]}" for name in commits]
    assert [asked(one, "import tiny; print(tiny.VERSION)") for one in made] == ["first", "second"]
    for name, environment in zip(commits, made, strict=True):
        assert _made_from(environment) == f"tiny of {tree} at {name[:12]}"
    (tree / "tiny.py").write_text("VERSION = 'third'\n")
    changed = had(text, cache)
    assert short(parse(text)).startswith(f"{names[1]}.")
    assert _made_from(changed).endswith(", with changes")
    assert asked(changed, "import tiny; print(tiny.VERSION)") == "third"


def test_the_list_is_readable_at_80_columns_off_a_terminal(wheels, cache, tmp_path, monkeypatch):
    tree = source_tree(tmp_path / "a-checkout-with-a-name-of-some-length", "VERSION = 1\n")
    head = commit(tree)
    made = had(f"tiny @ {tree}", cache)
    monkeypatch.setenv("CONFORMANCE_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "80")
    requirements = tuple(f"package-{each}>=1.{each}" for each in range(12))
    write_record(
        cache / "environments" / made.id / STAMP,
        replace(made, requirements=(*requirements, *made.requirements)),
    )
    done = CliRunner().invoke(app, ["env", "list"])
    first, *rest = done.output.splitlines()
    assert first.startswith(f"{made.id}  built {made.built[:10]} {made.built[11:16]} UTC; ")
    assert "…" not in done.output
    assert max(len(line) for line in (first, *rest) if str(tree) not in line) <= 80
    assert rest[0] == "  package-0>=1.0 package-1>=1.1 package-2>=1.2 package-3>=1.3 package-4>=1.4"
    assert " ".join(" ".join(rest).split()).endswith(f"tiny of {tree} at {head[:12]}")


def test_what_git_ignores_does_not_count_and_a_new_module_does(tmp_path):
    tree = source_tree(tmp_path / "checkout", "VERSION = 1\n")
    (tree / ".gitignore").write_text("*.log\n")
    head = commit(tree)
    before = digest(tree)
    (tree / "note.log").write_text("x")
    (tree / "build").mkdir()
    (tree / "build" / "left.py").write_text("x")
    assert (digest(tree), commit_of(tree)) == (before, (head, False))
    (tree / "more.py").write_text("x")
    assert digest(tree) != before
    assert commit_of(tree) == (head, True)


def test_a_copy_has_the_files_as_they_are_and_says_its_version_as_the_tree_does(tmp_path):
    tree = source_tree(tmp_path / "checkout", "VERSION = 1\n")
    (tree / "gone.py").write_text("x")
    commit(tree)
    subprocess.run(["git", "-C", tree, "tag", "v5.0"], check=True)
    (tree / "gone.py").unlink()
    (tree / "tiny.py").write_text("VERSION = 2\n")
    (tree / "more.py").write_text("y")
    with copy_trees([tree]) as copied:
        [(own, address)] = copied.addresses
        there = address.removeprefix("file://")
        names = subprocess.check_output(["ls", there], text=True).split()
        assert set(names) == {"backend.py", "more.py", "pyproject.toml", "tiny.py"}
        assert subprocess.check_output(["cat", f"{there}/tiny.py"], text=True) == "VERSION = 2\n"
        described = ["git", "-C", there, "describe", "--tags"]
        assert subprocess.check_output(described, text=True).strip() == "v5.0"
        assert copied.back(copied.into(f"tiny @ {own}")) == f"tiny @ {own}"
