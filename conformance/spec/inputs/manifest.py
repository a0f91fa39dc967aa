"""Read models.yaml into records. Errors come with their line and a remedy.

The whole document is checked against the records below before anything starts. An entry holds only
what differs from the block `defaults`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Literal

from conformance.engines import ENGINES
from conformance.errors import ConformanceError
from conformance.spec.inputs import built_in_files, usable
from conformance.spec.inputs.yaml_input import Location, Refusal, check, line_of, parse
from conformance.spec.records import PARTS, Backend, Model, Part, Piece, Source, record
from conformance.spec.records.base import Count
from conformance.spec.records.matrix import PINNED

#: The id of a model or backend is also the name of a folder.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENGINE = re.compile(r"[\w.]+:\w+")

#: The keys that each kind of source needs besides the kind itself.
_NEEDED: Mapping[str, Sequence[str]] = {
    "path": (),
    "wheel": ("file", "sha256"),
    "wheels": ("sha256",),
    "hub": ("revision",),
}

#: Each of these tiers includes the models of the ones before it. Other tiers are independent.
_GROWING = ("smoke", "default", "full")


@record()
class Tier:
    """What a selection of models runs: only these scenarios, or all if none is named. A column in
    `backends` runs only on models that are also in the tier named there. `cases` are all, or a
    covering selection of them (`conformance.runner.planning.covering`); there the models in the
    tier `kinds` stand for the kinds of layer.
    """

    scenarios: tuple[str, ...] = ()
    backends: Mapping[str, str] = field(default_factory=dict)
    cases: Literal["all", "covering"] = "all"
    kinds: str = ""


@record()
class Manifest:
    """The document as records. `unusable` has the error of each model that the installed
    transformers does not know, or whose tiny config has a key that it would not read: releases
    differ in both, so that only a run with the model is refused.
    """

    models: tuple[Model, ...]
    backends: tuple[Backend, ...]
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    unusable: Mapping[str, ConformanceError] = field(default_factory=dict)


@record()
class _Defaults:
    seed: int = 0
    tiny: Mapping[str, Any] = field(default_factory=dict)


@record()
class _PieceEntry:
    wheel: str
    file: str
    sha256: str


@record()
class _SourceEntry:
    path: str = ""
    wheel: str = ""
    wheels: tuple[_PieceEntry, ...] = ()
    hub: str = ""
    file: str = ""
    sha256: str = ""
    revision: str = ""


@record()
class _ModelEntry:
    architecture: str = ""
    tiny: Mapping[str, Any] | None = None
    seed: int | None = None
    adapter: Mapping[str, Any] = field(default_factory=dict)
    quantized: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[_SourceEntry, ...] = ()
    layout: str = ""
    tiers: tuple[str, ...] = ("default",)
    parts: tuple[Part, ...] = PARTS
    harder_than: str = ""


@record()
class _BackendEntry:
    engine: str
    pipeline: Count = 1
    tensor: Count = 1
    transport: Literal["auto", "relay", "native"] = "auto"
    default: bool = True
    environment: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@record()
class _ModelsDocument:
    models: Mapping[str, _ModelEntry]
    backends: Mapping[str, _BackendEntry] = field(default_factory=dict)
    extends: Literal["", "built-in"] = ""
    defaults: _Defaults = field(default_factory=_Defaults)
    tiers: Mapping[str, Tier] = field(default_factory=dict)


def load(path: Path) -> Manifest:
    """Read models.yaml. With `extends: built-in` it also holds the built-in models, backends,
    defaults and tiers.

    Raises ConformanceError with file, line and remedy for a file that cannot be read, an unknown
    key, a wrong type, a duplicate id, a model without a source or an unknown engine.
    """
    tree = parse(path, holds="it needs the keys `models` and `backends`")
    try:
        document = check(_ModelsDocument, tree, _keys)
        base = load(built_in_files.path("models.yaml")) if document.extends else Manifest((), ())
        _check_new(document, base)
        defaults = document.defaults
        if document.extends:
            tree_of_base = parse(built_in_files.path("models.yaml"), holds="")
            built_in = check(_ModelsDocument, tree_of_base, _keys).defaults
            defaults = _Defaults(defaults.seed or built_in.seed, {**built_in.tiny, **defaults.tiny})
        models = base.models + tuple(
            _model(name, entry, defaults, path.parent) for name, entry in document.models.items()
        )
        backends = base.backends + tuple(
            _backend(name, entry) for name, entry in document.backends.items()
        )
        _check_tiers(document.tiers, models, backends)
        _check_harder(models)
    except Refusal as refusal:
        raise refusal.at(path, tree) from None
    refusals = {name: _refusal(name, entry) for name, entry in document.models.items()}
    unusable = {name: refusal.at(path, tree) for name, refusal in refusals.items() if refusal}
    return Manifest(
        models, backends, {**base.tiers, **document.tiers}, {**base.unusable, **unusable}
    )


def line(path: Path, model: str) -> int | None:
    """Return the line that defines a model, None for a built-in model."""
    return line_of(parse(path, holds=""), ("models", model))


def _check_new(document: _ModelsDocument, base: Manifest) -> None:
    """Refuse ids that are already built in, and a file without backends that extends nothing."""
    if not (document.backends or document.extends):
        raise Refusal((), "the file has no 'backends'", "add `backends:`, or `extends: built-in`")
    known: Mapping[str, Collection[str]] = {
        "models": [model.id for model in base.models],
        "backends": [backend.id for backend in base.backends],
        "tiers": base.tiers,
    }
    for kind, names in known.items():
        for name in getattr(document, kind):
            if name in names:
                raise Refusal(
                    (kind, name),
                    f"{name!r} is built in already, under {kind}",
                    "give it another id, or leave `extends` out",
                )


def _keys(location: Location) -> list[str]:
    """Return the valid keys at a place of the document."""
    kinds = {"models": _ModelEntry, "backends": _BackendEntry, "defaults": _Defaults, "tiers": Tier}
    kind: type = kinds[str(location[0])] if location else _ModelsDocument
    return [key.name for key in fields(_SourceEntry if "sources" in location else kind)]


def _model(name: str, entry: _ModelEntry, defaults: _Defaults, folder: Path) -> Model:
    place: Location = ("models", name)
    _check_id(name, place)
    if entry.tiny is None and not entry.sources:
        raise Refusal(place, f"model {name!r} has no source", "add `tiny: {}` or `sources: [...]`")
    if entry.tiny is not None and entry.sources:
        raise Refusal(
            (*place, "tiny"), f"model {name!r} has both `tiny` and `sources`", "keep one of them"
        )
    if entry.layout:
        # Not at the top: it imports torch, which `conformance list` does not need.
        from conformance.spec.residual_stream import LAYOUTS

        if entry.layout not in LAYOUTS:
            words = f"unknown layout {entry.layout!r}"
            raise Refusal((*place, "layout"), words, f"one of: {', '.join(LAYOUTS)}")
    larger = [_GROWING[_GROWING.index(name) :] for name in entry.tiers if name in _GROWING]
    tiers = tuple(dict.fromkeys((*entry.tiers, *(name for names in larger for name in names))))
    same = {key: getattr(entry, key) for key in ("layout", "parts", "harder_than")}
    sources = _sources(entry, defaults, place, folder)
    return Model(name, entry.architecture or name, sources, tiers=tiers, **same)


def _sources(
    entry: _ModelEntry, defaults: _Defaults, place: Location, folder: Path
) -> tuple[Source, ...]:
    if entry.tiny is None:
        if entry.seed is not None:
            raise Refusal((*place, "seed"), "only a tiny model has a seed", "remove it")
        for key in ("adapter", "quantized"):
            if getattr(entry, key):
                words = f"only a tiny model's {key!r} is made here"
                raise Refusal((*place, key), words, "remove it")
        return tuple(
            _source(source, (*place, "sources", index), folder)
            for index, source in enumerate(entry.sources)
        )
    merged = {**defaults.tiny, **entry.tiny}
    config = {key: value for key, value in merged.items() if value is not None}
    mistakes = {"tiny": usable.tiny(config), "adapter": usable.adapter(entry.adapter)}
    for key, mistake in mistakes.items():
        if mistake:
            raise Refusal((*place, key, mistake.key), mistake.message, mistake.remedy)
    seed = defaults.seed if entry.seed is None else entry.seed
    return (Source("tiny", config, seed, entry.adapter, entry.quantized),)


def _source(entry: _SourceEntry, place: Location, folder: Path) -> Source:
    keys = {key.name for key in fields(entry) if getattr(entry, key.name)}
    kinds = sorted(keys & _NEEDED.keys())
    if len(kinds) != 1:
        naming = f"names {' and '.join(kinds)}" if kinds else "names no place"
        raise Refusal(place, f"the source {naming}", f"one of: {', '.join(_NEEDED)}")
    kind = kinds[0]
    needed = _NEEDED[kind]
    for key in needed:
        if key not in keys:
            raise Refusal(
                place, f"the {kind} source has no {key!r}", f"add `{key}:`, so that it is pinned"
            )
    for key in sorted(keys - {kind, *needed}):
        raise Refusal((*place, key), f"a {kind} source takes no {key!r}", "remove it")
    if kind == "wheel":
        whole = _piece(_PieceEntry(entry.wheel, entry.file, entry.sha256), place)
        return Source("wheel", pieces=(whole,))
    if kind == "wheels":
        pieces = [
            _piece(wheel, (*place, "wheels", index)) for index, wheel in enumerate(entry.wheels)
        ]
        return Source("wheel", pieces=tuple(pieces), sha256=entry.sha256)
    if kind == "hub":
        return Source("hub", repo=entry.hub, revision=entry.revision)
    try:
        return Source("path", file=str((folder / Path(entry.path).expanduser()).resolve()))
    except (OSError, RuntimeError, ValueError) as error:  # no such user's home, or a cycle of links
        raise Refusal((*place, "path"), f"{entry.path!r}: {error}", "name a folder") from None


def _piece(entry: _PieceEntry, place: Location) -> Piece:
    for key in _NEEDED["wheel"]:
        if not getattr(entry, key):
            raise Refusal((*place, key), f"{key!r} is empty", "fill it, so that it is pinned")
    if not re.fullmatch(PINNED, entry.wheel):
        raise Refusal((*place, "wheel"), f"{entry.wheel!r} is not pinned", "write name==version")
    return Piece(entry.wheel, entry.file, entry.sha256)


def _backend(name: str, entry: _BackendEntry) -> Backend:
    place: Location = ("backends", name)
    _check_id(name, place)
    if entry.engine not in ENGINES and not _ENGINE.fullmatch(entry.engine):
        raise Refusal(
            (*place, "engine"),
            f"unknown engine {entry.engine!r}",
            f"one of {', '.join(ENGINES)}, or module:function of your own",
        )
    return Backend(name, **{key.name: getattr(entry, key.name) for key in fields(entry)})


def _check_tiers(
    tiers: Mapping[str, Tier], models: Sequence[Model], backends: Sequence[Backend]
) -> None:
    known = dict.fromkeys(tier for model in models for tier in model.tiers)
    columns = [backend.id for backend in backends]
    for name, tier in tiers.items():
        for named in filter(None, (name, *tier.backends.values(), tier.kinds)):
            if named not in known:
                words = f"no model is in tier {named!r}"
                raise Refusal(("tiers", name), words, f"one of: {', '.join(known)}")
        for backend in tier.backends:
            if backend not in columns:
                words = f"there is no backend {backend!r}"
                raise Refusal(("tiers", name), words, f"one of: {', '.join(columns)}")


def _check_harder(models: Sequence[Model]) -> None:
    ids = [model.id for model in models]
    for model in models:
        if model.harder_than and model.harder_than not in ids:
            near = difflib.get_close_matches(model.harder_than, ids, 1)
            raise Refusal(
                ("models", model.id, "harder_than"),
                f"there is no model {model.harder_than!r}",
                f"did you mean {near[0]}?" if near else f"one of: {', '.join(ids)}",
            )


def _check_id(name: str, place: Location) -> None:
    if not _ID.fullmatch(name):
        raise Refusal(
            place, f"{name!r} cannot be an id", "letters, digits, '.', '_' and '-', not first"
        )


def _refusal(name: str, entry: _ModelEntry) -> Refusal | None:
    """Return why the installed transformers cannot make this model as it is described."""
    place: Location = ("models", name)
    architecture = entry.architecture or name
    known = usable.architectures()
    if known and architecture not in known:
        near = difflib.get_close_matches(architecture, sorted(known), 3)
        return Refusal(
            (*place, "architecture"),
            f"transformers knows no architecture {architecture!r}",
            f"did you mean {' or '.join(near)}?" if near else "write its `model_type`",
        )
    mistake = usable.unknown_key(entry.tiny or {}, architecture)
    return mistake and Refusal((*place, "tiny", mistake.key), mistake.message, mistake.remedy)
