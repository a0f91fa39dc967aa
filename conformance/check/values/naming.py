"""Values as the user names them: in Python's own words, by what the function returned.

A site calls an entry of a list a step and a number of a dict a layer, which neither need be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from conformance import loose_json
from conformance.builtin.user_trace import CALLED
from conformance.records import CHOSEN, Judged, Site

#: The judge weighs generated ids by the logits beside them, which a user's trace need not have.
OWN = "_ids"


def plain(site: str) -> str:
    """A site as the judge gets it."""
    parsed = Site.parse(site)
    return str(replace(parsed, name=parsed.name + OWN)) if parsed.name in CHOSEN else site


@dataclass(frozen=True)
class Names:
    """How each value is reached, by site: `hidden[3]`, `patched[2]`, `steps[0]["mlp"]`."""

    called: Mapping[Site, str] = field(default_factory=dict)

    def of(self, site: Site) -> str:
        """A value in the user's words."""
        return self.called.get(site) or _guessed(site)

    def whole(self, site: Site) -> str:
        """All of the entries that such a value is one of."""
        found = self.called.get(site)
        bare = replace(site, layer=None, step=0)
        return re.sub(r"\[\d+\]", "", found) if found else _guessed(bare)

    def row(self, judged: Judged) -> Judged:
        """An observation under the user's name."""
        site = Site.parse(judged.site)
        called = self.called.get(site)
        several = any(other.prompt for other in self.called)
        prompt = f", prompt {site.prompt}" if several else ""
        return replace(judged, site=f"{called}{prompt}") if called else judged


def read(seen: Mapping[str, Tensor]) -> Names:
    """What transformers' worker said. Raises ValueError for a tensor that holds no names."""
    text = seen.get(CALLED)
    if text is None:
        return Names()
    if text.is_floating_point() or text.is_complex() or text.dim() != 1:
        raise ValueError(f"{CALLED!r} is no text")
    called = loose_json.parsed(bytes(text.tolist()))
    if not isinstance(called, dict) or not all(isinstance(one, str) for one in called.values()):
        raise ValueError(f"{CALLED!r} holds no names")
    return Names({Site.parse(plain(site)): name for site, name in called.items()})


def _guessed(site: Site) -> str:
    """A value by its site alone: name, key and entry."""
    name = site.name.removesuffix(OWN) if site.name.removesuffix(OWN) in CHOSEN else site.name
    layer = "" if site.layer is None else f"[{site.layer}]"
    step = f"[{site.step}]" if site.step else ""
    return f"{name}{layer}{step}"
