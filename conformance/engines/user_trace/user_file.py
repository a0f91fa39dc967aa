"""A user's file in a worker: imported, called, and its values taken apart."""

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

from conformance.builtin.user_trace import USER_TRACE
from conformance.engines.structure import dense_copy
from conformance.records import Case, Job, Site

#: What the traces that run at a time may take of the memory that is free when they begin. Others
#: on the machine take some meanwhile.
MEMORY_SHARE = 0.5

#: And at most so much: what allocates without end fills it within half a minute, and so is told
#: from what only takes long.
MEMORY_BYTES = 16 << 30

#: What a function that failed may have left in a process: an engine that holds more is started
#: anew.
KEPT_BYTES = 512 << 20

#: Seconds that a file may take to be imported.
IMPORT_SECONDS = 60

#: Of torch's own generator on every side: no number that people seed theirs with, so that a
#: generator which one side forgets shows.
SEED = 1_618_033_988

Function = Callable[..., Any]

#: A value with the way to it and its site.
_Part = tuple[str, Site, Any]


class BadValue(Exception):
    """The function returned something that cannot be compared: what, in words."""


@contextmanager
def bounded_memory(job: Job) -> Iterator[None]:
    """Let an allocation without end fail in the block, before the machine is out of memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    bound_memory(room_for(job))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def room_for(job: Job) -> int:
    """Bytes that a process of this engine may take for the user's own."""
    given = int(job.settings.get("memory", 0))
    share = float(job.settings.get("memory_share", 1.0))
    free = MEMORY_SHARE * psutil.virtual_memory().available
    return given or int(share * min(free, MEMORY_BYTES))


def resident() -> int:
    """Bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


def bound_memory(room: int) -> None:
    """Let this process take so many bytes more than it has."""
    limit = psutil.Process().memory_info().vms + room
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


class Functions:
    """The functions of the cases. A job's files are imported before its engine starts, whose
    processes are forked from this one; a version that comes later is imported when it is run.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._found: dict[str, Function | Exception] = {}
        for case in cases:
            if case.scenario == USER_TRACE.name:
                self._found[case.key] = _imported(case)

    def of(self, case: Case) -> Function:
        """The case's function. Raises what importing its file raised."""
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
    except Exception as error:  # noqa: BLE001 - the user's own code, and one case's concern
        return error
    return function


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in a block of Python that takes longer."""

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
    """Import a file, under the folder and the `__file__` of the original one."""
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
    # As of a script that is run: other processes of an engine cannot import it by this name.
    cloudpickle.register_pickle_by_value(module)
    return module


def call(
    function: Function, model: Any, prompts: Sequence[str], called: dict[str, str] | None = None
) -> dict[str, Tensor]:
    """What the function returns, by site. A parameter `prompt` means a call for each prompt,
    `prompts` one call with all of them. Random numbers are the same in every call. `called` gets
    how each value is reached in what is returned.
    """
    names = list(inspect.signature(function).parameters)[1:2]
    found: dict[str, Tensor] = {}
    called = {} if called is None else called
    if names == ["prompt"]:
        for index, prompt in enumerate(prompts):
            found |= _flat(_seeded(function, model, prompt), index, called)
        return found
    arguments = [list(prompts)] if names else []
    return _flat(_seeded(function, model, *arguments), 0, called)


def _seeded(function: Function, *arguments: Any) -> Any:
    torch.manual_seed(SEED)
    return function(*arguments)


def _flat(values: Any, prompt: int, called: dict[str, str]) -> dict[str, Tensor]:
    """A list is one entry a step, a dict with integer keys one a layer; any other nesting
    becomes part of the name.
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
    """The values in one, each with the way to it as Python has it, and its site."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            layered = isinstance(key, int) and key >= 0 and site.layer is None
            where = (
                replace(site, layer=key)
                if layered
                else replace(site, name=f"{site.name}_{slug(str(key))}")
            )
            yield from _walk(f"{way}[{json.dumps(_key(key))}]", part, where, stepped=stepped)
    elif isinstance(value, (list, tuple)) and not _is_vector(value):
        for index, part in enumerate(value):
            where = (
                replace(site, name=f"{site.name}_{index}") if stepped else replace(site, step=index)
            )
            yield from _walk(f"{way}[{index}]", part, where, stepped=True)
    else:
        yield way, site, value


def _is_vector(value: Sequence[Any]) -> bool:
    """Are these numbers of one kind? A tuple of an integer and others, an id with its probability,
    is two values: as one of floats the id's size would be all that is judged.
    """
    if not all(isinstance(part, (int, float)) for part in value):
        return False
    return isinstance(value, list) or len({isinstance(part, float) for part in value}) < 2


def _key(key: Any) -> int | str:
    return key if isinstance(key, int) else str(key)


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
    """The name as a site can have it."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
