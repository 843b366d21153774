"""Tiny classifiers of many architectures."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification, AutoTokenizer

from scala_lab.errors import UserError
from scala_lab.models.architectures import (
    FIRST_WORD,
    MODEL_TYPES,
    NOT_BUILT,
    VOCABULARY,
    save_tiny,
    tiny_classifier,
    tiny_config,
)

# one of each sort: segments, positions after the padding id, embeddings apart from the width, relative positions,
# sliding windows, padding on the left, decoders with and without a padding token, grouped keys, experts, Mamba blocks,
# an encoder-decoder, byte-level pieces, text inside a larger config
SORTS = [
    *("bert", "roberta", "albert", "deberta-v2", "modernbert", "xlnet", "gpt2", "llama", "mixtral", "jamba", "bart"),
    *("qwen2", "gemma3", "minicpm3", "funnel"),
]


@pytest.fixture(scope="module")
def classifiers():
    return {name: tiny_classifier(name) for name in MODEL_TYPES if name not in NOT_BUILT}


def test_nearly_all_types_are_built_and_tiny(classifiers):
    assert len(classifiers) >= 100
    sizes = {name: sum(parameter.numel() for parameter in model.parameters()) for name, model in classifiers.items()}
    assert {name: size for name, size in sizes.items() if size > 150_000} == {}
    assert all(not model.training and model.dtype == torch.float32 for model in classifiers.values())


def test_ids_of_special_tokens_lie_in_the_vocabulary_and_padding_is_none_where_it_was(classifiers):
    for name, model in classifiers.items():
        config, default = model.config.get_text_config(), CONFIG_MAPPING[name]().get_text_config()
        for role in ("pad", "bos", "eos", "cls", "sep", "mask"):
            own = getattr(default, f"{role}_token_id", None)
            tiny = getattr(config, f"{role}_token_id", None)
            if own is not None:
                assert all(0 <= number < FIRST_WORD for number in (tiny if isinstance(tiny, list) else [tiny])), name
            elif name != "esm":
                assert tiny is None, (name, role)


def test_decoders_group_their_keys_and_keep_their_kinds_of_layers():
    llama = tiny_classifier("llama")
    attention = llama.model.layers[0].self_attn
    assert attention.q_proj.out_features == 2 * attention.k_proj.out_features
    assert tiny_config("gemma2").layer_types == ["sliding_attention", "full_attention"]
    assert tiny_config("gemma3").text_config.layer_types == ["sliding_attention", "full_attention"]
    assert tiny_config("gemma3").text_config.sliding_window == 4
    assert [type(layer).__name__ for layer in tiny_classifier("jamba").model.layers] == [
        "JambaMambaDecoderLayer",
        "JambaAttentionDecoderLayer",
    ]


@pytest.mark.parametrize("name", SORTS)
def test_saved_classifiers_load_and_say_the_same(name, tmp_path):
    save_tiny(tmp_path, name, seed=1)
    loaded, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    encoded = AutoTokenizer.from_pretrained(tmp_path)("w1 w39 w0 w7", "w5 w6 w2", return_tensors="pt")
    assert encoded["input_ids"].max() < VOCABULARY
    with torch.no_grad():
        logits = loaded(**encoded).logits
        expected = tiny_classifier(name, seed=1)(**encoded).logits
    assert logits.shape == (1, 2)
    assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-6)  # memory aligned otherwise adds in another order
    assert (logits.max() - logits.min()).item() > 1e-4


def test_tokenizers_frame_a_row_as_the_architecture_reads_it(tmp_path):
    def tokenizer(name):
        return AutoTokenizer.from_pretrained(save_tiny(tmp_path / name, name))

    bert = tokenizer("bert")
    pair = bert("w1", "w2")
    assert bert.convert_ids_to_tokens(pair["input_ids"]) == ["[CLS]", "w1", "[SEP]", "w2", "[SEP]"]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]
    assert "token_type_ids" not in tokenizer("roberta")("w1")
    xlnet = tokenizer("xlnet")
    assert xlnet.convert_ids_to_tokens(xlnet("w1")["input_ids"]) == ["w1", "[SEP]", "[CLS]"]
    assert xlnet.padding_side == "left"
    bart = tokenizer("bart")
    assert bart("w1")["input_ids"][-1] == tiny_config("bart").eos_token_id
    gpt2 = tokenizer("gpt2")
    assert gpt2.pad_token_id is None
    assert len(gpt2("w1 w2")["input_ids"]) == 2


def test_the_head_has_as_many_outputs_as_labels():
    assert tiny_classifier("bert", labels=1).classifier.out_features == 1
    assert tiny_classifier("llama", labels=3).score.out_features == 3


def test_dropout_goes_to_every_rate():
    assert tiny_config("bert", dropout=0.3).hidden_dropout_prob == 0.3
    assert tiny_config("gpt2", dropout=0.3).attn_pdrop == 0.3
    assert tiny_config("gemma3", dropout=0.3).text_config.attention_dropout == 0.3
    rates = [
        module.p for module in tiny_classifier("xlnet", dropout=0.3).modules() if isinstance(module, torch.nn.Dropout)
    ]
    assert set(rates) == {0.3}


def test_the_seed_decides_the_weights_and_leaves_the_generator_alone():
    state = torch.get_rng_state()
    one, same, other = (tiny_classifier("bert", seed=seed).classifier.weight for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_refusals_are_sentences():
    with pytest.raises(UserError, match="there is no tiny layoutlmv2: it reads the image of a page"):
        tiny_config("layoutlmv2")
    with pytest.raises(UserError, match="no classifier of type 'bret': did you mean 'bert'"):
        tiny_classifier("bret")
