"""The model that a check is on: a local folder, an id of models.yaml, or one of a hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from conformance import loose_json
from conformance.errors import ConformanceError
from conformance.inputs import manifest, usable
from conformance.planning import selection
from conformance.records import Backend, Model, Source

_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
#: More ranks than four digits say is nobody's machine.
_COLUMN = re.compile(r"vllm(?:-pp([1-9]\d{0,3}))?(?:-tp([1-9]\d{0,3}))?", re.ASCII)

#: What a check compares with transformers unless it is told otherwise.
DEFAULT = "vllm-pp1"


def resolve(name: str, known: Path) -> Model:
    """The model of this name; `known` is the manifest, which may be absent.

    Raises ConformanceError for what is none of the three.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _local(folder.resolve())
    listed = manifest.load(known).models if known.is_file() else ()
    for model in listed:
        if model.id == name:
            selection.check_sources((model,), known)
            return model
    if _HUB.fullmatch(name) and not name.startswith((".", "/")):
        repo, _, revision = name.partition("@")
        source = Source("hub", repo=repo, revision=revision or "main")
        return Model(_id(repo), "", (source,))
    ids = f", or an id of {known}: {', '.join(one.id for one in listed)}" if listed else ""
    raise ConformanceError(
        f"there is no model {name!r}",
        remedy=f"name a local folder, a hub's owner/name{ids}",
    )


def _local(folder: Path) -> Model:
    path = folder / "config.json"
    architecture = loose_json.mapping(path).get("model_type")
    known = usable.architectures()
    why = ""
    if not isinstance(architecture, str):
        why = f"{path.name} cannot be read or has no `model_type`"
    elif known and architecture not in known:
        why = f"it knows no {architecture!r}, as {path.name} has it"
    elif damaged := usable.folder(folder, architecture):
        why = damaged
    if why or not isinstance(architecture, str):
        raise ConformanceError(
            f"is no model that transformers can load: {why}",
            path=folder,
            remedy="name the folder that holds config.json, the tokenizer and the weights",
        )
    return Model(_id(folder.name), architecture, (Source("path", file=str(folder)),))


def _id(name: str) -> str:
    """Safe as a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "model"


def columns(names: list[str]) -> tuple[Backend, ...]:
    """The engines to compare with: `vllm-pp1`, `vllm-pp2`, `vllm-tp2`, `vllm-pp2-tp2` …; `hf`
    is always run and is none. Raises ConformanceError for any other.
    """
    found = []
    for name in dict.fromkeys(names or [DEFAULT]):
        if name == "hf":
            continue
        match = _COLUMN.fullmatch(name)
        if match is None:
            raise ConformanceError(
                f"a check cannot run on {name!r}",
                remedy="one of: hf, vllm-pp1, vllm-pp2, vllm-pp3, vllm-tp2, vllm-pp2-tp2",
            )
        pipeline, tensor = (int(size or 1) for size in match.groups())
        found.append(
            Backend(name if name != "vllm" else DEFAULT, "vllm", pipeline=pipeline, tensor=tensor)
        )
    return tuple(found)


def require_layers(columns: Sequence[Backend], model: Model) -> None:
    """Raises ConformanceError for a column with more stages than the model has layers, where it is
    known how many those are.
    """
    layers = _layers(model)
    for column in columns:
        if layers and column.pipeline > layers:
            raise ConformanceError(
                f"{column.id} has more stages than {model.id} has layers: {layers}",
                remedy=f"name at most vllm-pp{layers}",
            )


def _layers(model: Model) -> int:
    """As its one source says, 0 where it has several or says nothing."""
    if len(model.sources) != 1:
        return 0
    source = model.sources[0]
    if source.kind == "path":
        return usable.layers(loose_json.mapping(Path(source.file) / "config.json"))
    return usable.layers(source.config)
