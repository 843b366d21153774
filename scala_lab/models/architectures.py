"""Make tiny random classifiers of every architecture that transformers has a text classifier for.

A config is shrunk by the names of its fields; `EXTRAS` holds what an architecture needs beyond that. Everything else
stays as the architecture has it: kinds of layers, initialisation, the padding token and the side its tokenizer pads.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto, tokenization_auto
from transformers.models.auto.tokenization_auto import TokenizersBackend

from scala_lab.errors import UserError, nearest

MODEL_TYPES: tuple[str, ...] = tuple(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)

WORDS = [f"w{number}" for number in range(40)]
FIRST_WORD = 24  # the ids below it are for special tokens
VOCABULARY = FIRST_WORD + len(WORDS)
POSITIONS = 128
LONGEST_ROW = 64
WIDTH, HEADS, KEY_HEADS, LAYERS = 32, 4, 2, 2

# each size with the names that architectures have for it
_SIZES = (
    (VOCABULARY, "vocab_size entity_vocab_size pronunciation_vocab_size shape_vocab_size num_hash_buckets"),
    (POSITIONS, "max_position_embeddings n_positions max_seq_len max_2d_position_embeddings"),
    (LAYERS, "num_hidden_layers n_layers n_layer num_layers encoder_layers decoder_layers num_decoder_layers depth"),
    (LAYERS, "num_self_attends_per_block"),
    (HEADS, "num_attention_heads n_heads n_head num_heads encoder_attention_heads decoder_attention_heads"),
    (HEADS, "num_self_attention_heads num_cross_attention_heads"),
    (KEY_HEADS, "num_key_value_heads num_kv_heads"),
    (WIDTH // HEADS, "head_dim d_kv d_head kv_channels attention_head_size query_pre_attn_scalar"),
    (WIDTH, "hidden_size d_model n_embd dim emb_dim word_embed_proj_dim pooler_hidden_size out_hidden_size"),
    (WIDTH, "cross_attention_hidden_size prediction_head_size d_latents"),
    (WIDTH // 2, "embedding_size input_embedding_size output_embedding_size entity_emb_size intra_bottleneck_size"),
    (WIDTH // 2, "pronunciation_embed_dim shape_embed_dim"),
    (2 * WIDTH, "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim ffn_hidden_size hidden_dim d_inner"),
    (2 * WIDTH, "n_inner feed_forward_size d_ff dff"),
    # attention within windows or chunks, short enough for a row of a few words to leave them; to few latent vectors
    (4, "sliding_window window_size local_attention keep_window_size attention_window index_topk"),
    (4, "local_attn_chunk_length lsh_attn_chunk_length"),
    (8, "local_transformer_stride num_latents"),
    # mixtures of experts, after one dense layer
    (4, "num_experts num_local_experts n_routed_experts"),
    (2, "num_experts_per_tok moe_topk"),
    (WIDTH, "moe_intermediate_size shared_expert_intermediate_size"),
    (1, "first_k_dense_replace"),
    # keys and values from a latent vector
    (8, "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim index_head_dim"),
    (2, "index_n_heads"),
    # linear attention and Mamba
    (8, "linear_key_head_dim linear_value_head_dim mamba_d_state chunk_size"),
    (2, "linear_num_key_heads"),
    (4, "linear_num_value_heads mamba_dt_rank"),
    # ranks, rotated dimensions, and the layout or image side of models that also read text alone
    (4, "gated_norm_rank adapter_rank rotary_dim max_depth"),
    (8, "xpath_unit_hidden_size"),
    (32, "image_size input_size"),
    (16, "num_position_embeddings"),
)
_SIZE_OF = {name: size for size, names in _SIZES for name in names.split()}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# what architectures need beyond their sizes
EXTRAS: tuple[tuple[str, dict[str, Any]], ...] = (
    # one segment, as all published checkpoints have it
    ("camembert data2vec-text ibert layoutlmv3 lilt longformer luke", {"type_vocab_size": 1}),
    ("roberta roberta-prelayernorm xlm-roberta xmod", {"type_vocab_size": 1}),
    # every head has keys of its own, in most made from the latent vector
    ("axk1 axk2 deepseek_v2 deepseek_v3 esmc minicpm3 mistral4", {"num_key_value_heads": HEADS}),
    ("axk1 deepseek_v3", {"n_group": 2, "topk_group": 1}),
    ("big_bird bigbird_pegasus", {"block_size": 2, "num_random_blocks": 1}),  # sparse attention from 15 tokens on
    # its default has no rotation for any kind of layer and cannot be built
    ("cohere_compass_text", {"layer_types": ["sliding_attention", "full_attention"]}),
    ("cohere_compass_text", {"rope_parameters": {"sliding_attention": _ROPE, "full_attention": None}}),
    # relative positions as all published checkpoints have them
    ("deberta deberta-v2", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    ("deberta-v2", {"position_biased_input": False, "position_buckets": 8}),
    ("deberta-v2", {"norm_rel_ebd": "layer_norm", "share_att_key": True}),
    ("esm", {"pad_token_id": 1, "mask_token_id": 5}),  # cannot be built without; ESM-2's are 1 and 32
    ("funnel", {"block_sizes": [1, 1]}),
    ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
    ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    ("layoutlmv3", {"coordinate_size": 6, "shape_size": 4}),  # 4 coordinates + 2 shapes = width
    ("lilt", {"hidden_size": 48}),  # a multiple of six coordinates and of the heads
    ("mistral4", {"head_dim": 16}),
    ("reformer", {"attn_layers": ["local", "lsh"], "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [8, 24]}),
    ("squeezebert", {"embedding_size": WIDTH}),
    ("t5", {"decoder_start_token_id": 0}),  # as in every checkpoint, but not in the config's defaults
    ("xmod", {"default_language": "en_XX"}),
    # two blocks that share their attention
    ("zamba", {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2}),
    ("zamba2", {"n_mamba_heads": 4, "mamba_headdim": 16}),
)

NOT_BUILT = {"layoutlmv2": "it reads the image of a page and needs detectron2"}


def tiny_config(model_type: str, labels: int = 2, dropout: float = 0.0, **changes: Any) -> PreTrainedConfig:
    """Make the config of an architecture at a tiny size, with `labels` outputs and all dropout rates at `dropout`."""
    if model_type not in MODEL_TYPES:
        raise UserError(f"transformers has no classifier of type {model_type!r}: {nearest(model_type, MODEL_TYPES)}")
    if model_type in NOT_BUILT:
        raise UserError(f"there is no tiny {model_type}: {NOT_BUILT[model_type]}")
    default = CONFIG_MAPPING[model_type]()
    outside = sorted({number for number in _token_ids(default) if number >= FIRST_WORD})
    ids = {number: new for new, number in enumerate(outside, start=FIRST_WORD - len(outside))}
    fields = _shrunk(default, dropout, ids)
    for names, extra in EXTRAS:
        if model_type in names.split():
            fields |= extra
    # label names go with the config into its file; without them a saved BART of two classes comes back with three
    classes = [f"class{number}" for number in range(labels)]
    fields |= {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}
    return type(default)(**{**fields, **changes})


def _is_token_id(name: str) -> bool:
    return name.endswith(("_token_id", "_token_index"))


def _token_ids(config: PreTrainedConfig) -> Iterator[int]:
    """Yield every id of a special token in a config and its parts."""
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _token_ids(value)
        elif _is_token_id(name) and value is not None:
            yield from value if isinstance(value, list) else [value]


def _shrunk(config: PreTrainedConfig, dropout: float, ids: dict[int, int]) -> dict[str, Any]:
    """Return the fields of a config that a tiny one changes; `ids` moves special tokens into the tiny vocabulary."""
    shrunk: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            shrunk[name] = _shrunk(value, dropout, ids)
        elif _is_token_id(name) and value is not None:
            moved = [ids.get(number, number) for number in (value if isinstance(value, list) else [value])]
            shrunk[name] = moved if isinstance(value, list) else moved[0]
        elif ("dropout" in name or "pdrop" in name) and not isinstance(value, int):
            shrunk[name] = dropout
        elif name in ("layer_types", "mlp_layer_types", "layers_block_type"):
            shrunk[name] = (list(dict.fromkeys(value)) * LAYERS)[:LAYERS]  # one of each kind
        elif name in _SIZE_OF and (value or "window" not in name):  # no window stays no window
            shrunk[name] = _SIZE_OF[name]
    return shrunk


def tiny_classifier(
    model_type: str, labels: int = 2, dropout: float = 0.0, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Make a tiny classifier in float32 and eval mode, with its architecture's own random initialisation."""
    config = tiny_config(model_type, labels, dropout, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    return model.eval()


def save_tiny(folder: Path | str, model_type: str, **options: Any) -> Path:
    """Save a `tiny_classifier` and a tokenizer of the words w0 to w39, as `from_pretrained` loads them."""
    model = tiny_classifier(model_type, **options)
    model.save_pretrained(folder)
    _tokenizer(model).save_pretrained(folder)
    return Path(folder)


def _is_decoder(model_type: str) -> bool:
    """Whether an architecture reads from left to right, as a language model that writes text does."""
    writes = model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type == "mistral4"
    fills_in = model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES or model_type == "xlnet"
    return writes and not fills_in


def _tokenizer(model: PreTrainedModel) -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer of one token per word that frames a row with special tokens as the architecture has them.

    Encoders read [CLS] words [SEP], XLNet words [SEP] [CLS], encoder-decoders words [EOS], decoders words alone. A
    decoder whose config has no padding token gets none.
    """
    config, model_type = model.config.get_text_config(), model.config.model_type
    class_name = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type) or "TokenizersBackend"
    own = tokenization_auto.tokenizer_class_from_name(class_name)
    replaced = model_type in tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    if own and replaced and own is not TokenizersBackend:
        return _byte_level(own)
    ids: dict[str, int | None] = {}
    for role in ("pad", "bos", "eos", "cls", "sep", "mask", "unk"):
        number = getattr(config, f"{role}_token_id", None)
        ids[role] = number[0] if isinstance(number, list) else number
    missing = ["unk"]
    if not _is_decoder(model_type) and not model.config.is_encoder_decoder:
        for role, other in (("cls", "bos"), ("sep", "eos")):
            if ids[role] is None and ids[other] != ids["pad"]:
                ids[role] = ids[other]
        missing += [role for role in ("pad", "cls", "sep", "mask") if ids[role] is None]
    free = sorted(set(range(FIRST_WORD)) - set(ids.values()))
    ids.update(zip(missing, free, strict=False))

    names = [f"[unused{number}]" for number in range(FIRST_WORD)]
    for role, number in ids.items():
        if number is not None:
            names[number] = f"[{role.upper()}]"
    tokens = {role: names[number] for role, number in ids.items() if number is not None}
    vocabulary = dict(zip(names + WORDS, range(VOCABULARY), strict=True))
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=tokens["unk"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    first, after, last = "", "", ""
    if model.config.is_encoder_decoder:
        after = tokens["eos"]
    elif model_type == "xlnet":
        after, last = tokens["sep"], f"{tokens['cls']}:2"
    elif not _is_decoder(model_type):
        first, after = tokens["cls"], tokens["sep"]
    if after:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {after} {last}".split(),
            pair=f"{first} $A {after} $B:1 {after}:1 {last}".split(),
            special_tokens=[(name, vocabulary[name]) for name in set(tokens.values())],
        )
    reads_segments = "token_type_ids" in inspect.signature(model.forward).parameters and (
        getattr(config, "type_vocab_size", 0) > 1 or model_type == "xlnet"
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", *["token_type_ids"] * reads_segments, "attention_mask"],
        model_max_length=LONGEST_ROW,
        padding_side=inspect.getattr_static(own, "padding_side", "right"),  # static: the class may need a package
        **{f"{role}_token": name for role, name in tokens.items()},
    )


def _byte_level(own: type[Any]) -> transformers.PreTrainedTokenizerFast:
    """Make a tokenizer of pieces, for architectures that AutoTokenizer loads with their own class whatever was saved.

    A word is split into its letter and its digits. Padding is <|endoftext|>, also where the config has none.
    """
    space = "\u0120"  # as byte-level vocabularies write it
    pieces = [space, "w", f"{space}w", *"0123456789"]
    names = ["<|endoftext|>", *(f"[unused{number}]" for number in range(1, FIRST_WORD)), *pieces]
    return own(
        vocab={name: number for number, name in enumerate(names)}, merges=[(space, "w")], model_max_length=LONGEST_ROW
    )
