from __future__ import annotations

import numpy as np
from transformers import AutoModelForSequenceClassification

from scala_lab.timing.harness import forward_flops


def test_flops_are_those_of_the_layers(tiny_bert):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert)
    width, inner, layers, labels = 16, 32, 2, 2
    flops = forward_flops(model)
    assert flops.per_token == 2 * layers * (4 * width**2 + 2 * width * inner)
    assert flops.per_row == 2 * (width**2 + width * labels)  # pooler and head see one token
    assert flops.per_square == 4 * layers * width
    assert flops.of(np.array([3, 5])) == 2 * flops.per_row + 8 * flops.per_token + 34 * flops.per_square
