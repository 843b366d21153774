"""One step of LAMB over 17 million parameters beside pytorch-optimizer's.

    python benchmarks/optimizer.py [--threads 2] [--rounds 30]

Both update a randomly filled BERT in the shapes of MiniLM-L3 (3 layers of width 384, 30,522 words) with the same random
gradients: ours as a run has it, with its gradients in one flat buffer, the peer's as its users call it, with batched
tensor operations. A step reads parameter, gradient and both moments and writes three of them back.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass

import tyro
from measures import compared, write_result
from peers import add_peers
from turns import in_turns

from scala_lab import RunSpec


@dataclass(frozen=True)
class Options:
    """LAMB beside pytorch-optimizer's."""

    threads: int = 2
    """CPU threads of both sides."""
    rounds: int = 30
    """Steps of both sides."""


def main(options: Options) -> None:
    """Measure, print and write benchmarks/results/optimizer.json."""
    add_peers()
    import torch
    from pytorch_optimizer import Lamb as TheirLamb
    from transformers import BertConfig, BertForSequenceClassification

    from scala_lab.optim.build import build_optimizer
    from scala_lab.training.trainer import GradientBuffer

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = BertConfig(hidden_size=384, num_hidden_layers=3, intermediate_size=1536, num_attention_heads=12)
    model = BertForSequenceClassification(config)
    peer_model = copy.deepcopy(model)
    buffer = GradientBuffer(model.parameters())
    buffer.gradients.normal_(std=1e-3)
    for parameter, peer_parameter in zip(model.parameters(), peer_model.parameters(), strict=True):
        assert parameter.grad is not None
        peer_parameter.grad = parameter.grad.clone()
    spec = RunSpec.of(method="lamb").resolved()
    ours = build_optimizer(model, spec.optim, 1e-3)
    peer = TheirLamb(peer_model.parameters(), lr=1e-3, weight_decay=spec.optim.weight_decay)
    sides = {"ours": lambda _: ours.step(), "pytorch-optimizer": lambda _: peer.step()}
    seconds = in_turns(sides, options.rounds, warm_up=3)
    in_milliseconds = [[1e3 * value for value in seconds[name]] for name in sides]
    count = sum(parameter.numel() for parameter in model.parameters())
    measure = compared(
        f"Lamb.step() on {count / 1e6:.1f} million parameters",
        *in_milliseconds,
        "ms",
        "peer over ours",
        "pytorch-optimizer",
        goal=1.5,
    )
    details = {"parameters": count, "tensors": len(buffer.parameters), "seconds": seconds}
    write_result("optimizer", "Optimizer", [measure], asdict(options), details)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
