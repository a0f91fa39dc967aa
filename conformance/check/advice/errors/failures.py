"""Why a user's function ended in an error, in a sentence, with the line and what mends it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.check.advice.edits import Edit, is_layer, replaced
from conformance.check.advice.errors import between_invokes, weights
from conformance.check.advice.errors.error_meanings import (
    ADAPTER,
    EMPTY,
    HEAD,
    LAYER_LISTS,
    MEANINGS,
    TOO_MANY,
    TOO_MANY_THERE,
    mended,
)
from conformance.check.advice.finding import Finding
from conformance.check.advice.findings import unfilled
from conformance.check.advice.reads import batch_axis, handed_logits, last_logits
from conformance.check.advice.reads.other_sources import kind_of, module_text
from conformance.check.advice.writes.precisions import PRECISION, uncast
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import READ, Places
from conformance.check.parsing.sent_blocks import line_of
from conformance.check.parsing.source import UserFile
from conformance.records import Outcome, Status

#: Characters of an engine's own words in a sentence.
_MOST = 160

#: How an error says that a tensor has other axes than the code takes or goes over.
_SHAPES = (
    r"too many indices|[Ii]ndex\w* .*out of (?:range|bounds)|Dimension out of range|equal size|"
    r"sizes? of tensor|shapes? cannot be multiplied|shape mismatch|must match|expanded size|"
    r"inconsistent tensor size|invalid for input of size|exceeds dimension size|size mismatch|"
    r"number of (?:dimensions|subscripts)|does(?: not|n't) match the (?:broadcast |number|shape)|"
    r"\b0-d\w* tensor|must be a [23]D tensor|\dD tensors? expected|[Nn]ormalized_shape|split_sizes|"
    r"cannot be converted to Scalar"
)

#: What nnsight says before the frames of a block that failed in an engine.
_BLOCK = "Intervention traceback:"

#: How nnsight names a value that comes too late: its module's path, and what of it.
_LATE = r"'([\w.]+)\.(\w+)\.i\d+' was requested but the model already ran past"


@dataclass(frozen=True)
class Told:
    words: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Failed:
    """A run of a function that returned no values: on vLLM where it was `there`, where layers
    return a stream in two halves if they are `dual`, and no batch axis if they are `flat`; the
    model's layers are at `layer_list`.
    """

    outcome: Outcome
    file: UserFile
    function: str
    there: bool = False
    dual: bool = False
    layer_list: str = ""
    flat: bool = True

    @property
    def reason(self) -> str:
        """The first line of what was raised. nnsight names an error of a block once more."""
        first = self.outcome.reason.strip().partition("\n")[0]
        return re.sub(r"^(\w+): \1: ", r"\1: ", first)

    @property
    def line(self) -> int | None:
        """Of the user's file, where it is known."""
        if self.outcome.status is Status.TIMEOUT:
            return _hung(self.outcome.detail, self.file)
        detail = f"{self.outcome.reason}\n{self.outcome.detail}"
        places = Places(self.file, self.function)
        put = _put(detail, places) if self.there else None
        return _read_late(self.reason, detail, places) or put or _line(detail, self.file)

    @property
    def blamed(self) -> int | None:
        """The line of the user's file that is otherwise than in `hf`, as far as it is known."""
        return self.handed or self.line

    @property
    def handed(self) -> int | None:
        """The line of the function that called what failed, where that is a function which `hf`
        uses as well: it is right for what `hf` hands to it.
        """
        if not self.there or not self.file.ported:
            return None
        mine, theirs = (Places(self.file, one).scopes for one in (self.function, "hf"))
        frames = _lines(f"{self.outcome.reason}\n{self.outcome.detail}", self.file)
        first = next(frames, None)
        if first is None or (mine.holds(first) and not theirs.holds(first)):
            return None
        if _takes_values(mine.function_at(first)):
            return None  # which it does itself
        return next((n for n in frames if mine.holds(n) and not theirs.holds(n)), None)


def explain(failed: Failed) -> Told:
    """What to tell of a function that did not return values."""
    for tell in _TELLS:
        told = tell(failed)
        if told is not None:
            return told
    if failed.handed is not None:
        return _handed(failed, failed.handed)
    return Told(failed.reason, _at(failed.line, failed.file, "error", failed.reason))


