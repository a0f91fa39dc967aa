"""interp-engine 1.14.2 on vLLM: a position mask is dropped where a prompt comes in several chunks.

    python interp_engine_mask.py        # exits 1 while it is

vLLM computes a prompt in chunks of `max_num_batched_tokens` at most.
The mask is laid over a forward that is as long as the prompt, and over no other: in a chunk every
position is steered, masked or not, and nothing says so. Needs vLLM, and no model hub.
"""

import asyncio
import sys
import tempfile
from importlib import metadata

import torch
from interp_engine import load_model, steer
from interp_engine.steer_specs import AddSpec, SteeringSpec
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|endoftext|>"
WIDTH, LENGTH, CHUNK = 64, 40, 16
POINT = "resid_post.0"


def checkpoint(folder: str) -> None:
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({END: 0} | {w: i for i, w in enumerate("abcdefgh", 1)}, END))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, unk_token=END)
    config = LlamaConfig(
        vocab_size=16, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


async def steered(folder: str) -> list[int]:
    """The positions that a vector was added at, where all but the last are masked."""
    model = load_model(
        folder, backend="vllm", dtype="float32", gpu_memory_utilization=0.3,
        extra_vllm_kwargs={"kv_cache_memory_bytes": 1 << 28, "max_num_seqs": 8,
                           "max_model_len": 64, "max_num_batched_tokens": CHUNK},
    )  # fmt: skip
    ids = [1 + position % 8 for position in range(LENGTH)]
    clean = await model.capture(ids, [POINT])
    spec = SteeringSpec.at(POINT, AddSpec(torch.ones(WIDTH), 1.0))
    with steer(model, spec, position_mask=list(range(LENGTH - 1))):
        seen = await model.capture(ids, [POINT])
    await model.shutdown()
    [before], [after] = clean.values(), seen.values()
    return [place for place in range(LENGTH) if (after - before)[place].abs().max() > 0.5]


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(folder)
        places = asyncio.run(steered(folder))
    print("interp-engine", metadata.version("interp-engine"))
    print(f"{LENGTH} tokens in chunks of {CHUNK}, all masked but the last; steered: {places}")
    return places != [LENGTH - 1]


if __name__ == "__main__":
    sys.exit(main())
