"""Each adapter says a program in its library's own words; the libraries are played here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Self

import pytest
import torch

from conformance.engines import LIBRARIES, Refused
from conformance.engines.libraries.adapter import PromptBatch
from conformance.spec.programs import Acts, Do, ModelPart, Operation, Program, Tokens
from tests.spec.programs.toy import library_job

WIDTH = 4
TEXTS = ["One", "One two three"]


def adapter(monkeypatch: pytest.MonkeyPatch, engine: str, **members: Any) -> ModuleType:
    """The adapter's module, over a library that has these members."""
    path = LIBRARIES[engine]
    name = path.rpartition(".")[2]
    for whole in (name, f"{name}.model_bridge"):
        module = ModuleType(whole)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, whole, module)
    monkeypatch.delitem(sys.modules, path, raising=False)
    return importlib.import_module(path)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No test leaves an adapter behind that knows a library that was played."""
    yield
    for path in LIBRARIES.values():
        sys.modules.pop(path, None)


def batch(places: list[tuple[str, int | None]], steps: int = 1) -> PromptBatch:
    """Every prompt sets what it meets there to zero."""
    visits = [{place: lambda _, rows: rows * 0 for place in places} for _ in TEXTS]
    made = PromptBatch(TEXTS, visits, steps)
    made.lengths = [len(text.split()) for text in TEXTS]
    return made


class Bridge:
    """Of TransformerLens: what was asked of it."""

    def __init__(self) -> None:
        self.cfg = SimpleNamespace(n_layers=3)
        self.original_model = torch.nn.Linear(1, 1)
        self.processed = False
        self.hooked: list[tuple[str, Callable[..., Any]]] = []
        self.given: dict[str, Any] = {}

    def enable_compatibility_mode(self, **_: Any) -> None:
        self.processed = True

    def to_tokens(self, texts: Any, *, prepend_bos: bool, padding_side: str = "") -> torch.Tensor:
        assert not prepend_bos
        if isinstance(texts, str):
            return torch.tensor([[7] * len(texts.split())])
        assert padding_side == "left"
        return torch.tensor([[0, 0, 7], [7, 7, 7]])

    @contextmanager
    def hooks(self, *, fwd_hooks: list[tuple[str, Callable[..., Any]]]) -> Iterator[None]:
        self.hooked = fwd_hooks
        yield

    def generate(self, **given: Any) -> Any:
        self.given = given
        self.changed = [hook(torch.ones(2, 3, WIDTH), hook=None) for _, hook in self.hooked]
        steps = given["max_new_tokens"]
        logits = [torch.full((2, 5), float(step)) for step in range(steps)]
        return SimpleNamespace(
            sequences=torch.arange(2 * (3 + steps)).reshape(2, -1), logits=logits
        )


@pytest.fixture
def bridged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    bridge = Bridge()
    fake = SimpleNamespace(boot_transformers=lambda path, dtype: bridge)
    module = adapter(monkeypatch, "transformer-lens", TransformerBridge=fake)
    return lambda **options: (module.Bridge(library_job("transformer-lens", **options)), bridge)


def test_transformer_lens_is_told_hook_names_tokens_and_their_mask(bridged):
    library, bridge = bridged()
    ends = library.run(batch([("stream", 1), ("input", 2)], steps=2))
    assert [name for name, _ in bridge.hooked] == [
        "blocks.1.hook_resid_post", "blocks.2.hook_resid_pre",
    ]  # fmt: skip
    assert bridge.given["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]
    assert not bridge.given["do_sample"] and not bridge.given["stop_at_eos"]
    assert not bridge.changed[0][0, 2].any() and bridge.changed[0][0, :2].all()
    assert [[int(token) for token in end.tokens] for end in ends] == [[3, 4], [8, 9]]
    assert library.tokenize("One two") == [7, 7] and not bridge.processed


def test_transformer_lens_is_given_texts_or_processes_weights_where_that_is_asked(bridged):
    library, bridge = bridged(texts=True, compatibility=True)
    library.run(batch([]))
    assert bridge.given["input"] == TEXTS and "attention_mask" not in bridge.given
    assert bridge.given["prepend_bos"] is False
    assert bridge.processed and library.identity()["weights"] == "processed"


def test_a_place_that_a_library_has_no_name_for_is_refused(bridged):
    library, _ = bridged()
    with pytest.raises(Refused, match="no name for this place: norm"):
        library.run(batch([("norm", None)]))


class Hooks:
    made: ClassVar[list[tuple[Any, str, Callable[..., Any]]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def write(self, module: Any, act: Callable[..., Any], *, point: str) -> None:
        self.made.append((module, point, act))


def test_interp_engine_is_told_points_and_takes_the_prompts_one_by_one(monkeypatch):
    model = SimpleNamespace(
        n_layers=3, dtype="torch.float32", attn_implementation="sdpa",
        to_tokens=lambda text, prepend_bos: torch.tensor([[7] * len(text.split())]),
        resolve_point=lambda point, layer: ((point, layer), "output"),
    )  # fmt: skip
    asked: list[Any] = []

    def generate(_: Any, tokens: torch.Tensor, **given: Any) -> Iterator[Any]:
        asked.append((tokens.tolist(), given))
        for step in range(given["max_tokens"]):
            yield SimpleNamespace(token_id=step, logits=torch.full((5,), float(step)))

    module = adapter(
        monkeypatch, "interp-engine", EagerModel=lambda *_, **__: model, HookManager=Hooks,
        generate_stream=generate,
    )  # fmt: skip
    monkeypatch.setattr(module, "attention", lambda _: {})
    monkeypatch.setattr(Hooks, "made", [])
    library = module.Eager(library_job("interp-engine"))
    ends = library.run(batch([("stream", 1)], steps=2))
    assert [tokens for tokens, _ in asked] == [[[7]], [[7, 7, 7]]]
    assert asked[0][1] == {"max_tokens": 2, "temperature": 0.0, "stop_at_eos": False}
    assert [(where, side) for where, side, _ in Hooks.made] == [(("resid_post", 1), "output")] * 2
    assert not Hooks.made[1][2](torch.ones(1, 3, WIDTH)).any()
    assert [int(token) for token in ends[1].tokens] == [0, 1]


class Attached:
    """interp-engine's model on vLLM: what was asked of it, and the ones it says it has captured."""

    n_layers = 3

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[str], int]] = []
        self.steered: list[tuple[list[Any], list[int]]] = []

    async def warmup(self) -> None: ...

    async def shutdown(self) -> None: ...

    def to_tokens(self, text: str, *, prepend_bos: bool) -> torch.Tensor:
        assert not prepend_bos
        return torch.tensor([[7] * len(text.split())])

    def refuses(self, point: str) -> str | None:
        return "there is none" if point.startswith("mlp") else None

    async def capture_generation(
        self, ids: list[int], points: list[str], *, max_tokens: int
    ) -> Any:
        self.asked.append((ids, points, max_tokens))
        rows = torch.arange(len(ids) + max_tokens - 1.0)[:, None].expand(-1, WIDTH)
        output = SimpleNamespace(token_ids=list(range(max_tokens)))
        return output, dict.fromkeys(points, rows)

    async def decode_residuals(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * 10

    @contextmanager
    def steer(self, model: Any, specs: list[Any], position_mask: list[int]) -> Iterator[None]:
        assert model is self
        self.steered.append((specs, position_mask))
        yield


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[[Program], Any]:
    attached = Attached()
    specs = {
        "AddSpec": lambda vector, scale: ("add", vector.tolist(), scale),
        "AblateSpec": lambda vector: ("ablate", vector.tolist()),
        "SteeringSpec": SimpleNamespace(at=lambda point, spec: (point, *spec)),
    }
    told = ModuleType("interp_engine")
    vars(told).update(load_model=lambda *_, **__: attached, steer=attached.steer)
    words = ModuleType("interp_engine.steer_specs")
    vars(words).update(specs)
    monkeypatch.setitem(sys.modules, "interp_engine", told)
    monkeypatch.setitem(sys.modules, "interp_engine.steer_specs", words)
    module = adapter(monkeypatch, "interp-engine-vllm")
    engine = module.open_engine(library_job("interp-engine-vllm"))

    def run(program: Program) -> Any:
        values: dict[tuple[int, int, int], torch.Tensor] = {}
        acts = [
            Acts(program, prompt, values, lambda *_, **__: torch.ones(WIDTH), active=True)
            for prompt in range(len(program.prompts))
        ]
        batch = engine.batch(program, acts)
        batch.lengths = [len(engine.library.tokenize(text)) for text in batch.prompts]
        return engine.library.run(batch), acts, attached

    run.close = engine.close  # type: ignore[attr-defined]
    return run


def test_interp_engine_on_vllm_is_told_its_writes_and_what_it_captured_is_shown(served):
    add = Operation(Do.ADD, layer=1, amount=0.5, tokens=Tokens.LAST)
    program = Program(tuple(TEXTS), (add, Operation(Do.READ, layer=1)), steps=2)
    ends, acts, attached = served(program)
    assert attached.asked == [
        ([7], ["resid_post.1", "resid_post.2"], 2), ([7] * 3, ["resid_post.1", "resid_post.2"], 2),
    ]  # fmt: skip
    written = ("resid_post.1", "add", [1.0] * WIDTH, 0.5)
    assert attached.steered == [([written], []), ([written], [0, 1])]
    saved = acts[1].saved(ends[1].logits, ends[1].tokens)
    # As they came: written to already, and not once more.
    assert saved["read", 1, 0][:, 0].tolist() == [0, 1, 2]
    assert saved["read", 1, 1][:, 0].tolist() == [3] == saved["written", 0, 1][:, 0].tolist()
    assert [float(step[0]) for step in ends[1].logits] == [20, 30]
    assert [int(token) for token in ends[0].tokens] == [0, 1]
    served.close()


@pytest.mark.parametrize(
    ("operations", "reason"),
    [
        ([Operation(Do.ZERO, layer=1)], "no word for this: zero"),
        ([Operation(Do.READ), Operation(Do.ADD, layer=1, value=0)], "no value that a run reads"),
        ([Operation(Do.ADD, layer=1, step=0)], "at every step"),
        ([Operation(Do.READ, layer=1), Operation(Do.PROJECT, layer=1)], "after what is written"),
        ([Operation(Do.ADD, layer=at, tokens=rows) for at, rows in enumerate(Tokens)], "one mask"),
        ([Operation(Do.READ, part=ModelPart.MLP, layer=1)], "there is none"),
    ],
)
def test_what_interp_engine_on_vllm_has_no_words_for_is_refused(served, operations, reason):
    with pytest.raises(Refused, match=reason):
        served(Program(tuple(TEXTS), tuple(operations), steps=2))
    served.close()


@pytest.mark.parametrize("mapped", [True, False])
def test_pyvene_is_told_its_components_or_the_path_of_a_module(monkeypatch, mapped):
    made: list[Any] = []

    class Intervenable:
        def __init__(self, interventions: Any, *, model: Any) -> None:
            made.append(interventions)

        def generate(self, base: Any, **given: Any) -> Any:
            assert base == "padded" and given["intervene_on_prompt"]
            assert given["unit_locations"] is None
            sequences = torch.arange(8).reshape(2, 4)
            return None, SimpleNamespace(sequences=sequences, logits=[torch.ones(2, 5)])

    module = adapter(
        monkeypatch, "pyvene", IntervenableModel=Intervenable,
        type_to_module_mapping={SimpleNamespace: {}} if mapped else {},
    )  # fmt: skip
    library = module.Intervenable.__new__(module.Intervenable)
    library.model, library.mapped, library.path = SimpleNamespace(), mapped, "model.layers"
    library.tokenizer = lambda texts, **_: "padded"
    ends = library.run(batch([("stream", 1), ("input", 2)]))
    [interventions] = made
    components = [one["component"] for one in interventions]
    if mapped:
        assert components == ["block_output", "block_input"]
    else:
        assert components == ["model.layers[1].output", "model.layers[2].input"]
    assert not interventions[0]["intervention"](torch.ones(2, 3, WIDTH), None)[1].any()
    assert type(interventions[0]["intervention"]).__name__ == "function"  # it takes no other
    assert [int(end.tokens[0]) for end in ends] == [3, 7]


def test_nnterp_is_told_its_accessors_and_written_to_only_where_something_changed(monkeypatch):
    module = adapter(monkeypatch, "nnterp", StandardizedTransformer=None)
    model = SimpleNamespace(layers_output={1: torch.ones(2, 3, WIDTH)}, layers_input={})
    module.act(model, batch([("stream", 1)]), ("stream", 1))
    assert not model.layers_output[1][1].any() and model.layers_output[1][0, :2].all()
    reading = PromptBatch(TEXTS, [{("stream", 1): lambda _, rows: rows}, {}], 1)
    reading.lengths = [1, 3]
    model.layers_output = before = {1: torch.ones(2, 3, WIDTH)}
    held = before[1]
    module.act(model, reading, ("stream", 1))
    assert model.layers_output[1] is held


def test_vllm_lens_is_told_layers_for_each_request_and_acts_on_its_rows_alone(monkeypatch):
    made: list[Any] = []
    vllm = ModuleType("vllm")
    vars(vllm).update(SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", vllm)

    def generate(texts: Any, asked: Any, use_tqdm: bool) -> Any:
        assert texts == TEXTS and not use_tqdm
        made.extend(asked)
        for params, text in zip(asked, texts, strict=True):
            [hook] = params.extra_args["apply_hooks"]
            rows = [len(text.split()), 1]  # of the prompt, and of the step after it
            made.append([hook.fn(None, torch.ones(count, WIDTH)) for count in rows])
        flat = SimpleNamespace(
            start_indices=[0, 3], end_indices=[3, 6],
            token_ids=[2, 0, 1, 1, 2, 0], logprobs=[0.2, 0.0, 0.1, 1.1, 1.2, 1.0],
        )  # fmt: skip
        return [SimpleNamespace(outputs=[SimpleNamespace(logprobs=flat, token_ids=[2, 2])])] * 2

    module = adapter(monkeypatch, "vllm-lens", Hook=SimpleNamespace)
    library = module.Lens.__new__(module.Lens)
    library.llm = SimpleNamespace(generate=generate)
    ends = library.run(batch([("input", 2)], steps=2))
    first, second, *seen = made
    for params in (first, second):
        [hook] = params.extra_args["apply_hooks"]
        assert hook.layer_indices == [2] and hook.pre
        assert params.max_tokens == 2 and params.temperature == 0.0 and params.ignore_eos
    assert [[tuple(rows.shape) for rows in of_request] for of_request in seen] == [
        [(1, WIDTH), (1, WIDTH)],
        [(3, WIDTH), (1, WIDTH)],
    ]
    assert not any(rows.any() for of_request in seen for rows in of_request)
    assert torch.equal(ends[0].logits[0], torch.tensor([0.0, 0.1, 0.2]))
    assert torch.equal(ends[1].logits[1], torch.tensor([1.0, 1.1, 1.2]))
    assert not module._RUNNING  # nothing is held once a batch is through
    with pytest.raises(Refused, match="hooks only whole layers, not mlp"):
        library.run(batch([("mlp", 1)]))
    assert not module._RUNNING
