"""The owners of a traceback's frames, found by where the packages are installed on this machine.

This is decided where the error was raised, because a path alone is ambiguous. A clone may be called
`conformance`, and an environment may be inside the scenarios' folder: if a project's own folder is
given as `--scenarios`, it contains `.venv`, and torch in it is not a scenario's code.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance.spec.records import Frame, Owner

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
#: nnsight's file names for the code of a block.
_BLOCK = re.compile(r"<(?:edit|nnsight)[^>]*>")
_PACKAGE = Path(__file__).resolve().parent.parent
_INSTALLED = {"nnsight": Owner.NNSIGHT, "vllm": Owner.ENGINE, "transformers": Owner.ENGINE}

#: Separates the traceback of a cause from that of the exception raised from it.
_CAUSED = "the direct cause of the following exception"

#: Folder → the owner of its code, None for other installed packages. The innermost folder that
#: contains a file decides.
Roots = Mapping[Path, Owner | None]


def roots(*scenarios: Path) -> Roots:
    """Return the roots of this installation. `scenarios` are the folders of scenarios."""
    owners: dict[Path, Owner | None] = {folder.resolve(): Owner.SCENARIO for folder in scenarios}
    # After the scenarios: a folder that is both holds installed packages.
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
    """Yield the folders of the standard library and of the installed packages."""
    yield from map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
    for folder in map(Path, filter(None, sys.path)):
        if any(folder.glob("*.dist-info")):
            yield folder


def frames(text: str, owners: Roots) -> tuple[Frame, ...]:
    """Return the frames in a traceback's text that have an owner, the innermost last. The frames of
    a cause come after those of the exception raised from it.
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
