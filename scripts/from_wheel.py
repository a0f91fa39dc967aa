"""The tool as a stranger has it: from the wheel, in an empty folder, as another user.

    python scripts/from_wheel.py [--user nobody] [--python PYTHON] [--folder FOLDER] [STEP …]

The wheel is built from this tree and installed with pip into a fresh environment. Everything then
happens as `--user` (root may ask for one, by default `nobody`), with a HOME that is empty, with no
variable of this shell but those that say where packages are, in a folder with spaces in its path.
Each step prints how long it took, and those that install what it takes on disk. A step that does
not end as it should ends all with 1. Without STEP all of them are taken; those from `engine` on
make the engine environment (a minute or more, 3 GB). `--folder` keeps the place.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: What says where packages are and whom to trust; nothing else of this shell's goes along.
HANDED_OVER = ("PIP_", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "SSL_", "REQUESTS_CA")

TRACE = """\
def trace(lm):
    with lm.trace("The cat sat on the"):
        hidden = lm.layers[1].stream.save()
    return {"hidden": hidden}
"""


class WrongStep(Exception):
    """A step did not end as it should."""


@dataclass(frozen=True)
class Place:
    """Where it happens, and as whom: `user` is None for the one that runs this."""

    folder: Path
    python: str
    user: pwd.struct_passwd | None

    @property
    def home(self) -> Path:
        return self.folder / "a home"

    @property
    def empty(self) -> Path:
        return self.folder / "an empty folder"

    @property
    def venv(self) -> Path:
        return self.folder / "its environment"

    @property
    def tool(self) -> Path:
        return self.venv / "bin" / "conformance"

    @property
    def wheel(self) -> Path:
        return next(self.folder.glob("*.whl"))

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "conformance"

    def shell(self, *words: object, codes: tuple[int, ...] = (0,)) -> str:
        """What the command wrote. Raises WrongStep for another exit status than these."""
        handed = {name: text for name, text in os.environ.items() if name.startswith(HANDED_OVER)}
        environment = {
            **handed,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "USER": self.user.pw_name if self.user else "somebody",
        }
        done = subprocess.run(
            list(map(str, words)),
            cwd=self.empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            user=self.user.pw_uid if self.user else None,
            group=self.user.pw_gid if self.user else None,
            extra_groups=[] if self.user else None,
        )
        if done.returncode not in codes:
            said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
            raise WrongStep(f"{' '.join(map(str, words))}: exit {done.returncode}\n{said}")
        return done.stdout


def mib(folder: Path) -> float:
    """MiB of the files below it, a file of several links once."""
    sizes = {}
    for path, _, names in os.walk(folder):
        for name in names:
            state = Path(path, name).lstat()
            sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(sizes.values()) / 2**20


def expect(held: bool, words: str) -> None:
    if not held:
        raise WrongStep(words)


def install(place: Place) -> str:
    place.shell(place.python, "-m", "venv", place.venv)
    bare = mib(place.venv)
    place.shell(place.venv / "bin/python", "-m", "pip", "install", "--quiet", place.wheel)
    torch = list(place.venv.glob("lib/python3*/site-packages/torch"))
    expect(not torch, "the tool brought torch")
    version = place.shell(place.tool, "--version").splitlines()
    return f"{mib(place.venv):.0f} MiB, {bare:.0f} of them pip's environment; {version[0]}"


def uv_tool(place: Place) -> str:
    """`uv tool install` and `uvx`, with a uv of its own."""
    own = place.folder / "a uv"
    place.shell(place.python, "-m", "venv", own)
    place.shell(own / "bin/python", "-m", "pip", "install", "--quiet", "uv")
    uv, uvx = own / "bin/uv", own / "bin/uvx"
    place.shell(uv, "tool", "install", "--quiet", "--python", place.python, place.wheel)
    shim = place.home / ".local/bin/conformance"
    first = place.shell(shim, "--version").splitlines()[0]
    words = ("--quiet", "--python", place.python, "--from", place.wheel, "conformance")
    cells = place.shell(uvx, *words, "list", "-m", "llama", "-b", "hf").splitlines()
    expect(len(cells) > 50, "uvx: hardly any cells")
    size = mib(place.home / ".local/share/uv/tools")
    return f"{size:.0f} MiB; {first}; uvx lists {len(cells)} cells"


def init(place: Place) -> str:
    place.shell(place.tool, "init")
    return ", ".join(sorted(path.name for path in place.empty.iterdir()))


def listing(place: Place) -> str:
    own = place.shell(place.tool, "list", "-m", "my-model", "-k", "halve and hf").split()
    expect(own == ["halve[my-model-hf-first]", "halve[my-model-hf-middle]"], f"listed: {own}")
    return f"{len(place.shell(place.tool, 'list', '--tier', 'smoke').splitlines())} cells of smoke"


def validate(place: Place) -> str:
    return place.shell(place.tool, "validate").strip().splitlines()[-1]


def engine(place: Place) -> str:
    python = Path(place.shell(place.tool, "env", "engine").strip())
    said = place.shell(place.tool, "--version").splitlines()[1]
    return f"{mib(python.parent.parent):.0f} MiB; {said}"


def smoke(place: Place) -> str:
    return place.shell(place.tool, "run", "--tier", "smoke").splitlines()[-1]


def stored_gate(place: Place) -> str:
    """Of the run before; nothing starts."""
    return place.shell(place.tool, "gate", "latest").splitlines()[-1]


def own_gate(place: Place) -> str:
    """The model and the scenario that `init` wrote, run and gated."""
    return place.shell(place.tool, "gate", "-m", "my-model", "-k", "halve").splitlines()[-1]


CELL = "halve[my-model-vllm-pp2-middle]"


def show(place: Place) -> str:
    said = place.shell(place.tool, "show", CELL)
    expect("match" in said or "exact" in said, said)
    return said.splitlines()[0]


def report(place: Place) -> str:
    place.shell(place.tool, "report", "latest")
    page = place.empty / "reports" / "latest" / "index.html"
    return f"{page.stat().st_size / 2**20:.1f} MiB of page"


def repro(place: Place) -> str:
    place.shell(place.tool, "repro", CELL)
    script = next(place.empty.glob("repro_*.py"))
    python = place.shell(place.tool, "env", "engine").strip()
    return place.shell(python, script).splitlines()[-1]


def check(place: Place) -> str:
    trace = place.empty / "my_trace.py"
    if not trace.exists():
        trace.write_text(TRACE, encoding="utf-8")
    return place.shell(
        place.tool, "check", trace, "-m", "my-model", "-b", "vllm-pp1", "-b", "vllm-pp2"
    ).splitlines()[0]


def plug_in(place: Place) -> str:
    python = place.venv / "bin/python"
    place.shell(python, "-m", "pip", "install", "--quiet", "pytest")
    words = ["-q", "--conformance-backend", "vllm-pp2", "--conformance-model", "my-model"]
    words += ["--conformance-cells", "halve or ablation"]
    return place.shell(python, "-m", "pytest", *words).splitlines()[-1]


STEPS: dict[str, Callable[[Place], str]] = {
    "install": install,
    "uv-tool": uv_tool,
    "init": init,
    "list": listing,
    "validate": validate,
    "engine": engine,
    "smoke": smoke,
    "gate-latest": stored_gate,
    "gate": own_gate,
    "show": show,
    "report": report,
    "repro": repro,
    "check": check,
    "plug-in": plug_in,
}
#: These need no engine.
SMALL = ("install", "uv-tool", "init", "list", "validate")


def wheel_into(folder: Path) -> None:
    uv = shutil.which("uv") or ROOT / ".uv" / "bin" / "uv"
    subprocess.run(
        [uv, "build", "--wheel", "--quiet", "--out-dir", folder, ROOT],
        env={**os.environ, "UV_SYSTEM_CERTS": "true"},
        check=True,
    )


def prepared(folder: Path, python: str, user: str, wheel: Path | None) -> Place:
    """The place, with a wheel, an empty folder and a HOME that are the user's."""
    as_whom = pwd.getpwnam(user) if user and os.geteuid() == 0 else None
    place = Place(folder, python, as_whom)
    folder.chmod(0o755)
    for made in (place.home, place.empty):
        made.mkdir(exist_ok=True)
    if wheel:
        shutil.copy(wheel, folder)
    elif not list(folder.glob("*.whl")):
        wheel_into(folder)
    if as_whom:
        for each in (folder, *folder.iterdir()):
            os.chown(each, as_whom.pw_uid, as_whom.pw_gid)
    return place


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--user", default="nobody")
    parser.add_argument("--python", default=shutil.which("python3", path="/usr/local/bin:/usr/bin"))
    parser.add_argument("--folder", type=Path, help="default: a temporary one, removed at the end")
    parser.add_argument("--wheel", type=Path, help="default: one is built from this tree")
    parser.add_argument("--no-engine", action="store_true", help=f"only {', '.join(SMALL)}")
    given = parser.parse_args()
    unknown = set(given.steps) - set(STEPS)
    if unknown:
        parser.error(f"no step is called {', '.join(sorted(unknown))}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="a stranger's "))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        place = prepared(folder.absolute(), given.python, given.user, given.wheel)
        whom = place.user.pw_name if place.user else pwd.getpwuid(os.geteuid()).pw_name
        print(f"as {whom}, in {str(place.empty)!r}, with {given.python}")
        for name in given.steps or (SMALL if given.no_engine else STEPS):
            began = time.monotonic()
            told = STEPS[name](place)
            print(f"{name:11} {time.monotonic() - began:6.1f} s  {told}", flush=True)
    except WrongStep as wrong:
        print(f"{wrong}", file=sys.stderr)
        return 1
    finally:
        if not given.folder:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
