"""A hook of mkdocs: links of a page that lead out of docs/ become links to the repository."""

from __future__ import annotations

import re
from typing import Any

_OUT = re.compile(r"\]\(\.\./([^)#\s]*)(#[\w-]+)?\)")
#: Folders below docs/ that are no pages of the site.
_RAW = re.compile(r"\]\(((?:upstream|gaps)/[^)#\s]*)(#[\w-]+)?\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """The page's text; without an address of the repository such links become plain words."""
    home = (config.get("repo_url") or "").rstrip("/")

    def link(path: str) -> str:
        return f"]({home}/blob/main/{path})" if home else "]"

    text = _OUT.sub(lambda found: link(found[1]), markdown)
    return _RAW.sub(lambda found: link(f"docs/{found[1]}"), text)
