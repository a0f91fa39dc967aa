"""The checkpoints themselves: built for every entry of the manifest, the same each time."""

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from conformance.engines.building import checkpoint_builder
from conformance.engines.building.adapters import adapter_of
from conformance.engines.reference.engine import load
from conformance.errors import ConformanceError
from conformance.spec.builtin.probe import PROBE
from conformance.spec.checkpoints import SEAL, cache_folder, locate, obtain
from conformance.spec.inputs import manifest
from conformance.spec.records import Backend, Job, Model, Source
from conformance.spec.scenario import PAIR

pytestmark = pytest.mark.engine

MODELS = {each.id: each for each in manifest.load(Path(__file__).parents[2] / "models.yaml").models}
TINY = [each for each in MODELS.values() if each.sources[0].kind == "tiny"]


def build(model, cache):
    return obtain(model, cache, checkpoint_builder.build)


def load_float32(path):
    """Load a checkpoint as transformers does."""
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=TINY, ids=lambda model: model.id)
def made(request, cache):
    """Build a tiny model. Of the module, so that the tests of one model follow each other."""
    return build(request.param, cache)


@pytest.fixture(scope="module")
def plain(made):
    """Load the model; no test may change it."""
    return load_float32(made.path)


@pytest.fixture(scope="module")
def tokenizer(made):
    return AutoTokenizer.from_pretrained(made.path)


def greedy(model, tokenizer, prompt, steps=8):
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=steps, do_sample=False)
    return out[0, ids.shape[1] :].tolist()


def holds(config, wanted):
    """Is every key of an entry in the config? A mapping may have got more of its own."""
    return all(
        holds(config[key], value) if isinstance(value, dict) else config[key] == value
        for key, value in wanted.items()
    )


def test_a_tiny_model_is_what_its_entry_says(made, request):
    config = AutoConfig.from_pretrained(made.path)
    wanted = request.node.callspec.params["made"]
    keys = dict(wanted.sources[0].config)
    unread = keys.pop(checkpoint_builder.UNREAD, {})
    assert config.model_type == made.architecture == wanted.architecture
    assert made.layers == config.num_hidden_layers >= 4
    assert made.width == config.hidden_size >= 256
    assert holds({key: getattr(config, key) for key in (*keys, *unread)}, {**keys, **unread})
    model = AutoModelForCausalLM.from_pretrained(made.path)
    floats = {each.dtype for each in model.parameters() if each.is_floating_point()}
    assert floats == {torch.bfloat16}


def test_a_tiny_model_hides_no_fault(plain, tokenizer):
    """No norm is the identity, no bias zero; tokens differ between steps and prompts."""
    floats = [each for each in plain.parameters() if each.is_floating_point()]
    vectors = [each for each in floats if each.ndim == 1]
    assert vectors
    assert all(each.std() > 0.02 for each in vectors)
    held = [each for each in plain.state_dict().values() if each.is_floating_point()]
    assert all(each.min() < each.max() for each in held if each.numel() > 1)
    continuations = [greedy(plain, tokenizer, prompt) for prompt in (*PAIR, PROBE)]
    assert all(len(tokens) == 8 for tokens in continuations)
    assert all(len(set(tokens)) > 1 for tokens in continuations)
    assert len({tuple(tokens) for tokens in continuations}) == 3


def test_a_tiny_model_never_ends_its_text(plain, tokenizer):
    """Eight greedy tokens are eight on every engine: no end is configured, and the one that
    the tokenizer has is never the likeliest.
    """
    assert plain.config.eos_token_id is None
    assert plain.generation_config.eos_token_id is None
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 0
    with torch.no_grad():
        logits = plain(tokenizer(PROBE, return_tensors="pt").input_ids).logits[0]
    # Some families scale their logits or add a bias: what counts is the distance.
    assert torch.all(logits.amax(-1) - logits[:, 0] > logits.std(-1))


