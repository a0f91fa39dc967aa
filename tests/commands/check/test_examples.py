"""The examples on real engines: the correct ones are the same, every mistake is found and named,
with the line that holds it.
"""

from pathlib import Path

import pytest

from bench import check_examples as bench
from tests.commands.check import checked_scripts

ROOT = Path(__file__).parent.parent.parent.parent
EXAMPLES = ROOT / "examples"


def test_every_mistake_marks_one_line_and_no_correct_script_does():
    correct, mistakes = EXAMPLES.glob("*.py"), EXAMPLES.glob("mistakes/*.py")
    assert [bench.planted(path) for path in correct] == [None] * 12
    for path in mistakes:
        assert bench.planted(path) and path.read_text().count("# mistake") == 1, path


@pytest.mark.parametrize("model", checked_scripts.CORRECT)
def test_more_mistakes_mark_one_line_and_no_more_correct_script_does(model, tmp_path):
    for path in bench.scripts(checked_scripts.write(model, tmp_path)):
        marked = path.parent.name == "mistakes"
        assert bool(bench.planted(path)) is marked, path
        assert path.read_text().count("# mistake") == marked


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(
    ("examples", "model"),
    [(True, model) for model in bench.MODELS]
    + [(False, model) for model in checked_scripts.CORRECT],
)
def test_correct_scripts_are_the_same_and_every_mistake_is_named_with_its_line(
    examples, model, tmp_path
):
    files = bench.scripts(EXAMPLES if examples else checked_scripts.write(model, tmp_path))
    code, answers = bench.check(files, model)
    assert code == 1
    said = {key: bench.judged(Path(key[0]), answer) for key, answer in answers.items()}
    assert len(said) == 2 * len(files)
    assert {key: words for key, (right, words) in said.items() if not right} == {}
