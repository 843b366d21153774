import os

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from scala_lab.data.tasks import TASKS, Rows, TaskData
from scala_lab.data.tokens import (
    Padding,
    cache_folder,
    collate,
    data_fingerprint,
    fingerprint,
    tokenise,
    tokenizer_fingerprint,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]


class CountingTokenizer(PreTrainedTokenizerFast):
    calls = 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        return super().__call__(*arguments, **options)


def make_tokenizer(words=WORDS, inputs=("input_ids", "token_type_ids", "attention_mask"), **options):
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    specials = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return CountingTokenizer(tokenizer_object=backend, model_input_names=list(inputs), **specials, **options)


ROWS = Rows(["a b c", "", "d"], None, np.array([1, 0, 1]))
PAIRS = Rows(["a b", "c"], ["d e f", "g"], np.array([0.5, 2.0], dtype=np.float32))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALA_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def lists(split):
    return [split.ids[start:end].tolist() for start, end in zip(split.offsets, split.offsets[1:], strict=False)]


def test_rows_laid_end_to_end():
    split = tokenise(ROWS, make_tokenizer(), 128)
    assert lists(split) == [[2, 4, 5, 6, 3], [2, 3], [2, 7, 3]]
    assert split.lengths.tolist() == [5, 2, 3]
    assert (split.ids.dtype, split.offsets.dtype, split.type_ids.dtype) == (np.int32, np.int64, np.uint8)
    assert split.labels.tolist() == [1, 0, 1]
    assert len(split) == 3


def test_pairs_carry_type_ids_and_are_cut_to_the_length():
    split = tokenise(PAIRS, make_tokenizer(), 6)
    assert lists(split) == [[2, 4, 3, 7, 8, 3], [2, 6, 3, 10, 3]]
    assert split.type_ids.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert split.labels.dtype == np.float32


def test_a_model_without_type_ids_gets_none():
    split = tokenise(PAIRS, make_tokenizer(inputs=("input_ids", "attention_mask")), 128)
    assert split.type_ids is None
    assert "token_type_ids" not in collate(split, np.arange(2), Padding(0))


def test_no_row_is_longer_than_the_tokenizers_model_takes():
    assert tokenise(ROWS, make_tokenizer(model_max_length=4), 128).lengths.max() == 4


def test_many_calls_make_the_same_split_as_one(monkeypatch):
    rows = Rows([" ".join("abcdefgh"[: i % 9]) for i in range(50)], None, np.arange(50))
    whole = tokenise(rows, make_tokenizer(), 128)
    monkeypatch.setattr("scala_lab.data.tokens.ROWS_PER_CALL", 7)
    monkeypatch.setenv("SCALA_LAB_CACHE", os.environ["SCALA_LAB_CACHE"] + "2")
    parts = tokenise(rows, make_tokenizer(), 128)
    assert lists(parts) == lists(whole)


def test_take_reorders_and_repeats_rows():
    split = tokenise(PAIRS, make_tokenizer(), 128)
    taken = split.take(np.array([1, 0, 1]))
    first, second = lists(split)
    assert lists(taken) == [second, first, second]
    assert taken.labels.tolist() == [2.0, 0.5, 2.0]
    assert taken.type_ids.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1]
    assert len(split.take(np.array([], dtype=np.int64))) == 0


def test_collate_pads_right_to_the_longest_of_the_batch():
    batch = collate(tokenise(ROWS, make_tokenizer(), 128), np.array([2, 1]), Padding(9))
    assert batch["input_ids"].tolist() == [[2, 7, 3], [2, 3, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_collate_equals_the_tokenizers_own_padding():
    rows = Rows(["a b c d", "e", "f g"], ["h", "a b c", ""], np.zeros(3, np.float32))
    tokenizer = make_tokenizer()
    batch = collate(tokenise(rows, tokenizer, 128), np.arange(3), Padding(tokenizer.pad_token_id))
    expected = tokenizer(rows.first, rows.second, padding=True, return_tensors="pt")
    for name, tensor in expected.items():
        assert torch.equal(batch[name], tensor)
    assert batch["labels"].dtype == torch.float32


def test_collate_of_no_rows_is_an_empty_batch():
    batch = collate(tokenise(ROWS, make_tokenizer(), 128), np.array([], dtype=np.int64), Padding(0))
    assert batch["input_ids"].shape == (0, 0)


def test_the_second_time_nothing_is_tokenised(cache):
    tokenizer = make_tokenizer()
    first = tokenise(PAIRS, tokenizer, 128)
    assert tokenizer.calls == 1
    second = tokenise(PAIRS, tokenizer, 128)
    assert tokenizer.calls == 1
    assert len(list(cache.rglob("*.tokens"))) == 1
    for name in ("ids", "offsets", "type_ids", "labels"):
        assert getattr(first, name).dtype == getattr(second, name).dtype
        assert np.array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": Rows(["a b", "c"], ["d e f", "h"], PAIRS.labels)},
        {"rows": Rows(["a b", "c"], ["d e f", "g"], PAIRS.labels + 1)},
        {"rows": Rows(["a ", "bc"], ["d e f", "g"], PAIRS.labels)},
        {"rows": Rows(["a b", "c", "d e f", "g"], None, np.tile(PAIRS.labels, 2))},
        {"tokenizer": make_tokenizer(words=[*WORDS, "i"])},
        {"max_length": 127},
    ],
)
def test_whatever_decides_the_tokens_is_part_of_the_key(cache, change):
    usual = {"rows": PAIRS, "tokenizer": make_tokenizer(), "max_length": 128}
    tokenise(**usual)
    tokenise(**{**usual, **change})
    assert len(list(cache.rglob("*.tokens"))) == 2


def test_a_tokenizers_fingerprint_does_not_change_with_use():
    tokenizer = make_tokenizer()
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["a b c"], truncation=True, max_length=2, padding="max_length")
    assert tokenizer_fingerprint(tokenizer) == before == tokenizer_fingerprint(make_tokenizer())


def _flip_last_byte(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-5], _flip_last_byte])
def test_a_damaged_file_is_made_again(cache, damage):
    tokenizer = make_tokenizer()
    split = tokenise(PAIRS, tokenizer, 128)
    (file,) = cache.rglob("*.tokens")
    sound = file.read_bytes()
    file.write_bytes(damage(sound))
    assert lists(tokenise(PAIRS, tokenizer, 128)) == lists(split)
    assert tokenizer.calls == 2
    assert file.read_bytes() == sound


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("SCALA_LAB_CACHE", str(blocked / "cache"))
    assert lists(tokenise(ROWS, make_tokenizer(), 128))[2] == [2, 7, 3]


def test_a_failed_write_leaves_nothing_behind(cache, monkeypatch):
    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr("scala_lab.data.tokens.os.replace", fail)
    tokenise(ROWS, make_tokenizer(), 128)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_where_the_cache_lies(tmp_path, monkeypatch):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SCALA_LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "scala_lab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "scala_lab"


def test_the_datas_fingerprint_is_of_its_content():
    def data(train, dev, task="sst2"):
        return TaskData(TASKS[task], train, {"dev": dev})

    other = Rows(["a b c", "", "e"], None, ROWS.labels)
    assert data_fingerprint(data(ROWS, other)) == data_fingerprint(data(Rows(**vars(ROWS)), other))
    prints = [data_fingerprint(data(*splits)) for splits in ((ROWS, other), (other, ROWS), (ROWS, ROWS))]
    prints.append(data_fingerprint(data(ROWS, other, "qnli")))
    assert len(set(prints)) == 4
    assert fingerprint(ROWS) != fingerprint(other)
