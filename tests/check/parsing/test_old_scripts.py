"""A script that traces at the top of the file is shown as a function: nothing of the experiment is
left out, and what is left out is said.

The function is run here beside the script, on a model that only notes: what the one saves the other
returns.
"""

import ast
import contextlib
import re
from pathlib import Path

import pytest

from conformance.check.parsing import old_scripts, source
from conformance.errors import ConformanceError


class Noted(str):
    """A value that knows what was done to get it."""

    __slots__ = ()

    def save(self):
        return self

    def item(self):
        return self


class Model:
    """Hands out tokenizers and values that are named after what ran before them."""

    def __init__(self):
        self.runs = []
        self.config = [4, 5, 6]

    @contextlib.contextmanager
    def trace(self, prompt):
        self.runs.append(prompt)
        yield self

    @contextlib.contextmanager
    def invoke(self, prompt):
        self.runs.append(prompt)
        yield self

    def read(self, *of):
        return Noted(f"{self.runs}{of}")

    def encode(self, text):
        return len(text)


def advised(folder, script):
    """What is said of a script, in words and as a function."""
    path = folder / "old.py"
    path.write_text(script)
    with pytest.raises(ConformanceError) as caught:
        source.read(path)
    words, _, shown = caught.value.remedy.partition("\n")
    return caught.value, words, "\n".join(line[6:] for line in shown.splitlines())


def numbers(text):
    """The line numbers in words such as "lines 3, 5-7"."""
    spans = [part.split("-") for part in re.findall(r"\d+(?:-\d+)?", text)]
    return {n for first, *last in spans for n in range(int(first), int((last or [first])[0]) + 1)}


def mended(script, words, shown):
    """The script as the words say: without the lines that go, and with the function."""
    gone = set()
    for said in re.findall(r"lines? [\d, -]+", words):
        gone |= numbers(said)
    rest = [line for n, line in enumerate(script.splitlines(), 1) if n not in gone]
    return "\n".join([*rest, shown]).replace("if __name__ == '__main__':\n", "\n") + "\n"


def both(folder, script, *, load="model = Model()"):
    """What a script's names hold, and what the function returns that it is advised to be."""
    was = {"Model": Model, "__name__": "__main__"}
    exec(script, was)
    _, words, shown = advised(folder, script)
    assert load not in shown
    text = mended(script, words, shown)
    now = {"Model": None, "__name__": "mine"}
    exec(text, now)
    returned = now["hf"](Model())
    assert returned == now["hf"](Model())  # nothing is left over of the first call
    return was, returned


HEAD = "model = Model()\nCLEAN, OTHER = 'clean', 'other'\n"