def _handed(failed: Failed, line: int) -> Told:
    """A function that both sides use fails here alone: of the line that calls it."""
    words = (
        f"line {failed.line} fails in what `hf` calls as well, and not there: line {line} gives it "
        f"another thing ({failed.reason})"
    )
    return Told(words, _at(line, failed.file, "error", words))


def _late(failed: Failed) -> Told | None:
    if failed.outcome.status is not Status.TIMEOUT:
        return None
    if "did not load" in failed.reason:
        return Told(
            f"{failed.reason}. If it only takes long, allow it more: --load-timeout SECONDS"
        )
    words = (
        f"`{failed.function}` has not come to an end: {failed.reason}. If it only takes long (on "
        "transformers it runs a dozen times, for the truth and its floor), allow it more: "
        "--timeout SECONDS"
    )
    return Told(words, _at(failed.line, failed.file, "timeout", words))


def _not_come_back(failed: Failed) -> Told | None:
    """It uses a list or a dict that a block fills, which is empty then."""
    if not failed.there or not re.search(EMPTY, failed.reason):
        return None
    places = Places(failed.file, failed.function)
    crosses = between_invokes.finding(places, failed.line)
    lost = crosses or unfilled(places, "", line=failed.line)
    return Told(f"{lost.words} ({failed.reason[:_MOST]})", (lost,)) if lost else None


def _known(failed: Failed) -> Told | None:
    for pattern, meaning in MEANINGS:
        if re.search(pattern, f"{failed.reason}\n{_own(failed.outcome.detail)}"):
            if pattern == HEAD and not _runs_the_head(failed):
                continue
            said = TOO_MANY_THERE if pattern == TOO_MANY and failed.there else meaning
            words = f"{said} ({failed.reason[:_MOST]})"
            first = _at(failed.blamed, failed.file, "error", said, mended(pattern))
            return Told(words, first + _again(failed, first, said, mended(pattern)))
    return None


def _runs_the_head(failed: Failed) -> bool:
    """Does the function call the head, or take what it returns or is given? Its weights are there
    without. Where it is known which statement failed, that one does.
    """
    places = Places(failed.file, failed.function)
    used = [node for node in places.scopes.nodes() if _of_the_head(places, node)]
    statements_with = [places.scopes.statement_of(node) for node in used]
    lines = {n for one in statements_with for n in range(one.lineno, (one.end_lineno or 0) + 1)}
    raised = failed.line is not None and not re.search(HEAD, failed.reason)
    return failed.line in lines if raised else bool(lines)


def _of_the_head(places: Places, node: ast.AST) -> bool:
    """Is it a call of the head, or a value of it?"""
    if isinstance(node, ast.Call):
        part = node.func
    elif isinstance(node, ast.Attribute) and node.attr in {"output", "input", "inputs"}:
        part = node.value
    else:
        return False
    if isinstance(part, ast.Name):
        made = places.assigned.get(part.id, [])
        held = statements.value_of(made[0]) if len(made) == 1 else None
        part = held if held is not None else part
    return isinstance(part, ast.Attribute) and part.attr == HEAD


def _of_the_logits(failed: Failed) -> Told | None:
    """It takes a token of the model's logits, which are the last one's there."""
    line = failed.blamed
    if not failed.there or not failed.file.ported or not re.search(_SHAPES, failed.reason):
        return None
    places = Places(failed.file, failed.function)
    too_many = re.search(TOO_MANY, failed.reason)
    edit = last_logits.indexed(places, failed.line) if too_many else None
    edits = [edit] if edit else handed_logits.misread(places, line) if line else []
    return _every("logits", edits, failed)


def _every(kind: str, edits: Sequence[Edit], failed: Failed) -> Told | None:
    """One cause by several lines, of which the first is the one that failed."""
    if not edits:
        return None
    words = f"{edits[0].why} ({failed.reason[:_MOST]})"
    others = (Finding(kind, f"line {one.line} does the same", edit=one) for one in edits[1:])
    return Told(words, (Finding(kind, words, edit=edits[0]), *others))


