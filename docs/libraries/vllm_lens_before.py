"""vllm-lens 1.3.0: what runs before a layer is not given the stream: half of it on Llama, nothing
on GPT-2.

    python vllm_lens_before.py      # exits 1 while it is

A hook with `pre=True` is handed, and changes, the layer's second positional argument. vLLM's Llama
passes (places of the tokens, last MLP's output, sum of what came before): a hook behind the layer
before is given the sum of the two, this one the first alone. GPT-2's layers take the stream and
nothing else: the hook ends in an IndexError, which is caught and logged ("vllm-lens pre-hook error
on layer 1, skipping"), so that an edit is not made and a read is not there. Needs vLLM and
vllm-lens, and no model hub.
"""

import os
import sys
import tempfile
from importlib import metadata
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
import vllm
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from vllm import LLM, SamplingParams
from vllm_lens import Hook

END = "<|endoftext|>"
LLAMA = LlamaConfig(
    vocab_size=16, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
)  # fmt: skip
GPT2 = GPT2Config(
    vocab_size=16, n_embd=64, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
)


def before(context: Any, rows: torch.Tensor) -> None:
    context.saved["before layer 1"] = rows.float().clone()


def behind(context: Any, rows: torch.Tensor) -> None:
    context.saved["behind layer 0"] = rows.float().clone()


def main() -> bool:
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({END: 0} | {w: i for i, w in enumerate("abcdefgh", 1)}, END))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, unk_token=END)
    print("vllm-lens", metadata.version("vllm-lens"), "vllm", vllm.__version__)
    alike = []
    for model in (LlamaForCausalLM(LLAMA), GPT2LMHeadModel(GPT2)):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            llm = LLM(
                folder, dtype="float32", enforce_eager=True, max_num_seqs=8,
                kv_cache_memory_bytes=1 << 28, gpu_memory_utilization=0.3,
            )  # fmt: skip
            hooks = [Hook(fn=before, layer_indices=[1], pre=True)]
            hooks += [Hook(fn=behind, layer_indices=[0])]
            asked = SamplingParams(temperature=0.0, max_tokens=1, extra_args={"apply_hooks": hooks})
            [output] = llm.generate(["a b c"], asked, use_tqdm=False)
        saved = {key: rows for each in output.hook_results.values() for key, rows in each.items()}
        stream, given = saved["behind layer 0"], saved.get("before layer 1")
        if given is None:
            print(f"{type(model).__name__}: the hook before layer 1 did not run")
        else:
            off = ((given - stream).norm() / stream.norm()).item()
            print(f"{type(model).__name__}: before layer 1 is {off:.2g} off what is behind layer 0")
        alike.append(given is not None and torch.allclose(given, stream, atol=1e-5))
        del llm
    return not all(alike)


if __name__ == "__main__":
    sys.exit(main())