SCRIPTS = {
    "a loop of traces": (
        """\
found = []
for layer in [1, 2]:
    with model.trace(CLEAN):
        value = model.read(layer).save()
    found.append(value)
""",
        ["found"],
    ),
    "a loop below a trace": (
        """\
with model.trace(CLEAN):
    clean = model.read(0).save()
found = {}
for layer in [1, 2]:
    with model.trace(OTHER):
        value = model.read(clean, layer).save()
    found[layer] = value.item()
""",
        ["clean", "found"],
    ),
    "an if, a try, a while and another with": (
        """\
n = 0
while n < 2:
    n += 1
    try:
        if CLEAN:
            with contextlib.nullcontext(), model.trace(CLEAN):
                value = model.read(n).save()
    finally:
        pass
""",
        ["value"],
    ),
    "what is made of the model": (
        """\
sizes = model.config
assert len(sizes) == 3
tokenizer = model
MARY = tokenizer.encode(' Mary')
HALF, *REST = [size // 2 for size in sizes]
with model.trace(CLEAN):
    value = model.read(MARY, HALF, REST).save()
""",
        ["value"],
    ),
    "a helper of what is made of the model": (
        """\
MARY = model.encode(' Mary')
def twice(x, y=MARY):
    return f'{x}{other(x)}{y}'
def other(x):
    return f'{x}{MARY}'
def none(x, MARY):
    return MARY
with model.trace(CLEAN):
    value = model.read(twice(1), none(1, 2)).save()
""",
        ["value"],
    ),
    "a name that is bound again between": (
        """\
text = 'a'
with model.trace(text):
    first = model.read().save()
text = 'b'
with model.trace(text):
    second = model.read().save()
text = 'c'
""",
        ["first", "second"],
    ),
    "a name that is bound again above": (
        """\
n = 1
size = model.config[n]
n = 2
with model.trace(CLEAN):
    value = model.read(n, size).save()
""",
        ["value"],
    ),
    "lists that are filled above": (
        """\
found = []
found.append('first')
count = 0
count += 1
for _ in range(2):
    count += 1
    with model.trace(CLEAN) as tracer:
        with tracer.invoke(OTHER):
            found.append(model.read(count).save())
""",
        ["found"],
    ),
    "a function that traces, called in a loop": (
        """\
with model.trace(CLEAN):
    clean = model.read().save()
def run(layer, prompt=OTHER):
    with model.trace(prompt):
        value = model.read(layer).save()
    return value
found = []
for layer in [1, 2]:
    found.append(run(layer))
found_by = {layer: run(layer) for layer in [3, 4]}
""",
        ["clean", "found", "found_by"],
    ),
    "a function that is given what it traces": (
        """\
def run(what, text):
    with what.trace(text):
        value = what.read().save()
    return value
def twice(lm):
    return [run(lm, 'a'), run(text='b', what=lm)]
both = twice(model)
""",
        ["both"],
    ),
    "a text of several lines, and a decorated helper": (
        """\
def same(f):
    return f
k = model.encode('''a
 b
''')
@same
def helper():
    return '''x
  y''', k
with model.trace('''p

    q'''):
    value = model.read(helper())
    value.save()
""",
        ["value"],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_function_returns_what_the_script_saved(tmp_path, name):
    script, expected = SCRIPTS[name]
    was, returned = both(tmp_path, f"import contextlib\n{HEAD}{script}")
    assert sorted(returned) == expected
    assert returned == {key: was[key] for key in expected}


def test_what_only_a_scripts_own_run_traces_is_shown_too(tmp_path):
    inside = "with model.trace(text):\n    value = model.read(text).save()\n"
    main = "".join(
        f"    {line}\n" for line in ("model = Model()\ntext = 'a'\n" + inside).split("\n")
    )
    script = f"import contextlib\nif __name__ == '__main__':\n{main}"
    was, returned = both(tmp_path, script)
    assert returned == {"value": was["value"]}
    assert "traces as a script:" in advised(tmp_path, script)[0].message


def test_a_function_that_loads_its_own_model_is_not_guessed_at(tmp_path):
    main = "def main():\n    model = Model()\n    with model.trace('a'):\n        pass\n"
    error, words, shown = advised(tmp_path, f"{main}if __name__ == '__main__':\n    main()\n")
    assert "traces as a script" in error.message and error.line == 6
    assert "traced in what this line calls" in words and not shown


def test_a_helper_is_not_run_by_an_import(tmp_path):
    error, _, _ = advised(tmp_path, "def f(model):\n    with model.trace('a'):\n        pass\n")
    assert "has neither" in error.message


TRACED = "with model.trace('a'):\n    h = model.read().save()\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (HEAD + TRACED + "mean = h.mean()\nx = 1\nprint(mean)\n", "last trace (lines 5, 7)"),
        (HEAD + TRACED, "what loads the model (line 1), which"),
        (HEAD + TRACED + HEAD + TRACED, "`model` is bound again on line 5,"),
        (
            "for n in 'ab':\n    model = Model(n)\n    with model.trace(n):\n        pass\n",
            "again on lines 1-4",
        ),
        (HEAD + TRACED + TRACED.replace("model.t", "two.t"), "`two` is traced, too"),
        ("model, tok = load()\nx = tok('a')\n" + TRACED, "`tok` is bound where the model is"),
        (HEAD + "with model.trace('a'):\n    h = model.read()\n", "nothing is saved"),
        (TRACED.replace("model", "models[0]"), "what is `models[0]` here"),
    ],
)
def test_what_is_left_out_or_not_known_is_said(tmp_path, script, said):
    if "tok(" in script:
        script = script.replace("model.read()", "model.read(x)")
    assert said in advised(tmp_path, script)[1]


def test_what_is_nested_too_deeply_is_said(tmp_path):
    script = TRACED + "x = " + " + ".join(["h"] * 900) + "\n"
    assert "nested too deeply" in advised(tmp_path, script)[0].message


def test_the_line_is_that_of_the_trace(tmp_path):
    script = "model = Model()\nfor _ in range(2):\n    with model.trace('a'):\n        pass\n"
    assert advised(tmp_path, script)[0].line == 3


def test_the_docs_show_what_is_said():
    text = (Path(__file__).parents[3] / "docs" / "check.md").read_text()
    script, function = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    found = old_scripts.as_function(script, ast.parse(script))
    assert f"{found.function}\n" == function
    assert "in the place of lines 2-7;" in found.words and "(line 8)" in found.words
