"""A user's file in a worker: importing it, calling it, and splitting its values by site."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import psutil
import torch
from torch import Tensor

from conformance.engines.structure import dense_copy
from conformance.spec.builtin.user_trace import USER_TRACE
from conformance.spec.records import Case, Job, Site

#: The share of the free memory that all traces running at once may use when they begin. Other
#: processes on the machine may take some meanwhile.
MEMORY_SHARE = 0.5

#: An upper bound in bytes: an endless allocation fills it within half a minute, so it is not
#: mistaken for a slow trace.
MEMORY_BYTES = 16 << 30

#: The bytes that a failed function may leave in a process. An engine that holds more is restarted.
KEPT_BYTES = 512 << 20

#: The time limit, in seconds, for importing a file.
IMPORT_SECONDS = 60

#: The seed of torch's global generator on every side. Nobody uses this number as a seed, so a
#: generator that one side ignores shows.
SEED = 1_618_033_988

Function = Callable[..., Any]

#: A path as Python has it, the site, and the value there.
_Part = tuple[str, Site, Any]


class BadValue(Exception):
    """The function returned something that cannot be compared; the message says what."""


@contextmanager
def bounded_memory(job: Job) -> Iterator[None]:
    """Make an endless allocation in the block fail before the machine runs out of memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    bound_memory(room_for(job))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def room_for(job: Job) -> int:
    """Return the bytes that a process of this engine may use for the user's code."""
    given = int(job.settings.get("memory", 0))
    share = float(job.settings.get("memory_share", 1.0))
    free = MEMORY_SHARE * psutil.virtual_memory().available
    return given or int(share * min(free, MEMORY_BYTES))


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


def bound_memory(room: int) -> None:
    """Limit this process to `room` bytes more than it has."""
    limit = psutil.Process().memory_info().vms + room
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


class Functions:
    """The functions of the cases. The files of a job are imported before its engine starts, since
    the engine's processes are forked from this one. A later version is imported when it runs.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        users = (case for case in cases if case.scenario == USER_TRACE.name)
        self._found: dict[str, Function | Exception] = {c.key: _imported(c) for c in users}

    def of(self, case: Case) -> Function:
        """Return the case's function. Raises what importing its file raised."""
        if case.key not in self._found:
            self._found[case.key] = _imported(case)
        found = self._found[case.key]
        if isinstance(found, Exception):
            raise found
        return found


def _imported(case: Case) -> Function | Exception:
    try:
        with _within(IMPORT_SECONDS):
            module = _module(Path(case.options["file"]), Path(case.options["original"]))
        function: Function = getattr(module, case.options["function"])
    except Exception as error:  # noqa: BLE001 - the user's own code; concerns one case only
        return error
    return function


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if Python code in the with block takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"the file takes more than {seconds} s to be imported")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _module(path: Path, original: Path) -> ModuleType:
    """Import a file with the folder and `__file__` of the original."""
    name = path.stem if path.stem not in sys.modules else f"checked_{len(sys.modules)}_{path.stem}"
    if str(original.parent) not in sys.path:
        sys.path.insert(0, str(original.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadValue(f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(original)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    # As for a script: the engine's other processes cannot import the module by this name.
    cloudpickle.register_pickle_by_value(module)
    return module


def call(
    function: Function, model: Any, prompts: Sequence[str], called: dict[str, str] | None = None
) -> dict[str, Tensor]:
    """Return the function's values by site. A parameter `prompt` means one call per prompt,
    `prompts` one call with all of them. Every call gets the same random numbers. `called` receives
    the path to each value in what the function returned.
    """
    names = list(inspect.signature(function).parameters)[1:2]
    calls: list[list[Any]] = [[list(prompts)] if names else []]
    if names == ["prompt"]:
        calls = [[prompt] for prompt in prompts]
    found: dict[str, Tensor] = {}
    called = {} if called is None else called
    for index, arguments in enumerate(calls):
        torch.manual_seed(SEED)
        found |= _flat(function(model, *arguments), index, called)
    return found


def _flat(values: Any, prompt: int, called: dict[str, str]) -> dict[str, Tensor]:
    """Return the values by site. A list has one entry per step, a dict with integer keys one per
    layer; other nesting becomes part of the name.
    """
    if not isinstance(values, Mapping):
        raise BadValue(f"the function returned {_kind(values)}, not a mapping of names to values")
    if not values:
        raise BadValue("the function returned an empty mapping: there is nothing to compare")
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        for way, site, part in _walk(str(name), value, Site(slug(str(name)), prompt=prompt)):
            found[str(site)] = _tensor(part, site)
            called[str(site)] = way
    return found


def _walk(way: str, value: Any, site: Site, *, stepped: bool = False) -> Iterator[_Part]:
    """Yield each nested value with its path in Python and its site."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            layered = isinstance(key, int) and key >= 0 and site.layer is None
            where = (
                replace(site, layer=key)
                if layered
                else replace(site, name=f"{site.name}_{slug(str(key))}")
            )
            name = json.dumps(key if isinstance(key, int) else str(key))
            yield from _walk(f"{way}[{name}]", part, where, stepped=stepped)
    elif isinstance(value, (list, tuple)) and not _is_vector(value):
        for index, part in enumerate(value):
            where = (
                replace(site, name=f"{site.name}_{index}") if stepped else replace(site, step=index)
            )
            yield from _walk(f"{way}[{index}]", part, where, stepped=True)
    else:
        yield way, site, value


def _is_vector(value: Sequence[Any]) -> bool:
    """Return whether these are numbers of one kind. A tuple that mixes integers and floats, such as
    an id and its probability, is two values: as one vector, only the id's size would be judged.
    """
    if not all(isinstance(part, (int, float)) for part in value):
        return False
    return isinstance(value, list) or len({isinstance(part, float) for part in value}) < 2


def _tensor(value: Any, site: Site) -> Tensor:
    if isinstance(value, Tensor):
        return dense_copy(value)
    if isinstance(value, str):
        return torch.tensor(list(value.encode()), dtype=torch.uint8)
    if value is None:
        raise BadValue(f"{site.name!r} is None")
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadValue(f"{site.name!r} holds {_kind(value)}, which is no tensor") from error


def slug(name: str) -> str:
    """Return the name as a valid site name."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