def _axis(failed: Failed) -> Told | None:
    """It counts a batch axis that is not there, or not any more: all such places are shown."""
    if not failed.file.ported or not re.search(_SHAPES, failed.reason):
        return None
    places = Places(failed.file, failed.function, dual=failed.dual, flat=failed.flat)
    line = failed.blamed
    lost = batch_axis.lost(places) if failed.there else batch_axis.doubled(places)
    proven = failed.there or any(one.edit.line == failed.line for one in lost)
    if not lost or not proven:  # some layers do return a tuple on transformers
        perhaps = batch_axis.perhaps(places, line) if failed.there else None
        return _every("axis", [perhaps] if perhaps else [], failed)
    edits = sorted((one.edit for one in lost), key=lambda one: one.line != line)
    return _every("axis", edits, failed)


def _again(
    failed: Failed, first: tuple[Finding, ...], words: str, mend: Callable[[str], str]
) -> tuple[Finding, ...]:
    """The other lines of the function that are mended in the same way: each would end the next
    run.
    """
    if not first or first[0].edit is None or not first[0].edit.after:
        return ()
    roots = Places(failed.file, failed.function).scopes.roots
    lines = {n for one in roots for n in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    others = sorted(lines - {failed.blamed})
    return tuple(each for n in others for each in _mended(n, failed.file, words, mend))


def _mended(
    line: int, file: UserFile, words: str, mend: Callable[[str], str]
) -> tuple[Finding, ...]:
    found = _at(line, file, "error", words, mend)
    return found if found and found[0].edit is not None and found[0].edit.after else ()


def _one_for_two(failed: Failed) -> Told | None:
    """It puts one tensor in the place of the two that a layer returns."""
    edit = _single(failed.file, failed.function) if failed.dual else None
    if edit is None:
        return None
    words = f"{edit.why} ({failed.reason[:_MOST]})"
    return Told(words, (Finding("one-for-two", words, edit=edit),))


def _precision(failed: Failed) -> Told | None:
    """It puts float32 values where the model computes in bf16."""
    if not re.search(r"same dtype|mat1 and mat2 must have|dtype.*!= ?(?:c10::)?\w+", failed.reason):
        return None
    words = f"{PRECISION} ({failed.reason[:_MOST]})"
    edit = uncast(Places(failed.file, failed.function))
    found = (Finding("precision", words, edit=edit),) if edit else ()
    return Told(words, found or _at(failed.blamed, failed.file, "precision", PRECISION))


def _single(file: UserFile, function: str) -> Edit | None:
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
            and (not isinstance(made, ast.Tuple | ast.Call) or statements.single(made))
        ):
            before = file.line(write.line)
            target, summed = f"{write.module}.output", file.segment(made)
            for read in places.accesses(statement):
                if is_layer(read) and read.value == "output" and read.index is None:
                    both = f"({read.module}.output[0] + {read.module}.output[1])"
                    summed = re.sub(rf"{re.escape(read.module)}\.output\b(?!\[)", both, summed)
            after = replaced(places, made, f"({summed}, {target}[1] * 0)")
            after = "" if statements.single(made) else after  # which half it is meant for?
            why = "on vLLM this layer returns (MLP output, residual), and one tensor is put there"
            return Edit(write.line, before, after, why)
    return None


def _own(detail: str) -> str:
    """The last lines of a traceback: what failed, without the way there."""
    return "\n".join(detail.strip().splitlines()[-3:])


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
    """The last line of the user's file in a traceback."""
    return next(_lines(detail, file), None)


def _lines(detail: str, file: UserFile) -> Iterator[int]:
    """The lines of the user's file in a traceback, from the last one back: nnsight runs a block
    under a name of its own, with the numbers of the lines that it stands on and their text below,
    both as it sent them.
    """
    name = rf'(?:[^"]*{re.escape(file.path.name)}|<[^">]+>)'
    frame = rf'File "({name})", line (\d+), in [^\n]+\n( *)([^\n]*)(?:\n([ ~^]+)$)?'
    lines = file.text.splitlines()
    for found in reversed(list(re.finditer(frame, detail, re.MULTILINE))):
        place, number, indent, text, marks = found.groups(default="")
        if place.startswith("<"):
            start = len(marks) - len(marks.lstrip()) - len(indent)
            sent = line_of(file.text, int(number), text, (start, len(marks.rstrip()) - len(indent)))
            if sent is not None:
                yield sent
                continue
        near = [
            n for n, line in enumerate(lines, 1) if line.partition("#")[0].strip() == _bare(text)
        ]
        if near:
            yield min(near, key=lambda n: abs(n - int(number)))


