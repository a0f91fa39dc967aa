"""The model that a check is on: a local folder, an id of models.yaml, or one of a hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.inputs import manifest
from conformance.records import Backend, Model, Source

_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
_COLUMN = re.compile(r"vllm(?:-pp(\d+))?(?:-tp(\d+))?")

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
    try:
        architecture = str(json.loads(path.read_text())["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConformanceError(
            f"is no model that transformers can load: {path.name} cannot be read or has no "
            "`model_type`",
            path=folder,
            remedy="name the folder that holds config.json, the tokenizer and the weights",
        ) from error
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
