"""Name values as the user does: by the Python expression that reaches them in the returned value.

A site stores a list index as a step and an integer dict key as a layer, whatever they mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from conformance.spec import loose_json
from conformance.spec.builtin.user_trace import CALLED
from conformance.spec.records import CHOSEN, Judged, Site

#: A suffix that hides generated ids from the judge, which would require their logits as well.
OWN = "_ids"


def plain(site: str) -> str:
    """Return a site in the form for the judge."""
    parsed = Site.parse(site)
    return str(replace(parsed, name=parsed.name + OWN)) if parsed.name in CHOSEN else site


@dataclass(frozen=True)
class Names:
    """The expression for each value, by site: `hidden[3]`, `patched[2]`, `steps[0]["mlp"]`."""

    called: Mapping[Site, str] = field(default_factory=dict)

    def of(self, site: Site) -> str:
        """Return the user's name for a value, or one made of its site: name, key and index."""
        if called := self.called.get(site):
            return called
        name = site.name.removesuffix(OWN) if site.name.removesuffix(OWN) in CHOSEN else site.name
        layer = "" if site.layer is None else f"[{site.layer}]"
        return f"{name}{layer}{f'[{site.step}]' if site.step else ''}"

    def whole(self, site: Site) -> str:
        """Return the user's name for the list or dict that contains a value."""
        return re.sub(r"\[\d+\]", "", self.of(site))

    def row(self, judged: Judged) -> Judged:
        """Return an observation under the user's name."""
        site = Site.parse(judged.site)
        called = self.called.get(site)
        several = any(other.prompt for other in self.called)
        prompt = f", prompt {site.prompt}" if several else ""
        return replace(judged, site=f"{called}{prompt}") if called else judged


def read(seen: Mapping[str, Tensor]) -> Names:
    """Return the names stored by transformers' worker. Raises ValueError if they are damaged."""
    text = seen.get(CALLED)
    if text is None:
        return Names()
    if text.is_floating_point() or text.is_complex() or text.dim() != 1:
        raise ValueError(f"{CALLED!r} is no text")
    called = loose_json.parsed(bytes(text.tolist()))
    if not isinstance(called, dict) or not all(isinstance(one, str) for one in called.values()):
        raise ValueError(f"{CALLED!r} holds no names")
    return Names({Site.parse(plain(site)): name for site, name in called.items()})
