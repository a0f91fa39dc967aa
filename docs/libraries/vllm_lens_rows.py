"""vllm-lens 1.3.0: on models that vLLM runs with transformers' modules, a hook is given every
request's rows, or none.

    python vllm_lens_rows.py        # exits 1 while it is

vLLM's own layers pass the rows of all requests one below the other, [tokens, width], of which
vllm-lens takes each request's. Where vLLM has no layers of its own for a model (here GPT-NeoX; for
any with `model_impl="transformers"`) layers pass [1, tokens, width], and the first dimension is cut
all the same: the first request has the rows of all requests, the others have none. A request alone
is given its own rows, with one dimension more. Needs vLLM and vllm-lens, and no model hub.
"""

import os
import sys
import tempfile
from importlib import metadata
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # both requests come before the first step

import torch
import vllm
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast
from vllm import LLM, SamplingParams
from vllm_lens import Hook

END = "<|endoftext|>"
TEXTS = ["a b", "c d e f g"]
WIDTH = 64


def note(context: Any, rows: torch.Tensor) -> None:
    context.saved["rows"] = rows


def main() -> bool:
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({END: 0} | {w: i for i, w in enumerate("abcdefgh", 1)}, END))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, unk_token=END)
    config = GPTNeoXConfig(
        vocab_size=16, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        GPTNeoXForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        llm = LLM(
            folder, dtype="float32", enforce_eager=True, max_num_seqs=8,
            kv_cache_memory_bytes=1 << 28, gpu_memory_utilization=0.3,
        )  # fmt: skip
        hooks = [Hook(fn=note, layer_indices=[1])]
        asked = SamplingParams(temperature=0.0, max_tokens=1, extra_args={"apply_hooks": hooks})
        seen = [
            tuple(output.hook_results["0"]["rows"].shape)
            for output in llm.generate(TEXTS, asked, use_tqdm=False)
        ]
    print("vllm-lens", metadata.version("vllm-lens"), "vllm", vllm.__version__)
    for text, shape in zip(TEXTS, seen, strict=True):
        print(f"{text!r}: {len(text.split())} tokens; the hook behind layer 1 is given {shape}")
    return seen != [(len(text.split()), WIDTH) for text in TEXTS]


if __name__ == "__main__":
    sys.exit(main())
