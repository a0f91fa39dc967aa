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
        "../../planted",
        "..",
        ".",
        "",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a\0b",
        "-rf",
        "~root",
        "con\n",
        "x" * 5000,
        "\u202e\u0301é漢😀",
        "\ud800",
        f"{CANARY}:go",
        CANARY,
        "os:system",
        f"__import__({CANARY!r})",
        f"$(touch {CANARY})",
        "{{ 7*7 }}",
        "<script>alert(1)</script>",
        f"file:///tmp/{CANARY}",
        "NaN",
        "latest",
        "1e999",
    ]
)

NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, -0.0]) | st.floats(
    allow_nan=True, allow_infinity=True
)

PLAIN = st.none() | st.booleans() | NUMBERS | NAMES | st.text(max_size=20)

VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
) | st.sampled_from([_DEEP, _DIGITS])


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, from its root."""
    found = [path]
    items: Any = ()
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    for key, part in items:
        found += places(part, (*path, key))
    return found


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _like(value: Any) -> st.SearchStrategy[Any]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.integers(-3, 99) | NUMBERS
    if isinstance(value, float):
        return NUMBERS
    if isinstance(value, str):
        return NAMES | st.text("abc_-./", max_size=6)
    return st.just([] if isinstance(value, list) else {})


@st.composite
def trees(draw: st.DrawFn, whole: Any) -> Any:
    """A document with one to three things changed in its structure."""
    tree = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(tree)))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                return draw(VALUES)
            continue
        above, key = _at(tree, path[:-1]), path[-1]
        match draw(st.sampled_from(["value", "like", "like", "drop", "key", "wrap", "twice"])):
            case "value":
                above[key] = draw(VALUES)
            case "like":
                above[key] = draw(_like(above[key]))
            case "drop":
                del above[key]
            case "key" if isinstance(above, dict):
                above[draw(NAMES)] = above.pop(key)
            case "twice" if isinstance(above, list):
                above.append(copy.deepcopy(above[key]))
            case _:
                above[key] = draw(st.sampled_from([[above[key]], {"a": above[key]}]))
    return tree


def text_of(tree: Any, depth: int) -> str:
    """JSON, which is YAML too; with an int of many digits, and as deep as wanted."""
    text = json.dumps(tree).replace(f'"{_DIGITS}"', "7" * 6000)
    return text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth)


_BITS = st.sampled_from(
    [
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"&a ",
        b"*a",
        b"<<: *a\n",
        b"!!python/object/apply:os.system [touch x]",
        b"!!binary ===",
        b"!!timestamp 9",
        b"%YAML 9.9\n",
        b"--- \n...\n---\n",
        b"? [",
        b"\t",
        b": ",
        b"{",
        b"}",
        b"]",
        b'"',
        b"'",
        b"\\ud800",
        b"\\u0000",
        b"\r",
        b"\n",
        b"#",
        b"- ",
        b"|\n",
        b"1_0",
        b"0x",
        b"2020-13-45",
        b"1e99999999",
        b".nan",
    ]
)


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
    structured = st.builds(text_of, trees(whole), st.sampled_from([5, 60, 400, 5000, 100_000])).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    )
    return st.one_of(
        structured, structured, structured, bytes_of(text), st.binary(max_size=100), _odd(text)
    )


def _odd(text: bytes) -> st.SearchStrategy[bytes]:
    odd = [
        b"",
        text.decode().encode("utf-16"),
        text + text,
        text * 300,
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b"a: " * 50_000,
        b"- " * 50_000,
        b"a: &a [*a]\n",
        b"".join(
            f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n".encode()
            for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ]
    return st.integers(0, len(odd) - 1).map(lambda index: odd[index])
