"""Declare scenarios, and find the files in `scenarios/`.

A scenario states one behaviour twice: as an nnsight trace, which runs unchanged on every backend,
and in plain PyTorch, which defines its meaning. It never names a backend, compares or asserts.

    @scenario(layers={"at": ("first", "middle", "last")}, twin=True)
    def steering(lm, case): ...        # → one mapping of observations per prompt

    @steering.reference
    def _(model, case): ...            # → the same mappings

A mapping goes from a name to a tensor, to a list of tensors (one per generation step), or to a dict
from layer index to tensor. `logits`, `tokens` and `stream` have their own ways of judging.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.errors import ConformanceError
from conformance.spec import stub_modules
from conformance.spec.records import Case, ScenarioInfo

#: Two prompts that differ in content and length: otherwise the rows of one prompt could not be
#: distinguished from the other's.
PAIR = (
    "The capital of France is",
    "A small boat drifted slowly past the old stone bridge while we were",
)

Block = Callable[[Any, Case], Any]
Forming = Callable[[int, Case], Any]
Place = str | int

#: A folder of scenario files, or several folders.
Places = str | Path | Sequence[str] | Sequence[Path]

#: What a case depends on: only the engine and nnsight, or also the model's family.
ENGINE, FAMILY = "engine", "family"

#: Pairs of observations that must be bitwise equal (`conformance.judge.cell.measures.relations`).
Equal = Sequence[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class Scenario:
    """One behaviour.

    `cases` maps a case's name to its layer positions and options. `twin` says whether a case has a
    second, clean run with `case.active` False, from which the intervention's gain is computed.
    `equal` names pairs of observations that must be bitwise equal within one run. `equal_alone`
    names pairs observed alongside different requests; they must be bitwise equal if an engine's
    numbers do not depend on other requests. `needs` names the parts (of
    `conformance.engines.model_parts.Parts`) that a model must have for a case to make sense.
    `settings` are the engine settings of a case (`conformance.runner.planning.engine_settings`).
    `tier` names the selection of models that a case is planned for, "" for all: a case that depends
    only on the engine does not need 20 families. `depends_on` says whether a case depends on the
    model's family or on the engine alone. `numerics` says whether bf16 can show something that
    float32 does not. A covering tier (`conformance.runner.planning.covering`) selects by these two.
    """

    name: str
    meaning: str
    run: Block
    path: Path
    cases: Mapping[str, Mapping[str, Any]]
    prompts: tuple[str, ...]
    steps: int
    twin: Callable[[Case], bool]
    equal: Callable[[Case], Equal]
    equal_alone: Callable[[Case], Equal] = lambda _: ()
    needs: Callable[[Case], Sequence[str]] = lambda _: ()
    settings: Callable[[Case], Mapping[str, Any]] = lambda _: {}
    tier: Callable[[Case], str] = lambda _: ""
    depends_on: Callable[[Case], str] = lambda _: FAMILY
    numerics: Callable[[Case], bool] = lambda _: True
    _reference: list[Block] = field(default_factory=list)
    _program: list[Forming] = field(default_factory=list)

    def reference(self, block: Block) -> Block:
        """Register the function that states the scenario's meaning in plain PyTorch."""
        self._reference[:] = [block]
        return block

    def program(self, form: Forming) -> Forming:
        """Register a function that returns a case as data, for a model of so many layers. Libraries
        without nnsight run it (`conformance.spec.programs.Form`, or a complete program).
        """
        self._program[:] = [form]
        return form

    def form(self, layers: int, case: Case) -> Any:
        """Return the case as data, None if the scenario has no such form."""
        return self._program[0](layers, case) if self._program else None

    @property
    def specification(self) -> Block:
        if not self._reference:
            raise ConformanceError(
                f"scenario {self.name!r} has no reference",
                path=self.path,
                remedy=f"add a function decorated with @{self.name}.reference",
            )
        return self._reference[0]

    @property
    def digest(self) -> str:
        """A hash of the file, part of the key of stored observations."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def expand(self, layers: int) -> tuple[Case, ...]:
        """Return the cases for a model of so many layers."""
        cases = (
            Case(
                scenario=self.name,
                name=name,
                prompts=self.prompts,
                layers={key: position(place, layers) for key, place in choice["layers"].items()},
                options=choice["options"],
                steps=self.steps,
            )
            for name, choice in self.cases.items()
        )
        return tuple(replace(case, settings=self.settings(case)) for case in cases)

    def info(self) -> ScenarioInfo:
        return ScenarioInfo(
            id=self.name,
            meaning=self.meaning,
            cases=tuple(self.cases),
            path=f"{self.path.parent.name}/{self.path.name}",
            trace_source=inspect.getsource(self.run),
            reference_source=inspect.getsource(self.specification),
        )


def position(place: Place, layers: int, path: Path | None = None) -> int:
    """Return the index of a place in a model with `layers` layers. A number, or a string such as
    "12", is the layer with that index.

    `early` lies in the first half and `late` in the second, so that with two pipeline stages the
    boundary is between them. Whether the model has that layer is checked later
    (`conformance.engines.model_parts.require_layers`). Raises ConformanceError, naming the
    scenario's file, for an unknown place.
    """
    if str(place).isdecimal():
        return int(place)
    places = {
        "first": 0,
        "early": layers // 4,
        "middle": layers // 2,
        "late": (3 * layers) // 4,
        "last": layers - 1,
    }
    if place not in places:
        raise ConformanceError(
            f"unknown layer position {place!r}",
            path=path,
            remedy=f"use one of {', '.join(places)}, or a layer's number, counted from 0",
        )
    return places[str(place)]


def scenario(
    *,
    layers: Mapping[str, Place | Sequence[Place]] = MappingProxyType({}),
    options: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    prompts: Sequence[str] = PAIR,
    steps: int = 1,
    twin: bool | Callable[[Case], bool] = False,
    equal: Equal | Callable[[Case], Equal] = (),
    equal_alone: Equal = (),
    needs: Callable[[Case], Sequence[str]] = lambda _: (),
    settings: Callable[[Case], Mapping[str, Any]] = lambda _: {},
    tier: Callable[[Case], str] = lambda _: "",
    depends_on: str | Callable[[Case], str] = FAMILY,
    numerics: bool | Callable[[Case], bool] | None = None,
) -> Callable[[Block], Scenario]:
    """Declare a scenario. Every combination of the given choices is a case.

    `layers` maps a name to a position or several ("first", "early", "middle", "late", "last", or a
    layer's number); `options` maps a name to its values. A case is named after the choices that
    vary, as `middle-small`; without any it is called `all`. By default, `numerics` is true for
    cases that write nothing and depend on the family. Raises ConformanceError for an unknown
    position.
    """
    of_what, writes, equal_pairs = map(_as_function, (depends_on, twin, equal))
    shows = _as_function(numerics)
    if numerics is None:
        shows = lambda case: not writes(case) and of_what(case) == FAMILY  # noqa: E731
    axes = [
        *(("layers", name, _places(value)) for name, value in layers.items()),
        *(("options", name, tuple(values)) for name, values in options.items()),
    ]

    def decorate(run: Block) -> Scenario:
        path = Path(inspect.getsourcefile(run) or "")
        for group, _, values in axes:
            for place in values if group == "layers" else ():
                position(place, 1, path)
        cases: dict[str, Mapping[str, Any]] = {}
        for combination in itertools.product(*(values for *_, values in axes)):
            choice: dict[str, dict[str, Any]] = {"layers": {}, "options": {}}
            varying = []
            for (group, key, values), value in zip(axes, combination, strict=True):
                choice[group][key] = value
                varying += [str(value)] if len(values) > 1 else []
            cases["-".join(varying) or "all"] = choice
        doc = inspect.getdoc(sys.modules[run.__module__]) or ""
        if not doc.strip():
            raise ConformanceError(
                "the scenario has no meaning",
                path=path,
                remedy="begin the file with a docstring of one sentence",
            )
        return Scenario(
            name=run.__name__,
            meaning=doc.strip(),
            run=run,
            path=path,
            cases=cases,
            prompts=tuple(prompts),
            steps=steps,
            twin=writes,
            equal=equal_pairs,
            equal_alone=lambda _: equal_alone,
            needs=needs,
            settings=settings,
            tier=tier,
            depends_on=of_what,
            numerics=shows,
        )

    return decorate


def _as_function(value: Any) -> Callable[[Case], Any]:
    return value if callable(value) else lambda _: value


def _places(value: Place | Sequence[Place]) -> tuple[Place, ...]:
    return (value,) if isinstance(value, str | int) else tuple(value)


def folders_of(places: Places) -> tuple[Path, ...]:
    """Return the folders of scenarios, without duplicates."""
    folders = []
    for place in (places,) if isinstance(places, str | Path) else places:
        try:
            folders.append(Path(place).resolve())
        except (OSError, RuntimeError, ValueError) as error:  # a link to itself is a RuntimeError
            words = f"cannot be a folder of scenarios: {error}"
            raise ConformanceError(
                words, path=Path(place), remedy="name a folder that exists"
            ) from error
    return tuple(dict.fromkeys(folders))


def as_planned(places: Places) -> str | tuple[str, ...]:
    """Return the folders as text for a file; a single one as a plain string."""
    folders = tuple(map(str, folders_of(places)))
    return folders[0] if len(folders) == 1 else folders


def discover(places: Places) -> dict[str, Scenario]:
    """Load every scenario of one or more folders, by name, in order of the file names.

    A folder is imported as a package, because a block's helpers reach the engine's processes by
    module name. Raises ConformanceError for a file that cannot be imported or declares no scenario
    of its own name, and for two scenarios or two folders of the same name.
    """
    scenarios: dict[str, Scenario] = {}
    with stub_modules.for_missing():
        for folder in folders_of(places):
            for name, declared in _in_folder(folder):
                if name in scenarios:
                    raise ConformanceError(
                        f"there is a scenario {name!r} already, in {scenarios[name].path}",
                        path=declared.path,
                        remedy="give this file and its function another name",
                    )
                scenarios[name] = declared
    return scenarios


def _in_folder(folder: Path) -> Iterator[tuple[str, Scenario]]:
    parent = str(folder.parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith("_"):
            continue
        if not path.is_file():  # Python would block on a pipe
            raise ConformanceError("is no file", path=path, remedy="remove it, or rename it")
        try:
            module = importlib.import_module(f"{folder.name}.{path.stem}")
        except ConformanceError:
            raise
        except (Exception, SystemExit) as error:
            words, remedy = repr(error), "see the error above"
            if isinstance(error, SystemExit):  # otherwise the command would end without a word
                words = f"it ends the program: {words}"
                remedy = "move what ends it below `if __name__ == '__main__':`, or take it out"
            raise ConformanceError(
                f"cannot be imported: {words}", path=path, remedy=remedy
            ) from error
        if Path(module.__file__ or "").resolve() != path.resolve():
            raise ConformanceError(
                f"Python takes it for {module.__file__}",
                path=path,
                remedy=f"give the folder {folder.name!r} a name that no other module has",
            )
        declared = getattr(module, path.stem, None)
        if not isinstance(declared, Scenario):
            raise ConformanceError(
                f"declares no scenario called {path.stem!r}",
                path=path,
                remedy=f"decorate a function `def {path.stem}(lm, case)` with @scenario(...)",
            )
        yield path.stem, declared


def is_a_users(name: str, places: Places) -> bool:
    """Return whether the scenario of this name, in these folders, comes from a user. Its blocks may
    do anything to their process; those of this package do not.
    """
    package = Path(__file__).parent.parent
    ours = (package, package.parent / "scenarios")
    found = (folder / f"{name}.py" for folder in folders_of(places))
    return any(path.is_file() and not any(map(path.is_relative_to, ours)) for path in found)


def _elsewhere(_: Any, case: Case) -> Any:
    raise NotImplementedError(f"{case.scenario} is not run by this function")


def built_in(
    name: str,
    meaning: str,
    path: str,
    *,
    run: Block = _elsewhere,
    reference: Block = _elsewhere,
    prompts: tuple[str, ...] = (),
    steps: int = 1,
) -> Scenario:
    """Return a scenario of this package with one case, "all"."""
    return Scenario(
        name=name,
        meaning=meaning,
        run=run,
        path=Path(path),
        cases={"all": {"layers": {}, "options": {}}},
        prompts=prompts,
        steps=steps,
        twin=lambda _: False,
        equal=lambda _: (),
        _reference=[reference],
    )
