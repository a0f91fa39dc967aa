"""TransformerLens 4.3.0: after `enable_compatibility_mode()` the stream is another one.

    python transformer_lens_processed.py        # exits 1 where it is

That is documented: the weights are processed as HookedTransformer did. What writes to the stream
of a model with LayerNorm is centred, so the stream has lost the mean of its rows; the head is
centred, so the logits are shifted as a whole. Whoever compares streams, steers with a vector from
elsewhere or sets a stream to zero works in other coordinates than the checkpoint's; what the model
predicts is the same. Needs transformer-lens and nothing of a model hub.
"""

import sys
import tempfile
from importlib import metadata

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
LAYERS = 2

torch.manual_seed(0)
words = Tokenizer(models.WordLevel({END: 0} | {w: i for i, w in enumerate("abcdefgh", 1)}, END))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, bos_token=END, eos_token=END, pad_token=END, unk_token=END
)
config = GPT2Config(
    vocab_size=9, n_embd=64, n_layer=LAYERS, n_head=2, n_positions=32, initializer_range=0.3,
    bos_token_id=0, eos_token_id=0,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    plain = TransformerBridge.boot_transformers(folder)
    processed = TransformerBridge.boot_transformers(folder)
processed.enable_compatibility_mode(disable_warnings=True)

tokens = torch.tensor([[1, 2, 3, 4]])
with torch.no_grad():
    logits, cache = plain.run_with_cache(tokens)
    other_logits, other_cache = processed.run_with_cache(tokens)


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def centred(rows: torch.Tensor) -> torch.Tensor:
    return rows - rows.mean(-1, keepdim=True)


print("transformer-lens", metadata.version("transformer-lens"), "torch", torch.__version__)
furthest = 0.0
for layer in range(LAYERS):
    name = f"blocks.{layer}.hook_resid_post"
    far, near = off(other_cache[name], cache[name]), off(other_cache[name], centred(cache[name]))
    print(f"{name}: {far:.1e} off, {near:.1e} from the same without the mean of its rows")
    furthest = max(furthest, far)
predicted = off(other_logits.log_softmax(-1), logits.log_softmax(-1))
print(f"logits: {off(other_logits, logits):.1e} off, log-probabilities {predicted:.1e}")
sys.exit(furthest > 1e-4)
