"""The files of this package that a script of its own needs, as a literal of the script.

They are taken whole, as they are installed: nothing is left out of a module by guessing which
of its names are looked up.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from modulefinder import ModuleFinder
from pathlib import Path

import conformance
from conformance.engines import ENGINES, PRELOAD

PACKAGE = "PACKAGE"
_ROOT = Path(conformance.__file__).parent
_RERUN = "conformance.repro.rerun"

_UNPACKING = f"""\
if __name__ == "__main__":
    import ast
    import sys
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "{PACKAGE}":
                for name, text in ast.literal_eval(node.value).items():
                    path = Path(folder, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        from {{module}} import main

        sys.exit(main(__file__))
"""

_CALL = """\
if __name__ == "__main__":
    import sys

    from {module} import main

    sys.exit(main(__file__))
"""


def unpacking(module: str = _RERUN) -> str:
    """The statement by which a script unpacks what it holds of this package, and calls `main` of
    a module of it.
    """
    return _UNPACKING.format(module=module)


def call(module: str = _RERUN) -> str:
    """The same with the package that is installed."""
    return _CALL.format(module=module)


@dataclass(frozen=True)
class Needed:
    """Name → text of files of this package, and the other packages that they import."""

    files: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()


def needed(engine: str, sources: Iterable[str] = (), roots: Iterable[str] = (_RERUN,)) -> Needed:
    """All that gathering and judging on this engine imports, from these modules on. `sources`
    are texts that may import more of the package.
    """
    finder = ModuleFinder(path=[str(_ROOT.parent)])
    for name in (*roots, *_named(engine), *_imported(sources)):
        finder.import_hook(name)
    places = (getattr(module, "__file__", None) for module in finder.modules.values())
    paths = {Path(place) for place in places if place}
    files = {
        path.relative_to(_ROOT.parent).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(paths)
        if path.is_relative_to(_ROOT)
    }
    foreign = {name.split(".")[0] for name in finder.badmodules} - sys.stdlib_module_names
    elsewhere = {_ROOT.name} if "vllm" in engine else {_ROOT.name, "vllm"}
    return Needed(files, tuple(sorted(foreign - elsewhere)))


def _named(engine: str) -> Iterator[str]:
    """Modules of the child's side, which are started or looked up by their names: the worker,
    the engine's and the reference's; all for vLLM, which finds its own worker classes so.
    """
    folders = ["worker", *(["engines/vllm"] if "vllm" in engine else [])]
    for path in (path for folder in folders for path in sorted((_ROOT / folder).rglob("*.py"))):
        if path.stem != "__init__":
            yield ".".join(path.relative_to(_ROOT.parent).with_suffix("").parts)
    for name in (engine, "reference", "build"):
        yield ENGINES[name].partition(":")[0]
    yield from filter(None, PRELOAD.values() if "vllm" in engine else (PRELOAD[engine],))


def _imported(sources: Iterable[str]) -> Iterator[str]:
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            yield from (name for name in names if name.split(".")[0] == _ROOT.name)


def named(name: str = _ROOT.name) -> str:
    """This package with its version, where that is known."""
    known = conformance.__version__ != conformance.UNBUILT
    return f"{name} {conformance.__version__}" if known else name


def literal(files: Mapping[str, str]) -> Iterator[str]:
    """The assignment, line by line, each file's text readable as it is; nothing for no files."""
    if not files:
        return
    yield f"#: The files of {named()} that this needs."
    yield f"{PACKAGE} = {{"
    for name, text in files.items():
        quoted = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        yield f'    "{name}": """\\\n{quoted}""",'
    yield "}"
