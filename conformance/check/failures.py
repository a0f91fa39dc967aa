"""Why a user's function ended in an error, in a sentence, with the line and what mends it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.check.edits import Edit, is_layer
from conformance.check.findings import Finding, unfilled
from conformance.check.places import Places
from conformance.check.source import UserFile
from conformance.records import Outcome, Status

#: Characters of an engine's own words in a sentence.
_MOST = 160


@dataclass(frozen=True)
class Told:
    words: str
    findings: tuple[Finding, ...] = ()


#: What an error's words mean to somebody who ports a trace: a pattern, and a sentence.
_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        r"attribute '(?:q_proj|k_proj|v_proj)'",
        "vLLM merges query, key and value into one projection, `qkv_proj`; it returns a tuple",
    ),
    (
        r"attribute '(?:gate_proj|up_proj)'",
        "vLLM merges gate and up into one projection, `gate_up_proj`, which returns a tuple",
    ),
    (
        r"does not require grad|no grad|backward|requires_grad|inference tensor|\.grad\b",
        (
            "vLLM computes under inference mode: there are no gradients. Attribute by differences "
            "of forwards instead, or keep this on transformers"
        ),
    ),
    (
        r"lm_head",
        "vLLM does not call `lm_head` as a module: read `model.logits`, the last token's",
    ),
    (
        r"max_new_tokens",
        "vLLM calls it `max_tokens`",
    ),
    (
        r"attn_weights|attentions|output_attentions",
        "vLLM does not keep attention probabilities",
    ),
    (
        r"tuple.*(?:indices|no attribute|unsupported operand)|unsupported operand.*tuple",
        "on vLLM this module returns a tuple: take its parts by index",
    ),
    (
        r"too many indices for tensor of dimension 2",
        (
            "an index too many. What a layer of this transformers returns is the stream itself, "
            "[batch, tokens, width], and `output[0]` is its first prompt's; on vLLM there is no "
            "batch axis"
        ),
    ),
    (
        r"can't allocate memory|MemoryError|bad_alloc|[Oo]ut of memory|Cannot allocate memory",
        (
            "it takes more memory than a trace may, which is half of what is free and at most "
            "16 GiB. If it needs more, allow it: --memory GIB"
        ),
    ),
)


def explain(outcome: Outcome, file: UserFile, function: str, *, dual: bool = False) -> Told:
    """What to tell of a function that did not return values; `dual` as `Places` has it."""
    line = _line(f"{outcome.reason}\n{outcome.detail}", file)
    if outcome.status is Status.TIMEOUT:
        line = _hung(outcome.detail, file)
    # nnsight names an error of a block once more.
    reason = re.sub(r"^(\w+): \1: ", r"\1: ", outcome.reason.strip().partition("\n")[0])
    if outcome.status is Status.TIMEOUT:
        if "did not load" in reason:
            return Told(f"{reason}. If it only takes long, allow it more: --load-timeout SECONDS")
        words = (
            f"`{function}` does not come to an end: {reason}. If it only takes long, allow it "
            "more: --timeout SECONDS"
        )
        return Told(words, _at(line, file, "timeout", words))
    unsaved = re.search(r"(?:NameError: name|cannot access local variable) '(\w+)'", reason)
    if unsaved and _is_bound(file, function, unsaved[1]):
        return _unsaved(file, function, unsaved[1])
    replaced = _one_for_two(file, function) if dual else None
    if replaced is not None:
        words = f"{replaced.why} ({reason[:_MOST]})"
        return Told(words, (Finding("one-for-two", words, edit=replaced),))
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, f"{reason}\n{_own(outcome.detail)}"):
            words = f"{meaning} ({reason[:_MOST]})"
            return Told(words, _at(line, file, "error", meaning, _mended(pattern)))
    return Told(reason, _at(line, file, "error", reason))


def _one_for_two(file: UserFile, function: str) -> Edit | None:
    """The line that puts one tensor in the place of the two that a layer returns."""
    places = Places(file, function)
    for write in places.writes():
        statement = write.statement
        if not isinstance(statement, ast.Assign) or write.node is not statement.targets[0]:
            continue
        made = statement.value
        if (
            write.value == "output"
            and is_layer(write)
            and not isinstance(made, ast.Tuple | ast.Call)
        ):
            before = file.line(write.line)
            value = file.segment(made)
            target = f"{write.module}.output"
            after = before.replace(value, f"({value}, {target}[1] * 0)") if value in before else ""
            why = "on vLLM this layer returns (MLP output, residual), and one tensor is put there"
            return Edit(write.line, before, after, why)
    return None


def _own(detail: str) -> str:
    """The last lines of a traceback: what failed, without the way there."""
    return "\n".join(detail.strip().splitlines()[-3:])


def _mended(pattern: str) -> Callable[[str], str]:
    edits = {
        "lm_head": lambda text: re.sub(r"(\w+)\.lm_head\.output(\[:, -1\])?", r"\1.logits", text),
        "max_new_tokens": lambda text: text.replace("max_new_tokens", "max_tokens"),
    }
    return edits.get(pattern, lambda _: "")


def _at(
    line: int | None,
    file: UserFile,
    kind: str,
    words: str,
    mend: Callable[[str], str] = lambda _: "",
) -> tuple[Finding, ...]:
    if line is None:
        return ()
    before = file.line(line)
    after = mend(before)
    return (Finding(kind, words, edit=Edit(line, before, after if after != before else "")),)


def _line(detail: str, file: UserFile) -> int | None:
    """The last line of the user's file in a traceback: nnsight runs a block under a name of its
    own, with the numbers of the lines that it stands on and their text below.
    """
    name = rf'(?:[^"]*{re.escape(file.path.name)}|<[^">]+>)'
    found = re.findall(rf'File "{name}", line (\d+), in [^\n]+\n\s*([^\n]*)', detail)
    lines = file.text.splitlines()
    for number, text in reversed(found):
        near = [
            n for n, line in enumerate(lines, 1) if line.partition("#")[0].strip() == _bare(text)
        ]
        if near:
            return min(near, key=lambda n: abs(n - int(number)))
    return None


def _hung(detail: str, file: UserFile) -> int | None:
    """The line at which a worker's stacks say that the file was, when it was ended."""
    name = rf'(?:[^"]*{re.escape(file.path.name)}|<(?:edit|nnsight)[^">]*>)'
    numbers = map(int, re.findall(rf'File "{name}", line (\d+) in ', detail))
    return next((n for n in numbers if n <= len(file.text.splitlines())), None)


