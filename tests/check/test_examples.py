"""The examples on real engines: the correct ones are the same, every mistake is found and named,
with the line that holds it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
MISTAKES = EXAMPLES / "mistakes"
COLUMNS = ("vllm-pp1", "vllm-pp2")

#: What is to be said of each mistake: the answer, and the first finding's kind.
TABLE = {
    "ablation": ("differs", "first-half"),
    "all_logits": ("differs", "logits"),
    "attribution": ("fails there", "error"),
    "batched_prompts": ("differs", "mlp"),
    "cache_layers": ("differs", "residual"),
    "chat_template": ("differs", "prompt"),
    "early_stop": ("fails there", "unsaved"),
    "generation": ("differs", "defaults"),
    "head_ablation": ("differs", "elsewhere"),
    "layer_input": ("differs", "positions"),
    "layer_off_by_one": ("differs", "mlp"),
    "lm_head": ("fails there", "error"),
    "logit_lens": ("differs", "mlp"),
    "not_cloned": ("differs", "alias"),
    "other_prompt": ("differs", "other-prompt"),
    "patching": ("differs", "first-half"),
    "patching_copy": ("differs", "partial"),
    "projections": ("fails there", "error"),
    "sae": ("differs", "model.norm"),
    "steering": ("differs", "twice"),
}


def check(files, *options):
    """The exit code and the answers, by file and column."""
    columns = [word for column in COLUMNS for word in ("-b", column)]
    command = [sys.executable, "-m", "conformance.cli", "check", *map(str, files), *columns]
    ran = subprocess.run(
        [*command, "-m", "llama", "--json", "--timeout", "300", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    answers = json.loads(ran.stdout)
    return ran.returncode, {(Path(one["file"]).stem, one["backend"]): one for one in answers}


def mistaken_line(path):
    [line] = [n for n, text in enumerate(path.read_text().splitlines(), 1) if "# mistake" in text]
    return line


def test_the_table_names_every_mistake():
    assert sorted(TABLE) == sorted(path.stem for path in MISTAKES.glob("*.py"))
    assert len(list(EXAMPLES.glob("*.py"))) >= 10


@pytest.mark.slow
@pytest.mark.engine
def test_correct_scripts_are_the_same():
    code, answers = check(sorted(EXAMPLES.glob("*.py")))
    assert {key: one["sentence"] for key, one in answers.items() if one["answer"] != "same"} == {}
    assert code == 0


@pytest.mark.slow
@pytest.mark.engine
def test_every_mistake_is_found_and_named_with_its_line():
    code, answers = check(sorted(MISTAKES.glob("*.py")))
    found = {
        key: (one["answer"], one["findings"][0]["kind"], one["findings"][0]["edit"]["line"])
        for key, one in answers.items()
    }
    wanted = {
        (name, column): (*said, mistaken_line(MISTAKES / f"{name}.py"))
        for name, said in TABLE.items()
        for column in COLUMNS
    }
    assert found == wanted
    assert code == 1
