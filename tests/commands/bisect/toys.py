"""A git repository of a tiny package with planted faults, and looking at one of its revisions."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

from conformance.commands.bisect import trial
from conformance.commands.bisect.candidates import list_commits
from conformance.commands.bisect.signature import Signature
from conformance.commands.bisect.state import (
    BisectionRequest,
    BisectionState,
    CandidateTrial,
    create,
)
from conformance.spec.records import Verdict

#: Builds a wheel by itself: no build backend has to be fetched.
BACKEND = """\
import zipfile
from pathlib import Path

NAME = "toy-{version}-py3-none-any.whl"
INFO = "toy-{version}.dist-info"
TEXTS = {{
    "METADATA": ("Metadata-Version: 2.1", "Name: toy", "Version: {version}"),
    "WHEEL": ("Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"),
}}


def build_wheel(folder, config_settings=None, metadata_directory=None):
    {trouble}
    with zipfile.ZipFile(Path(folder, NAME), "w") as wheel:
        wheel.write("toy.py")
        for name, lines in TEXTS.items():
            wheel.writestr(f"{{INFO}}/{{name}}", "\\n".join(lines) + "\\n")
        wheel.writestr(f"{{INFO}}/RECORD", "")
    return NAME
"""
PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "toy"
version = "{version}"
"""
STEADY = "def value():\n    return {value!r}\n"
#: Wrong when first asked, right ever after.
FLAKY = """\
import os
from pathlib import Path


def value():
    noted = Path(os.environ["TOY_NOTES"])
    seen = noted.exists()
    noted.touch()
    return {value!r} if seen else {lie!r}
"""


def git(repo, *arguments):
    done = subprocess.run(
        ["git", "-C", repo, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **{
                f"GIT_{who}_{what}": "toy@example.org"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
            "GIT_CONFIG_GLOBAL": os.devnull,
        },
    )
    return done.stdout.strip()


def repository(repo, count, fault, *, broken=(), flaky=None):
    """So many commits; from `fault` on the value is wrong, `broken` cannot be installed."""
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch=main")
    commits = []
    for index in range(count):
        version = "1.0"  # the same for all: only the commit tells them apart
        value = "wrong" if index >= fault else "right"
        lie = "right" if index >= fault else "wrong"
        text = FLAKY.format(value=value, lie=lie) if index == flaky else STEADY.format(value=value)
        trouble = "raise SystemExit('no compiler')" if index in broken else "pass"
        (repo / "toy.py").write_text(f"# {index}\n{text}")
        (repo / "backend.py").write_text(BACKEND.format(version=version, trouble=trouble))
        (repo / "pyproject.toml").write_text(PROJECT.format(version=version))
        git(repo, "add", ".")
        git(repo, "commit", "--quiet", "-m", f"change {index}")
        commits.append(git(repo, "rev-parse", "HEAD"))
    return commits


def bisect_of(reports, repo, good, bad, now, **asked):
    """The folder of a bisect over the repository's commits."""
    row = list_commits("toy", repo, good, bad, ())
    state = BisectionState(
        BisectionRequest("toy", good, bad, "toy", backwards=row.backwards, **asked), row.candidates
    )
    return create(reports, state, now)


def look(environment, again):
    """What the toy that is installed there says."""
    done = subprocess.run(
        [environment.python, "-c", "import toy; print(toy.value())"],
        check=True,
        capture_output=True,
        text=True,
    )
    right = done.stdout.strip() == "right"
    return CandidateTrial("", (Signature("toy", Verdict.MATCH if right else Verdict.WRONG),))


def trier(cache: Path):
    """Builds the environment of a revision, and looks."""
    return partial(trial.attempt, observe=look, cache=cache, needs=())
