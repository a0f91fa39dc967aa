"""With nnsight's taps a vLLM engine generates other tokens than without, be there a block or not.

    python docs/gaps/taps_cuda_graphs.py MODEL_FOLDER        on a machine with a GPU

exits 1 while the gap is there: the same prompt, greedy, on vLLM with CUDA graphs, with the
breakable graphs that taps are recorded into, and on nnsight's engine with every layer's output
tapped. Each engine is a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

PROMPT = "The capital of France is"
USUAL = {"dtype": "bfloat16", "max_model_len": 512, "gpu_memory_utilization": 0.1}


def tokens(way: str, folder: str) -> list[int]:
    """Eight greedy ids."""
    from vllm import LLM, SamplingParams

    asked = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    if way == "taps":
        from nnsight.modeling.vllm import VLLM

        model = VLLM(folder, dispatch=True, taps=["model.layers.*.output"], **USUAL)
        engine = model.vllm_entrypoint
    else:
        engine = LLM(folder, **USUAL)
    return list(engine.generate([PROMPT], asked)[0].outputs[0].token_ids)


def main(folder: str) -> int:
    found = {}
    for way in ("graphs", "breakable graphs", "taps"):
        breakable = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"} if way == "breakable graphs" else {}
        ran = subprocess.run(
            [sys.executable, __file__, folder, way],
            env={**os.environ, "VLLM_USE_V2_MODEL_RUNNER": "0", **breakable},
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
