"""`hf(model)` and `vllm(model)` of this file, each in a process of its own, compared in float32."""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

#: What an honest difference in float32 stays far below: it is about a millionth.
ALIKE = 1e-3

#: Of torch's own generator on both sides, as in a check.
SEED = 1_618_033_988

#: What vLLM needs in an environment of its own: eager, one stage, in the process that asks it.
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
    "TRITON_F32_DEFAULT": "ieee",
    "NVIDIA_TF32_OVERRIDE": "0",
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
}


def repro_main(asked: Mapping[str, Any]) -> int:
    """Both sides, then the comparison: 0 the same, 1 not the same, 2 transformers' side failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", help="a folder with the model, or its name on a hub")
    parser.add_argument("--side", choices=("hf", "vllm"), help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    checkpoint = options.checkpoint or asked["checkpoint"]
    if options.side:
        values = repro_side(options.side, checkpoint, asked)
        torch.save(values, options.into)
        # An orderly end of an engine takes seconds, and nothing is left to be written.
        sys.stdout.flush()
        os._exit(0)
    with tempfile.TemporaryDirectory() as folder:
        sides = []
        for side in ("hf", "vllm"):
            file = Path(folder, f"{side}.pt")
            command = [sys.executable, str(Path(sys.argv[0]).resolve()), "--side", side]
            command += ["--into", str(file), "--checkpoint", str(checkpoint)]
            # What an engine leaves when it ends at once goes with the folder.
            variables = {**SETTINGS, **os.environ, "TMPDIR": folder}
            ran = subprocess.run(command, env=variables, check=False)
            if ran.returncode or not file.is_file():
                say(f"\n{side}(model) fails: see above")
                return 2 if side == "hf" else 1
            sides.append(torch.load(file, weights_only=True))
    return repro_compared(*sides)


def repro_side(side: str, checkpoint: str, asked: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What a function returns, by name."""
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    # By its name, so that what a block uses is found in an engine's processes, too.
    module = importlib.import_module(Path(sys.argv[0]).stem)
    model = on_transformers(checkpoint) if side == "hf" else on_vllm(checkpoint, asked)
    return repro_called(getattr(module, side), model, asked["prompts"])


def on_transformers(checkpoint: str) -> Any:
    """nnsight's model on transformers, in float32."""
    from nnsight.modeling.transformers import TransformersModel

    model = TransformersModel(
        checkpoint,
        task="text-generation",
        dispatch=True,
        dtype=torch.float32,
        device="cuda" if torch.cuda.is_available() else "cpu",
        attn_implementation="eager",
    )
    settings = model._module.generation_config
    settings.do_sample = False
    settings.temperature = settings.top_p = settings.top_k = None
    settings.pad_token_id = model.tokenizer.pad_token_id or 0
    return model


def on_vllm(checkpoint: str, asked: Mapping[str, Any]) -> Any:
    """nnsight's model on vLLM, in float32 and eager."""
    from nnsight.modeling.vllm import VLLM

    if not torch.cuda.is_available():
        without_gpu(VLLM)
    return VLLM(
        checkpoint,
        dispatch=True,
        dtype="float32",
        max_num_seqs=8,
        async_scheduling=False,
        gpu_memory_utilization=asked["gpu_share"],
        max_model_len=asked["length"],
        kv_cache_memory_bytes=asked["cache_bytes"],
    )


def without_gpu(model: Any) -> None:
    """Let nnsight's VLLM run on vLLM's CPU runner: nnsight's own worker is one for CUDA."""
    import vllm.model_executor.model_loader.base_loader as loader
    from nnsight.modeling.vllm.model_runners.GPUModelRunner import NNsightGPUModelRunner
    from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    class Runner(NNsightGPUModelRunner, CPUModelRunner):  # type: ignore[misc]
        pass

    class Worker(CPUWorker):  # type: ignore[misc]
        def init_device(self) -> None:
            super().init_device()
            self.model_runner.__class__ = Runner

        collect_nnsight = NNsightGPUWorker.collect_nnsight
        nnsight_request_count = NNsightGPUWorker.nnsight_request_count
        nnsight_register = NNsightGPUWorker.nnsight_register
        nnsight_clear_registered = NNsightGPUWorker.nnsight_clear_registered

    # vLLM looks the class up by its name; the client has no accelerator to wait for, and no
    # weights to pack in the tree that it builds for its structure alone.
    this = sys.modules[__name__]
    this.CPUTraceWorker = Worker  # type: ignore[attr-defined]
    model._WORKER_CLS = f"{__name__}.CPUTraceWorker"
    torch.accelerator.synchronize = lambda *_, **__: None
    torch.accelerator.empty_cache = lambda *_, **__: None
    pack = loader.process_weights_after_loading

    def unless_on_meta(module: Any, *rest: Any) -> None:
        if not all(parameter.is_meta for parameter in module.parameters()):
            pack(module, *rest)

    loader.process_weights_after_loading = unless_on_meta


def repro_called(
    function: Callable[..., Any], model: Any, prompts: list[str]
) -> dict[str, torch.Tensor]:
    """The function's values by name; `prompt` means a call for each, `prompts` one with all."""
    parameters = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    calls: list[tuple[Any, ...]] = [(prompts,)] if parameters else [()]
    if parameters == ("prompt",):
        calls = [(prompt,) for prompt in prompts]
    found = {}
    for index, arguments in enumerate(calls):
        torch.manual_seed(SEED)
        begin = f"prompt {index}: " if len(calls) > 1 else ""
        for name, value in repro_flat("", function(model, *arguments)):
            found[begin + name] = value
    return found


def repro_flat(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in dicts and lists, with the way there as its name."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from repro_flat(f"{name}[{key}]" if name else str(key), part)
    elif isinstance(value, str):
        yield name, torch.tensor(list(value.encode()))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from repro_flat(f"{name}[{index}]", part)
    else:
        yield name, torch.as_tensor(value).detach().cpu()


def repro_compared(truth: dict[str, torch.Tensor], mine: dict[str, torch.Tensor]) -> int:
    """Say of each value how far vLLM's is from transformers', relative to its size."""
    off = 0
    for name in dict.fromkeys([*truth, *mine]):
        words = repro_difference(truth.get(name), mine.get(name))
        off += not words.startswith("the same")
        say(f"  {name}: {words}")
    say(f"NOT THE SAME: {off} values differ" if off else "the same, in float32")
    return int(bool(off))


def repro_difference(truth: torch.Tensor | None, mine: torch.Tensor | None) -> str:
    if truth is None or mine is None:
        return "is returned on one side only"
    shapes = [list(value.shape) for value in (mine, truth)]
    while shapes[0] and shapes[0][0] == 1 and len(shapes[0]) > len(shapes[1]):
        shapes[0].pop(0)
    while shapes[1] and shapes[1][0] == 1 and len(shapes[1]) > len(shapes[0]):
        shapes[1].pop(0)
    if shapes[0] != shapes[1]:
        return f"has shape {list(mine.shape)}, on transformers {list(truth.shape)}"
    known, seen = truth.double().flatten(), mine.double().flatten()
    distance = float((seen - known).norm() / known.norm().clamp_min(1e-30))
    same = "the same" if distance <= ALIKE else "differs"
    return f"{same}: |vllm - hf| / |hf| = {distance:.2g}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
