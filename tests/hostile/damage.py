"""Valid documents → hostile ones: drawn by hypothesis, as bytes."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

#: A module that nothing may import, and a file that nothing may write, because a name says so.
CANARY = "hostile_canary"

#: Put into the text, because neither Python's writer nor hypothesis can hold them.
_DEEP, _DIGITS = "@@deep@@", "@@digits@@"

NAMES = st.sampled_from(
    [
        *("../../planted", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "a\0b", "-rf", "~root"),
        *("con\n", "x" * 5000, "\u202e\u0301é漢😀", "\ud800", "NaN", "latest", "1e999"),
        *(CANARY, f"{CANARY}:go", "os:system", f"__import__({CANARY!r})", f"$(touch {CANARY})"),
        *("{{ 7*7 }}", "<script>alert(1)</script>", f"file:///tmp/{CANARY}"),
    ]
)
NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, -0.0]) | st.floats(
    allow_nan=True, allow_infinity=True
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | NAMES | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
) | st.sampled_from([_DEEP, _DIGITS])
#: Other values of the same type.
ALIKE: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-3, 99) | NUMBERS,
    float: NUMBERS,
    str: NAMES | st.text("abc_-./", max_size=6),
    list: st.just([]),
    dict: st.just({}),
}
_BITS = st.sampled_from(
    [
        *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\t", b"\r", b"\n", b"\\ud800", b"\\u0000"),
        *(b"&a ", b"*a", b"<<: *a\n", b"%YAML 9.9\n", b"--- \n...\n---\n", b"? [", b": ", b"- "),
        *(b"!!python/object/apply:os.system [touch x]", b"!!binary ===", b"!!timestamp 9"),
        *(b"{", b"}", b"]", b'"', b"'", b"#", b"|\n"),
        *(b"1_0", b"0x", b"2020-13-45", b"1e99999999", b".nan"),
    ]
)


def _holders(tree: Any) -> list[tuple[Any, Any]]:
    """Return each place in a document: what holds it, and its key there."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    below = [tree[key] for key in keys if isinstance(tree[key], dict | list)]
    return [(tree, key) for key in keys] + [place for part in below for place in _holders(part)]


@st.composite
def trees(draw: st.DrawFn, whole: Any) -> Any:
    """A document with one to three things changed in its structure."""
    tree = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        places = _holders(tree)
        if not places:
            return draw(VALUES)
        above, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["value", "like", "like", "drop", "key", "wrap", "twice"])):
            case "value":
                above[key] = draw(VALUES)
            case "like" if type(above[key]) in ALIKE:
                above[key] = draw(ALIKE[type(above[key])])
            case "drop":
                del above[key]
            case "key" if isinstance(above, dict):
                above[draw(NAMES)] = above.pop(key)
            case "twice" if isinstance(above, list):
                above.append(copy.deepcopy(above[key]))
            case _:
                above[key] = draw(st.sampled_from([[above[key]], {"a": above[key]}]))
    return tree


def text_of(tree: Any, depth: int) -> bytes:
    """JSON, which is YAML too; with an int of many digits, and as deep as wanted."""
    text = json.dumps(tree).replace(f'"{_DIGITS}"', "7" * 6000)
    return text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth).encode("utf-8", "surrogatepass")


@st.composite
def bytes_of(draw: st.DrawFn, text: bytes) -> bytes:
    """A text with something put in, cut off, doubled or turned, anywhere."""
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["put", "put", "cut", "twice", "noise", "end", "many"])):
            case "put":
                text = text[:begin] + draw(_BITS) + text[begin:]
            case "cut":
                text = text[:begin] + text[end:]
            case "twice":
                text = text[:end] + text[begin:]
            case "noise":
                text = text[:begin] + draw(st.binary(max_size=8)) + text[end:]
            case "end":
                text = text[:begin]
            case _:
                text = text[:begin] + draw(_BITS) * 2000 + text[begin:]
    return text


def damaged(whole: Any, text: bytes) -> st.SearchStrategy[bytes]:
    """Draw damaged documents: in their structure, in their bytes, and bytes that are none. `text`
    is how a person writes `whole`.
    """
    structured = st.builds(text_of, trees(whole), st.sampled_from([5, 60, 400, 5000, 100_000]))
    bomb = b"".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n".encode()
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    odd = st.sampled_from(
        [
            *(b"", text.decode().encode("utf-16"), text + text, text * 300, bomb),
            *(b"[" * 200_000, b'{"a":' * 50_000, b"a: " * 50_000, b"- " * 50_000, b"a: &a [*a]\n"),
        ]
    )
    return st.one_of(*[structured] * 3, bytes_of(text), st.binary(max_size=100), odd)
