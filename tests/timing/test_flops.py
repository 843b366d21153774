from __future__ import annotations

from transformers import AutoModelForSequenceClassification

from scala_lab.timing.harness import forward_flops


def test_flops_are_those_of_the_layers(tiny_bert):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert)
    width, inner, layers, labels = 16, 32, 2, 2
    per_row, per_token, per_square = forward_flops(model).coef
    assert per_token == 2 * layers * (4 * width**2 + 2 * width * inner)
    assert per_row == 2 * (width**2 + width * labels)  # pooler and head see one token
    assert per_square == 4 * layers * width
