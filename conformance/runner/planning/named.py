"""Resolve the model (a local folder, an id of models.yaml, a hub's) and columns of a check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.runner.planning import selection
from conformance.spec import loose_json
from conformance.spec.inputs import manifest, usable
from conformance.spec.records import Backend, Model, Source

_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
#: No machine has more ranks than four digits can say.
_COLUMN = re.compile(r"vllm(?:-pp([1-9]\d{0,3}))?(?:-tp([1-9]\d{0,3}))?", re.ASCII)

#: The column of a check without an engine: whether the files run on transformers.
HF = Backend("hf", "hf")

#: The column of numbers recorded by another tool.
DUMP = Backend("dump", "dump")


def find_model(name: str, known: Path) -> Model:
    """Return the model of this name: a local folder, an id in the manifest, or a hub's
    `owner/name`, in this order. `known` is the manifest, which may be absent.

    Raises ConformanceError if the name is none of these.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _local(folder.resolve())
    whole = manifest.load(known) if known.is_file() else manifest.Manifest((), ())
    listed = whole.models
    for model in listed:
        if model.id == name:
            selection.check_sources((model,), whole, known)
            return model
    if _HUB.fullmatch(name) and not name.startswith((".", "/")):
        repo, _, revision = name.partition("@")
        source = Source("hub", repo=repo, revision=revision or "main")
        return Model(_id(repo), "", (source,))
    ids = f", or an id of {known}: {', '.join(one.id for one in listed)}" if listed else ""
    raise ConformanceError(
        f"there is no model {name!r}", remedy=f"name a local folder, a hub's owner/name{ids}"
    )


def local_folder(model: Model) -> Path | None:
    """Return the folder of a model that is used directly, None for others."""
    [source, *others] = model.sources
    return Path(source.file) if source.kind == "path" and not others else None


def _local(folder: Path) -> Model:
    architecture = str(loose_json.mapping(folder / "config.json").get("model_type"))
    known = usable.architectures()
    why = usable.folder(folder, architecture)
    if not why and known and architecture not in known:
        why = f"it knows no {architecture!r}, as config.json has it"
    if why:
        raise ConformanceError(
            f"is no model that transformers can load: {why}",
            path=folder,
            remedy="name the folder that holds config.json, the tokenizer and the weights",
        )
    return Model(_id(folder.name), architecture, (Source("path", file=str(folder)),))


def _id(name: str) -> str:
    """Return a name that is safe for a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "model"


def columns(names: list[str]) -> tuple[Backend, ...]:
    """Return the engines to compare with: `vllm-pp1` (default), `vllm-pp2`, `vllm-pp2-tp2` …

    `hf` always runs, and is a column only if it is the only one. Raises ConformanceError for
    others.
    """
    found = []
    for name in dict.fromkeys(names or ["vllm"]):
        if match := _COLUMN.fullmatch(name):
            pipeline, tensor = (int(size or 1) for size in match.groups())
            called = "vllm-pp1" if name == "vllm" else name
            found.append(Backend(called, "vllm", pipeline=pipeline, tensor=tensor))
        elif name != HF.id:
            raise ConformanceError(
                f"a check cannot run on {name!r}",
                remedy="one of: hf, vllm-pp1, vllm-pp2, vllm-pp3, vllm-tp2, vllm-pp2-tp2",
            )
    return tuple(found) or (HF,)


def require_layers(columns: Sequence[Backend], model: Model) -> None:
    """Raise ConformanceError for a column with more stages than the model has layers, if known."""
    [source, *others] = model.sources
    folder = local_folder(model)
    config = loose_json.mapping(folder / "config.json") if folder else source.config
    layers = 0 if others else usable.layers(config)
    for column in columns:
        if layers and column.pipeline > layers:
            raise ConformanceError(
                f"{column.id} has more stages than {model.id} has layers: {layers}",
                remedy=f"name at most vllm-pp{layers}",
            )
