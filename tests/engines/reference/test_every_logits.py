"""The reference's logits after each token of a prompt, however it is computed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from conformance.engines.reference.ensemble import REFERENCE_RUN
from conformance.engines.reference.model import ReferenceModel
from conformance.engines.tree import layer_path

IDS = [5, 9, 2, 7, 11, 3]


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt"])
@pytest.mark.parametrize("pad", [0, 4])
def test_each_row_is_what_the_prompt_up_to_there_gives(family, pad):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    module = AutoModelForCausalLM.from_config(config).eval()
    module.generation_config.pad_token_id = 0
    member = replace(REFERENCE_RUN, pad=pad)
    tokenizer = lambda text: SimpleNamespace(input_ids=IDS)  # noqa: E731
    model = ReferenceModel(module, tokenizer, member, layer_path(module, 2), ())
    rows = model.every_logits("any")
    assert rows.shape == (len(IDS), 32)
    with torch.no_grad():
        for end in range(1, len(IDS) + 1):
            alone = module(input_ids=torch.tensor([IDS[:end]])).logits[0, -1]
            assert torch.allclose(rows[end - 1], alone, atol=1e-5), end
