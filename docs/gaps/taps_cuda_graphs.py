"""With nnsight's taps an engine whose core stays in the process generates other tokens.

    python docs/gaps/taps_cuda_graphs.py MODEL_FOLDER        on a machine with a GPU

exits 1 while the gap is there. vLLM makes attention a place at which a CUDA graph is broken while
it is imported, if VLLM_USE_BREAKABLE_CUDAGRAPH is set by then; nnsight sets it when it builds an
engine with taps, which is after it has imported vLLM. A core in a process of its own (vLLM's
default) imports vLLM again and sees it. One that stays in the process
(VLLM_ENABLE_V1_MULTIPROCESSING=0) records attention into the graph, with the positions of the
recording. The same prompt, greedy, in an engine each, each in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

PROMPT = "The capital of France is"
#: A cache of a fixed size: vLLM measures what is free otherwise, and other engines disturb that.
USUAL = {"dtype": "bfloat16", "max_model_len": 512, "kv_cache_memory_bytes": 1 << 28}

_HERE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_BREAKABLE = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}
WAYS = {
    "graphs": {},
    "breakable graphs": _BREAKABLE,
    "taps": {},
    "taps, core in the process": _HERE,
    "taps, core in the process, said before the import": _HERE | _BREAKABLE,
}


def tokens(way: str, folder: str) -> list[int]:
    """Eight greedy ids."""
    from vllm import LLM, SamplingParams

    asked = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    if way.startswith("taps"):
        from nnsight.modeling.vllm import VLLM

        model = VLLM(folder, dispatch=True, taps=["model.layers.*.output"], **USUAL)
        engine = model.vllm_entrypoint
    else:
        engine = LLM(folder, **USUAL)
    return list(engine.generate([PROMPT], asked)[0].outputs[0].token_ids)


def main(folder: str) -> int:
    found = {}
    for way, environment in WAYS.items():
        ran = subprocess.run(
            [sys.executable, __file__, folder, way],
            env={**os.environ, "VLLM_USE_V2_MODEL_RUNNER": "0", **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found[way] = next(line for line in ran.stdout.splitlines() if line.startswith("ids "))
        print(f"{way}: {found[way]}")
    return int(len(set(found.values())) > 1)


if __name__ == "__main__":
    if len(sys.argv) == 3:  # one engine
        print("ids", tokens(sys.argv[2], sys.argv[1]), flush=True)
    else:
        sys.exit(main(sys.argv[1]))