def _put(detail: str, places: Places) -> int | None:
    """The one line that puts a value in the place of a module's, where nnsight failed to: it does
    when the module is run, and no statement is under way then.
    """
    _, told, frames = detail.rpartition(_BLOCK)
    if not told or not re.search(r"in widen\n", frames) or 'File "<' in frames:
        return None
    lines = {
        one.line
        for one in places.writes()
        if isinstance(one.statement, ast.Assign) and one.node is one.statement.targets[0]
    }
    return lines.pop() if len(lines) == 1 else None


def _takes_values(function: ast.stmt | None) -> bool:
    """Does a function take values of the model's modules itself?"""
    every = ast.walk(function) if function is not None else ()
    return any(isinstance(one, ast.Attribute) and one.attr in READ for one in every)


def _read_late(reason: str, detail: str, places: Places) -> int | None:
    """The line that takes the value that a block asked for too late: at which the block waited for
    it, where that line may take it, or else the one that does.
    """
    asked = re.search(_LATE, reason)
    if asked is None:
        return None
    module, value = re.sub(r"\.(\d+)", r"[\1]", asked[1]), asked[2]
    number = re.search(r"\[(\d+)\]", module)
    sure, perhaps = set(), set()
    for one in places.accesses():
        text = module_text(places, one)
        elsewhere = number is not None and one.layer not in {None, int(number[1])}
        if one.value != value or elsewhere:
            continue
        if "." not in text:
            perhaps.add(one.line)  # what a loop or a helper gives it
        elif kind_of(text).rpartition(".")[2] == kind_of(module).rpartition(".")[2]:
            sure.add(one.line)
    waited = _line(detail, places.file)
    if waited in sure | perhaps:
        return waited
    return sure.pop() if len(sure) == 1 and not perhaps else None


def _hung(detail: str, file: UserFile) -> int | None:
    """The line at which a worker's stacks say that the file was, when it was ended."""
    name = rf'(?:[^"]*{re.escape(file.path.name)}|<(?:edit|nnsight)[^">]*>)'
    numbers = map(int, re.findall(rf'File "{name}", line (\d+) in ', detail))
    return next((n for n in numbers if n <= len(file.text.splitlines())), None)


def _bare(text: str) -> str:
    return text.partition("#")[0].strip()


def _undefined(failed: Failed, places: Places) -> str:
    """The variable of the function that has no value where it is used, "" for no such error. What
    another function binds is no variable of the line that failed: Python says so.
    """
    unknown = re.search(r"(?:NameError: name|cannot access local variable) '(\w+)'", failed.reason)
    name = unknown[1] if unknown else ""
    within = failed.line is None or places.scopes.holds(failed.line)
    return name if within and name in places.assigned else ""


def _crossing(failed: Failed) -> Told | None:
    """A value that another invoke of the same trace makes is not there yet."""
    places = Places(failed.file, failed.function)
    name = _undefined(failed, places)
    used = places.used_in_another_invoke(name)
    if used is None:
        return None
    made = _nearest(places.assigned[name], failed.line).lineno
    words = (
        f"`{name}` is made in one invoke (line {made}) and used in another, and "
        "nothing says that the one comes first. Run two traces, one after the other: the first "
        "saves it, the second uses it. That works on vLLM too, where no value goes from one "
        "invoke to another"
    )
    edit = Edit(used, failed.file.line(used))
    return Told(words, (Finding("crossing", words, name, edit=edit),))


def _unsaved(failed: Failed) -> Told | None:
    """A value of a block that was not saved is gone after it."""
    file, places = failed.file, Places(failed.file, failed.function)
    name = _undefined(failed, places)
    lost = places.scopes.left_behind(name, failed.line)
    if not lost:
        return None
    statement = _nearest(lost, failed.line)
    early = _saved_early(places, statement, name)
    if early is not None:
        return Told(early.words, (early,))
    before, value = file.line(statement.lineno), _bound_to(statement, name)
    if value is not None and statements.saves(value):
        return None  # it is saved where it is made, and that was not run
    words = f"`{name}` was not saved: nothing of a block is left after it but what `.save()` kept"
    after = ""
    if value is not None and ".save(" not in before:
        after = replaced(places, value, f"{file.operand(value)}.save()")
    edit = Edit(statement.lineno, before, after)
    return Told(words, (Finding("unsaved", words, name, edit=edit),))


