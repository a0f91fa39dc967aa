"""TransformerLens 4.3.0: a batch of texts without a begin token attends to one token of padding.

    python transformer_lens_texts.py        # exits 1 while it does

`TransformerBridge.generate` (and `forward`) of a list of texts makes the attention mask by itself,
with `prepend_bos=cfg.default_prepend_bos` (True) whatever `prepend_bos` the call was given. Where
the padding token is the begin token, as with GPT-2's tokenizer, `get_attention_mask` then takes the
last token of padding for a begin token and unmasks it. With an `attention_mask` of one's own, and
with prompts of one length, all is right. Needs transformer-lens and nothing of a model hub.
"""

import sys
import tempfile
from importlib import metadata

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
SHORT, LONG = "a b", "c d e f g"

torch.manual_seed(0)
words = Tokenizer(models.WordLevel({END: 0} | {w: i for i, w in enumerate("abcdefgh", 1)}, END))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, bos_token=END, eos_token=END, pad_token=END, unk_token=END
)
config = GPT2Config(
    vocab_size=9, n_embd=64, n_layer=2, n_head=2, n_positions=32, initializer_range=0.3,
    bos_token_id=0, eos_token_id=0,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(folder)

how = {
    "max_new_tokens": 1, "do_sample": False, "stop_at_eos": False, "prepend_bos": False,
    "output_logits": True, "return_type": "tokens", "verbose": False,
}  # fmt: skip
tokens = bridge.to_tokens([SHORT, LONG], prepend_bos=False, padding_side="left")
mask = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])
alone = bridge.generate([SHORT], **how).logits[0][0]


def off(logits: torch.Tensor) -> float:
    return float((logits - alone).norm() / alone.norm())


texts = off(bridge.generate([SHORT, LONG], **how).logits[0][0])
masked = off(bridge.generate(tokens, attention_mask=mask, **how).logits[0][0])
print("transformer-lens", metadata.version("transformer-lens"), "torch", torch.__version__)
print("padded ids", tokens.tolist())
print(f"logits of the shorter prompt, against itself alone: {masked:.1e} with a mask of one's own")
print(f"                                                    {texts:.1e} as a list of texts")
sys.exit(texts > 1e-4 >= masked)
