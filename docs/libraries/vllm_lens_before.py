"""vllm-lens 1.3.0: what is to run before a layer of GPT-2 never runs, and only the log says so.

    python vllm_lens_before.py      # exits 1 while it is

A hook with `pre=True` is handed the stream that goes into a layer, which vllm-lens takes from the
layer's second positional argument: most of vLLM's layers take the tokens' places first. GPT-2's
take the stream alone. Every such hook ends in an IndexError there, which is caught and logged
("vllm-lens pre-hook error on layer 1, skipping"), so that an edit is not made and a read is not
there. Needs vLLM and vllm-lens, and no model hub.
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
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from vllm import LLM, SamplingParams
from vllm_lens import Hook

END = "<|endoftext|>"
LAYER = 1


def zero(context: Any, rows: torch.Tensor) -> torch.Tensor:
    context.saved["before"] = rows.clone()
    return rows * 0


def note(context: Any, rows: torch.Tensor) -> None:
    context.saved["behind"] = rows.clone()


def main() -> bool:
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({END: 0} | {w: i for i, w in enumerate("abcdefgh", 1)}, END))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, unk_token=END)
    config = GPT2Config(
        vocab_size=16, n_embd=64, n_layer=2, n_head=2, n_positions=64,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        llm = LLM(
            folder, dtype="float32", enforce_eager=True, max_num_seqs=8,
            kv_cache_memory_bytes=1 << 28, gpu_memory_utilization=0.3,
        )  # fmt: skip
        before = Hook(fn=zero, layer_indices=[LAYER], pre=True)
        behind = Hook(fn=note, layer_indices=[LAYER])
        saved = []
        for hooks in ([behind], [before, behind]):
            asked = SamplingParams(temperature=0.0, max_tokens=1, extra_args={"apply_hooks": hooks})
            [output] = llm.generate(["a b c"], asked, use_tqdm=False)
            saved.append({k: v for each in output.hook_results.values() for k, v in each.items()})
    alone, edited = saved
    skipped = torch.equal(alone["behind"], edited["behind"])
    print("vllm-lens", metadata.version("vllm-lens"), "vllm", vllm.__version__)
    print(f"before layer {LAYER} the stream is set to zero; the hook ran: {'before' in edited}")
    print(f"behind layer {LAYER} the stream is what it is without that: {skipped}")
    return skipped or "before" not in edited


if __name__ == "__main__":
    sys.exit(main())
