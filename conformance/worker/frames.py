"""Whose code the frames of a traceback are, by where the packages really are on this machine.

Decided where the error was raised: a path alone says nothing. A clone may be called `conformance`,
an environment lie in a folder of any name, and that folder among the scenarios: a project whose
own folder is given as `--scenarios` holds its `.venv`, and torch in it is no code of a scenario.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance.records import Frame, Owner

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
#: How nnsight names the code of a block that it runs.
_BLOCK = re.compile(r"<(?:edit|nnsight)[^>]*>")
_PACKAGE = Path(__file__).resolve().parent.parent
_INSTALLED = {"nnsight": Owner.NNSIGHT, "vllm": Owner.ENGINE, "transformers": Owner.ENGINE}

#: Between the traceback of a cause and that of what was raised from it.
_CAUSED = "the direct cause of the following exception"

#: Folder → whose code is in it, None for what is installed and nobody's of these. The innermost
#: folder that holds a file decides.
Roots = Mapping[Path, Owner | None]


def roots(*scenarios: Path) -> Roots:
    """The roots of this installation. `scenarios` are the folders of scenarios."""
    owners: dict[Path, Owner | None] = {folder.resolve(): Owner.SCENARIO for folder in scenarios}
    # After them: a folder that is both holds what is installed.
    owners |= dict.fromkeys((folder.resolve() for folder in _installed()), None)
    owners |= {
        _PACKAGE: Owner.HARNESS,
        _PACKAGE / "engines" / "vllm" / "relay": Owner.PIPELINE,
        _PACKAGE / "selftest": Owner.SELFTEST,
    }
    for name, owner in _INSTALLED.items():
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            owners[Path(folder).resolve()] = owner
    return owners


def _installed() -> Iterator[Path]:
    """Where this interpreter has its standard library, and what was installed for it."""
    yield from map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
    for folder in map(Path, filter(None, sys.path)):
        if any(folder.glob("*.dist-info")):
            yield folder


def frames(text: str, owners: Roots) -> tuple[Frame, ...]:
    """The frames of a traceback's text that belong to somebody, the innermost last: those of a
    cause after those of what was raised from it.
    """
    raised = reversed(text.split(_CAUSED))
    places = ((path, int(line)) for part in raised for path, line in _FRAME.findall(part))
    owned = (_frame(path, line, owners) for path, line in places)
    return tuple(frame for frame in owned if frame is not None)


def _frame(path: str, line: int, owners: Roots) -> Frame | None:
    if _BLOCK.fullmatch(path):
        return Frame(Owner.SCENARIO, path, line)
    if path.startswith("<"):
        return None
    real = Path(path).resolve()
    inside = [root for root in owners if real.is_relative_to(root)]
    if not inside:
        return None
    root = max(inside, key=lambda folder: len(folder.parts))
    owner = owners[root]
    if owner is None:
        return None
    return Frame(owner, f"{root.name}/{real.relative_to(root)}", line)