def _bare(text: str) -> str:
    return text.partition("#")[0].strip()


def _is_bound(file: UserFile, function: str, name: str) -> bool:
    return name in Places(file, function).assigned


def _unsaved(file: UserFile, function: str, name: str) -> Told:
    """A value of a block that was not saved is gone after it, and one that another block of the
    same trace makes is not there yet.
    """
    places = Places(file, function)
    statement = places.assigned[name][0]
    used = places.used_in_another_invoke(name)
    if used is not None:
        words = (
            f"`{name}` is made in one invoke (line {statement.lineno}) and used in another, and "
            "nothing says that the one comes first. Run two traces, one after the other: the first "
            "saves it, the second uses it. That works on vLLM too, where no value goes from one "
            "invoke to another"
        )
        edit = Edit(used, file.line(used))
        return Told(words, (Finding("crossing", words, name, edit=edit),))
    before = file.line(statement.lineno)
    words = f"`{name}` was not saved: nothing of a block is left after it but what `.save()` kept"
    code = before.partition("#")[0].rstrip()
    after = "" if ".save(" in before else f"{code}.save(){before[len(code) :]}"
    edit = Edit(statement.lineno, before, after)
    return Told(words, (Finding("unsaved", words, name, edit=edit),))


def emptied(file: UserFile, function: str, names: Sequence[str]) -> Told | None:
    """Why vLLM gives nothing under names that its function returns: what a block fills there."""
    places = Places(file, function)
    lost = next((told for name in names if (told := unfilled(places, name))), None)
    return Told(lost.words, (lost,)) if lost else None
