"""The bench of the relay says by its exit code whether its bars are held."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCH = Path(__file__).parents[3] / "bench" / "relay.py"


def script():
    spec = importlib.util.spec_from_file_location("relay_bench", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bench(monkeypatch):
    """The script, on engines whose two stages take so many times as long as one."""
    module = script()
    lab = SimpleNamespace(engine=lambda _: None, close=lambda: None)
    monkeypatch.setattr(module, "Lab", lambda: lab)
    monkeypatch.setattr(module, "checkpoint", lambda _: "")
    monkeypatch.setattr(module, "sent", lambda _: (1, 1))

    def run(factors):
        def measure(engines, program, _):
            low, high = engines
            return {low: [0.01], high: [0.01 * factors.get(program, 1.0)]}

        monkeypatch.setattr(module, "measure", measure)
        return module.main(SimpleNamespace(model="llama", rounds=3))

    return run


@pytest.mark.parametrize(("factor", "code"), [(1.4, 0), (1.41, 1)])
def test_a_bar_that_is_not_held_fails(bench, capsys, factor, code):
    assert bench({"bench_read_all": factor, "bench_nothing": 9.0}) == code
    printed = capsys.readouterr().out
    assert "bar 1.7 held" in printed
    assert ("bar 1.4 NOT HELD" in printed) == bool(code)


@pytest.mark.parametrize(("reading", "code"), [(150.0, 0), (200.0, 1)])
def test_the_table_at_real_size_says_what_is_not_held(monkeypatch, capsys, reading, code):
    relay = script()
    times = {"no_block": 100.0, "touches_nothing": 120.0, "reads_all_layers": reading}
    monkeypatch.setattr(relay, "medians", lambda asked, out: times)
    arguments = SimpleNamespace(
        out=None, only=["PP=2 relay"], profile=[], layers=2, width=64, rounds=1
    )
    assert relay.real(arguments) == code
    assert ("NOT HELD" in capsys.readouterr().out) == bool(code)