def _nearest(made: Sequence[ast.stmt], line: int | None) -> ast.stmt:
    """The last of these above a line, or the first of all."""
    above = [one for one in made if line is not None and one.lineno < line]
    return above[-1] if above else made[0]


def _adapted(failed: Failed) -> Told | None:
    """It names what the adapter has not: which words there are, and where every module is."""
    if failed.file.ported:
        return None
    for kind, what, words in ADAPTER:
        absent = re.search(rf"'{kind}' object has no attribute '(\w+)'", failed.reason)
        if absent is not None:
            said = (
                f"{what} has no `{absent[1]}`, but: {words}. Every module of the model is reached "
                "by two functions, `hf(model)` and `vllm(model)`, in the place of `trace(lm)`"
            )
            return Told(said, _at(failed.line, failed.file, "adapter", said))
    return None


def _bound_to(statement: ast.stmt, name: str) -> ast.expr | None:
    """What a statement binds to this name of those that it binds, where that is known."""
    if not isinstance(statement, ast.Assign):
        return None
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Tuple):
        return value if isinstance(target, ast.Name) else None
    if not isinstance(value, ast.Tuple):
        return None
    pairs = zip(target.elts, value.elts, strict=False)
    return next((v for t, v in pairs if ast.unparse(t) == name), None)


def _saved_early(places: Places, statement: ast.stmt, name: str) -> Finding | None:
    """What a name is bound to is made of something that was saved, and is itself not saved."""
    value = _bound_to(statement, name)
    if value is None:
        return None
    inner, by = statements.saved_before(value)
    if not inner:
        return None
    words = (
        f"`{name}` was not saved: `.save()` keeps what stands right before it, and {by} around it "
        "makes another value, which nothing keeps. Save the whole: in parentheses, with `.save()` "
        "behind them"
    )
    text = places.file.segment(value)
    for call in inner:
        kept = call.args[0] if call.args else getattr(call.func, "value", call)
        text = text.replace(places.file.segment(call), places.file.operand(kept))
    bare = places.file.operand(value) == places.file.segment(value)
    whole = text if bare else f"({text})"
    after = replaced(places, value, f"{whole}.save()")
    edit = Edit(value.lineno, places.file.line(value.lineno), after)
    return Finding("unsaved", words, name, edit=edit)


def _away(failed: Failed) -> Told | None:
    """It computes with the model where none is."""
    if not failed.there or not re.search(r"\bmeta\b", failed.reason):
        return None
    edits = [one for _, one in weights.outside(Places(failed.file, failed.function))]
    edits.sort(key=lambda one: one.line != failed.line)
    words = f"{weights.INSIDE} ({failed.reason[:_MOST]})"
    if not edits:
        return Told(words, _at(failed.line, failed.file, "weights", words))
    others = (Finding("weights", f"line {e.line} does the same", edit=e) for e in edits[1:])
    return Told(words, (Finding("weights", words, edit=edits[0]), *others))


def emptied(file: UserFile, function: str, names: Mapping[str, str]) -> Told | None:
    """Why vLLM gives nothing under names that its function returns, with what the user calls them:
    what a block fills there.
    """
    places = Places(file, function)
    lost = next((told for name in names if (told := unfilled(places, name, names[name]))), None)
    return Told(lost.words, (lost,)) if lost else None


def _other_path(failed: Failed) -> Told | None:
    """It names the layers of another family's model, which are elsewhere in this one."""
    line, layer_list = failed.line, failed.layer_list
    absent = re.search(r"AttributeError: .*attribute '(\w+)'", failed.reason)
    if line is None or absent is None or not layer_list:
        return None
    before = failed.file.line(line)
    for path in sorted(LAYER_LISTS - {layer_list}, key=len, reverse=True):
        named = rf"(?<=\.){re.escape(path)}\b"
        if absent[1] in path.split(".") and re.search(named, before):
            words = f"this model's layers are at `{layer_list}`, and not at `{path}`"
            edit = Edit(line, before, re.sub(named, layer_list, before))
            return Told(f"{words} ({failed.reason[:_MOST]})", (Finding("path", words, edit=edit),))
    return None


#: The first that knows the failure tells it.
_TELLS = (
    _late,
    _crossing,
    _unsaved,
    _adapted,
    _other_path,
    _away,
    _not_come_back,
    _of_the_logits,
    _axis,
    _one_for_two,
    _precision,
    _known,
)
