"""The embedded tasks: labels follow from meaning, splits are apart, and everything is a function of the name."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter

import numpy as np
import pytest

from scala_lab.data.synthetic import generation as sentiment
from scala_lab.data.synthetic import grammar
from scala_lab.data.synthetic.generation import DEV_ROWS, EMBEDDED, LABEL_NOISE, TRAIN_ROWS, generate, lines
from scala_lab.data.synthetic.grammar import (
    AROUND,
    CONTRADICTION,
    DISJOINT,
    ENTAILMENT,
    EQUAL,
    NEUTRAL,
    OTHER,
    QUANTIFIERS,
    RARE,
    WITHIN,
    Action,
    Phrase,
    Rng,
    Scene,
    all_words,
    judge,
    negate,
    relate_phrases,
)
from scala_lab.data.synthetic.pairs import answers, draw_fact, draw_scene, edit, infer, question_pair, similarity, swap
from scala_lab.data.tasks import Rows
from tests.processes import run

DIGESTS = {
    "mini-sst2": ("1d0f8477593edcea", "4874d8054e13edf4"),
    "mini-qnli": ("77e4df99c04198b4", "1330ee5f9a0d0106"),
    "mini-mnli": ("9eab331150946839", "864f8f5d3c504f5c"),
    "mini-qqp": ("4a4abae18d1ea864", "bb3903e7cb3eb5ef"),
    "mini-stsb": ("c58bead2419f0fb7", "18ca9eb6b2035e5a"),
}
"""Beginnings of the hashes of train and dev."""
CLASSES = {"mini-sst2": 2, "mini-qnli": 2, "mini-mnli": 3, "mini-qqp": 2}


@pytest.fixture(scope="module")
def tasks() -> dict[str, dict[str, Rows]]:
    return {name: generate(name) for name in EMBEDDED}


def _texts(rows: Rows) -> list[tuple[str, str | None]]:
    return list(zip(rows.first, rows.second or [None] * len(rows), strict=True))


def _digest(rows: Rows) -> str:
    return hashlib.sha256(repr(_texts(rows)).encode() + rows.labels.tobytes()).hexdigest()


def test_sizes_and_no_row_twice_nor_in_both_splits(tasks: dict[str, dict[str, Rows]]) -> None:
    for splits in tasks.values():
        assert (len(splits["train"]), len(splits["dev"])) == (TRAIN_ROWS, DEV_ROWS)
        both = _texts(splits["train"]) + _texts(splits["dev"])
        assert len(set(both)) == TRAIN_ROWS + DEV_ROWS


def test_rows_are_the_published_ones(tasks: dict[str, dict[str, Rows]]) -> None:
    """Results on the embedded tasks are comparable between versions only while the rows are the same."""
    assert {name: tuple(_digest(rows)[:16] for rows in splits.values()) for name, splits in tasks.items()} == DIGESTS


def test_rows_do_not_depend_on_the_process(tasks: dict[str, dict[str, Rows]]) -> None:
    code = (
        "import hashlib; from scala_lab.data.synthetic.generation import generate; rows = generate('mini-mnli')['dev'];"
        "texts = list(zip(rows.first, rows.second));"
        "print(hashlib.sha256(repr(texts).encode() + rows.labels.tobytes()).hexdigest())"
    )
    said = run([sys.executable, "-c", code], env={"PYTHONHASHSEED": "12345"})
    assert said.strip() == _digest(tasks["mini-mnli"]["dev"])


def test_classes_are_balanced_and_scores_spread(tasks: dict[str, dict[str, Rows]]) -> None:
    for name, classes in CLASSES.items():
        for split, rows in tasks[name].items():
            assert rows.labels.dtype == np.int64
            shares = np.bincount(rows.labels, minlength=classes) / len(rows)
            assert np.allclose(shares, 1 / classes, atol=0.01), (name, split)
    scores = tasks["mini-stsb"]["dev"].labels
    assert scores.dtype == np.float32
    assert scores.min() >= 0
    assert scores.max() <= 5
    assert np.all(np.histogram(scores, bins=5, range=(0, 5))[0] > 0.05 * len(scores))


def test_a_bag_of_words_does_not_solve_dev(tasks: dict[str, dict[str, Rows]]) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    for name in ("mini-sst2", "mini-mnli"):
        train, dev = tasks[name]["train"], tasks[name]["dev"]
        words = CountVectorizer(token_pattern=r"\S+")
        model = LogisticRegression(max_iter=200, C=0.1)
        model.fit(words.fit_transform(f"{a} {b}" for a, b in _texts(train)), train.labels)
        accuracy = model.score(words.transform(f"{a} {b}" for a, b in _texts(dev)), dev.labels)
        assert accuracy < 0.75, name


def test_dev_is_harder_longer_and_richer_in_rare_words(tasks: dict[str, dict[str, Rows]]) -> None:
    def rare_share(rows: Rows) -> float:
        counts = Counter(word for text in rows.first for word in text.split())
        return sum(counts[word] for word in RARE) / sum(counts.values())

    for name in ("mini-sst2", "mini-mnli", "mini-qnli"):
        train, dev = tasks[name]["train"], tasks[name]["dev"]
        assert rare_share(dev) > 2.5 * rare_share(train), name
        assert np.mean([len(text.split()) for text in dev.first]) > np.mean([len(text.split()) for text in train.first])


def test_label_noise_is_a_few_percent_of_train() -> None:
    """A pair of questions that are word for word the same is a duplicate, unless noise said otherwise."""
    rows = generate("mini-qqp")["train"]
    same = [label for (first, second), label in zip(_texts(rows), rows.labels, strict=True) if first == second]
    assert len(same) > 200
    assert 0.3 * LABEL_NOISE < 1 - np.mean(same) < 2.5 * LABEL_NOISE


@pytest.mark.parametrize(
    ("first", "second", "restrictors", "bodies", "label"),
    [
        ("every", "every", WITHIN, EQUAL, NEUTRAL),
        ("every", "every", AROUND, EQUAL, ENTAILMENT),
        ("every", "some", EQUAL, WITHIN, ENTAILMENT),
        ("some", "some", WITHIN, WITHIN, ENTAILMENT),
        ("some", "every", EQUAL, EQUAL, NEUTRAL),
        ("no", "no", AROUND, AROUND, ENTAILMENT),
        ("no", "no", WITHIN, EQUAL, NEUTRAL),
        ("no", "some", EQUAL, EQUAL, CONTRADICTION),
        ("no", "some", AROUND, EQUAL, CONTRADICTION),
        ("most", "some", EQUAL, EQUAL, ENTAILMENT),
        ("most", "most", EQUAL, WITHIN, ENTAILMENT),
        ("most", "most", WITHIN, EQUAL, NEUTRAL),
        ("most", "most", AROUND, EQUAL, NEUTRAL),
        ("most", "most", EQUAL, DISJOINT, CONTRADICTION),
        ("every", "not every", EQUAL, EQUAL, CONTRADICTION),
        ("not every", "every", WITHIN, EQUAL, CONTRADICTION),
        ("some", "some", DISJOINT, EQUAL, NEUTRAL),
        ("every", "some", EQUAL, DISJOINT, CONTRADICTION),
    ],
)
def test_quantifiers_project_relations_as_textbook_logic_says(first, second, restrictors, bodies, label) -> None:
    assert judge(first, second, restrictors, bodies) == label


def test_larger_populations_change_no_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [EQUAL, WITHIN, AROUND, DISJOINT, negate(EQUAL, False, True), negate(DISJOINT, True, True)]
    cases = [
        (q, r, a, b)
        for q in QUANTIFIERS
        for r in QUANTIFIERS
        for a in (EQUAL, WITHIN, AROUND, DISJOINT, OTHER)
        for b in bodies
    ]
    quick = [judge(*case) for case in cases]
    monkeypatch.setattr(grammar, "_MAX_POPULATIONS", 20_000)
    grammar._populations.cache_clear()
    judge.cache_clear()
    try:
        assert [judge(*case) for case in cases] == quick
    finally:
        monkeypatch.undo()
        grammar._populations.cache_clear()
        judge.cache_clear()


def test_meaning_of_hand_written_scenes() -> None:
    cat = Action("chase", Phrase("cat"))
    poodle, dog = Scene("some", Phrase("poodle", "small"), cat), Scene("some", Phrase("dog"), cat)
    assert infer(poodle, dog) == ENTAILMENT
    assert infer(dog, poodle) == NEUTRAL
    animal = cat._replace(object=Phrase("animal"))
    assert infer(dog, dog._replace(action=animal)) == ENTAILMENT
    no_dog = Scene("no", Phrase("dog"), animal)
    assert infer(no_dog, poodle._replace(quantifier="no")) == ENTAILMENT
    assert infer(no_dog, poodle) == CONTRADICTION
    not_chased = Scene("every", Phrase("dog"), cat._replace(negated=True))
    assert infer(not_chased, Scene("no", Phrase("dog"), cat)) == ENTAILMENT
    nested = Phrase("dog", None, Action("notice", Phrase("tabby")))
    assert relate_phrases(nested, Phrase("dog", None, Action("notice", Phrase("cat")))) == WITHIN
    assert relate_phrases(nested, Phrase("dog", None, Action("notice", Phrase("cat"), negated=True))) == DISJOINT


def test_every_edit_keeps_a_scene_that_follows_from_itself() -> None:
    rng = Rng("edits")
    for _ in range(300):
        scene = draw_scene(rng, 1)
        assert infer(scene, scene) == ENTAILMENT
        assert infer(scene, edit(rng, scene, "synonym", 3)) == ENTAILMENT
        flipped = edit(rng, scene, "negate", 1)
        assert edit(rng, flipped, "negate", 1) == scene


def test_a_fact_answers_what_it_tells_and_nothing_else() -> None:
    fact = Scene("the", Phrase("painter", "old"), Action("purchase", Phrase("car"), "park", None))
    asks = Scene("the", Phrase("artist"), Action("get", Phrase("vehicle")))
    assert answers(fact, asks, "where")
    assert answers(fact, asks, "who")
    assert not answers(fact, asks, "when"), "the fact names no day"
    assert not answers(fact, asks._replace(subject=Phrase("singer")), "where")
    assert not answers(fact, swap(asks._replace(action=Action("get", Phrase("dog")))), "where")
    assert not answers(fact._replace(action=fact.action._replace(negated=True)), asks, "who")
    assert not answers(fact, asks._replace(action=asks.action._replace(time="monday")), "who")


def test_similarity_is_five_for_itself_and_falls_with_changes() -> None:
    rng = Rng("similarity")
    drops = []
    for _ in range(300):
        fact = draw_fact(rng, 0)
        assert similarity(fact, fact) == pytest.approx(5.0)
        changed = edit(rng, fact, "sibling opposite_verb", 2)
        assert similarity(fact, changed) == pytest.approx(similarity(changed, fact))
        drops.append(similarity(fact, fact) - similarity(fact, changed))
    assert min(drops) >= 0
    assert np.mean(drops) > 0.5


def test_structure_decides_the_sign_of_an_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = ("good", 2.0), ("bad", -2.0)
    monkeypatch.setattr(sentiment, "clause", lambda rng: rng.choice((good, bad)))
    rng = Rng("structure")
    signs = {text: value > 0 for text, value in (sentiment.compose(rng, 1) for _ in range(3000))}
    for text, positive in {
        "although bad , good": True,
        "although good , bad": False,
        "bad , but good": True,
        "good , though bad": True,
        "bad even if good": False,
        "good and good": True,
        "i doubt that good": False,
        "it is not true that bad": True,
        "if only good": False,
        "it is clear that bad": False,
    }.items():
        assert signs[text] is positive, text


def test_synonymous_questions_are_duplicates_and_swapped_ones_are_not() -> None:
    rng = Rng("questions")
    assert all(question_pair(rng, (1,), True)[2] == 1 for _ in range(300))
    labels = [question_pair(rng, (2,), False)[2] for _ in range(300)]
    assert np.mean(labels) < 0.5


def test_pretraining_text_is_seeded_and_uses_every_kind_of_line() -> None:
    assert lines(50, 3) == lines(50, 3)
    assert lines(50, 3) != lines(50, 4)
    texts = [line.text for line in lines(20_000, 0)]
    words = {word for text in texts for word in text.split()}
    assert len(RARE & words) > 0.98 * len(RARE), "pretraining must know the words that training rows seldom use"
    assert all(1 <= len(text.split("\t")) <= 2 for text in texts)
    assert max(len(text.split()) for text in texts) < 120
    assert 500 <= len(set(all_words())) <= 900


def test_pairs_of_pretraining_fit_or_not_and_their_words_alone_do_not_tell() -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    pairs = [line for line in lines(8_000, 5) if line.fits is not None]
    assert all("\t" in line.text for line in pairs)
    fits = np.array([line.fits for line in pairs])
    assert 0.45 < fits.mean() < 0.65
    words = CountVectorizer(token_pattern=r"\S+").fit_transform(line.text for line in pairs)
    model = LogisticRegression(max_iter=200, C=0.1).fit(words[:4000], fits[:4000])
    assert model.score(words[4000:], fits[4000:]) < fits[4000:].mean() + 0.06


def test_a_row_takes_few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is generated in about a second: rows that do not fit are seldom made."""
    drawn = Counter()

    class Counting(random.Random):
        def random(self) -> float:
            drawn["numbers"] += 1
            return super().random()

    monkeypatch.setattr(random, "Random", Counting)
    rows = generate("mini-mnli")
    assert drawn["numbers"] < 100 * sum(map(len, rows.values()))