def test_a_tiny_tokenizer_knows_every_id_and_every_text(made, tokenizer):
    assert len(tokenizer) == AutoConfig.from_pretrained(made.path).vocab_size == 512
    for text in (*PAIR, PROBE, "Ünïcode – 数, \t\n"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    ids = tokenizer(list(PAIR), padding=True).input_ids
    assert len(ids[0]) == len(ids[1])


def test_the_reference_computes_the_checkpoint_as_transformers_does(made, tokenizer):
    """In either precision, to the bit: nothing that bf16 rounds is rounded in float32 as well."""
    ids = tokenizer(PROBE, return_tensors="pt").input_ids
    for dtype in (torch.float32, torch.bfloat16):
        theirs = AutoModelForCausalLM.from_pretrained(
            made.path, dtype=dtype, attn_implementation="eager"
        ).eval()
        if (adapter := adapter_of(made.path)) is not None:
            theirs = PeftModel.from_pretrained(theirs, adapter).merge_and_unload()
        own = load(job_of(made.path), dtype, tokenizer)
        with torch.no_grad():
            assert torch.equal(own(ids).logits, theirs(ids).logits)


def test_an_adapter_changes_every_layer_and_lies_beside_the_weights(tmp_path):
    made = build(MODELS["llama-lora"], tmp_path)
    adapter = adapter_of(made.path)
    assert adapter is not None
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 8
    state = load_file(adapter / "adapter_model.safetensors")
    config = AutoConfig.from_pretrained(made.path)
    assert len(state) == 2 * 7 * config.num_hidden_layers
    assert all(len(value.unique()) > 1 for value in state.values()), "a matrix of PEFT's zeros"
    ids = torch.tensor([[5, 6, 7]])
    unmerged = load_float32(made.path)
    merged = load(job_of(made.path), torch.float32, AutoTokenizer.from_pretrained(made.path))
    with torch.no_grad():
        alone, merged = unmerged(ids).logits, merged(ids).logits
        unmerged.load_adapter(str(adapter))
        beside = unmerged(ids).logits
    assert (merged - beside).norm() < 1e-5 * beside.norm()
    assert (merged - alone).norm() > 0.1 * alone.norm()
    (adapter / "adapter_model.safetensors").write_bytes(b"another")
    assert locate(MODELS["llama-lora"], tmp_path) is None, "the seal does not cover it"


@pytest.mark.parametrize("made", [MODELS["llama-w4a16"]], indirect=True)
def test_weights_of_four_bits_are_packed_and_the_head_is_not(made):
    state = load_file(made.path / "model.safetensors")
    packed = [name for name in state if name.endswith(".weight_packed")]
    layers = AutoConfig.from_pretrained(made.path).num_hidden_layers
    assert len(packed) == 7 * layers and "lm_head.weight" in state
    whole = load_float32(made.path)
    with torch.no_grad():
        whole(torch.tensor([[1, 2]]))  # transformers unpacks them with the first forward
    weight = whole.model.layers[0].self_attn.q_proj.weight
    groups = weight.reshape(len(weight), -1, 32)
    assert max(len(group.unique()) for group in groups.flatten(0, 1)) <= 16


@pytest.mark.parametrize(
    ("architecture", "more", "words"),
    [
        ("llama", {"adapter": {"rank": 3}}, "PEFT makes no adapter"),
        ("llama", {"adapter": {"r": 2, "target_modules": ["none"]}}, "PEFT makes no adapter"),
        ("llama", {"quantized": {"weights": {"num_bits": "few"}}}, "no scheme of compressed-"),
        ("llama", {"quantized": {"weights": None}}, "says nothing of the weights"),
        # Transformers would ignore the first.
        ("llama", {"config": {"vocab_size": 512, "head_dimension": 64}}, "has no 'head_dimension'"),
        ("llamma", {"config": {"vocab_size": 512}}, "no architecture 'llamma'"),
        # Every byte needs an id.
        ("llama", {"config": {"vocab_size": 100}}, "a vocab_size of 257 or more"),
    ],
)
def test_what_makes_no_model_is_refused(tmp_path, architecture, more, words):
    source = replace(MODELS["llama-lora"].sources[0], **{"adapter": {}, **more})
    with pytest.raises(ConformanceError, match=words):
        build(Model("m", architecture, (source,)), tmp_path)


def test_a_build_is_the_same_each_time_and_another_seed_gives_another(tmp_path):
    model = MODELS["gemma2"]
    first = build(model, tmp_path / "a")
    torch.rand(3)
    assert build(model, tmp_path / "b").digest == first.digest
    other = replace(model, sources=(replace(model.sources[0], seed=12),))
    assert build(other, tmp_path / "a").digest != first.digest


def test_a_large_vocabulary_has_a_word_for_every_id_and_texts_are_read_as_ever(tmp_path):
    usual = MODELS["llama"].sources[0]
    large = replace(usual, config={**usual.config, "vocab_size": 5000})
    made = build(Model("m", "llama", (large,)), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    assert AutoConfig.from_pretrained(made.path).vocab_size == len(tokenizer) == 5000
    assert len({tokenizer.decode([number]) for number in range(1000, 5000)}) == 4000
    for text in (*PAIR, PROBE, "spare999"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert max(ids) < 600  # what the corpus fills


def test_a_local_folder_is_used_where_it_lies_and_as_what_it_is(tmp_path):
    original = build(MODELS["llama"], tmp_path)
    source = Source("path", file=str(original.path))
    found = build(Model("mine", "llama", (source,)), tmp_path)
    assert (found.path / "model.safetensors").resolve() == original.path / "model.safetensors"
    assert (found.layers, found.digest) == (original.layers, original.digest)
    AutoModelForCausalLM.from_pretrained(found.path)
    with pytest.raises(ConformanceError, match=r"is a llama, models\.yaml says gpt2"):
        build(Model("mine", "gpt2", (source,)), tmp_path)
    with pytest.raises(ConformanceError, match=r"holds no config\.json"):
        build(Model("mine", "gpt2", (replace(source, file=str(tmp_path)),)), tmp_path)


def test_a_revision_of_a_hub_is_fetched_without_what_no_engine_reads(tmp_path, monkeypatch):
    original = build(MODELS["llama"], tmp_path / "cache").path
    files = {path.name: path for path in original.iterdir() if path.is_file()}
    read = {name for name in files if name != SEAL} | {"model.safetensors.index.json"}
    others = {"pytorch_model.bin": original, "model.gguf": original}
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()

    def fetch(repo, *, revision, allow_patterns):
        assert (repo, revision) == ("owner/tiny", "c0ffee")
        wanted = filter_repo_objects([*read, *others], allow_patterns=allow_patterns)
        for name in wanted:
            (snapshot / name).write_bytes(files[name].read_bytes() if name in files else b"{}")
        return str(snapshot)

    called = mock.create_autospec(huggingface_hub.snapshot_download, side_effect=fetch)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", called)
    source = Source("hub", repo="owner/tiny", revision="c0ffee")
    found = build(Model("mine", "llama", (source,)), tmp_path / "other")
    assert (found.layers, found.source) == (4, "hub:owner/tiny@c0ffee")
    assert {path.name for path in found.path.iterdir()} == read | {SEAL}
    weights = found.path / "model.safetensors"
    assert weights.read_bytes() == files["model.safetensors"].read_bytes()


def job_of(folder):
    backend = Backend("build", "build")
    return Job("build", MODELS["llama"], backend, folder, folder / "out", folder / "scenarios", ())


def test_a_worker_builds_what_its_job_names(tmp_path):
    engine = checkpoint_builder.open_engine(job_of(tmp_path))
    found = locate(MODELS["llama"], tmp_path)
    identity = engine.group().identity
    engine.close()
    assert found is not None
    assert identity["path"] == str(found.path)
    assert (identity["digest"], identity["layers"], identity["width"]) == (found.digest, 4, 256)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers", "width", "words"),
    [
        # Without the token of beginning, which transformers' conversion leaves out, it babbles.
        ("gemma3-270m", 18, 640, " the capital of the country of France"),
        ("smollm2-135m", 30, 576, " Paris."),
        ("qwen2.5-coder-0.5b", 24, 896, " Paris. The capital of the United States is Washington"),
    ],
)
def test_a_real_model_is_the_published_one(name, layers, width, words):
    made = build(MODELS[name], cache_folder())
    assert (made.layers, made.width) == (layers, width)
    model = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    said = tokenizer.decode(greedy(model, tokenizer, "The capital of France is"))
    assert said.startswith(words)
    if name == "gemma3-270m":
        assert tokenizer("Hello").input_ids[0] == tokenizer.bos_token_id == 2
    if name != "smollm2-135m":
        return
    # What upstream's report of the aliasing fault gives for a clone.
    ids = tokenizer("Hello world", return_tensors="pt").input_ids
    embedded = model.get_input_embeddings()(ids).float()
    seen = [embedded.min().item(), embedded.max().item(), embedded.std().item()]
    assert seen == pytest.approx([-0.4785, 0.4141, 0.1096], abs=5e-5)
