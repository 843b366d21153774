"""Every recipe once more, as a plain loop over the stock model: one row at a time, unpadded, in float64.

Nothing here is shared with the trainer but the random numbers (which must be the same), the order of rows, the
optimizers (tested against the formulas elsewhere) and the schedule.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from scala_lab.data.tokens import Padding, collate
from scala_lab.methods.base import normal_noise, uniform_noise
from scala_lab.optim.build import build_optimizer, rate_factor


def plain_loop(model, training, steps, watch=lambda: None):
    """Train a stock model for some steps as the recipe's formulas say, with the rows that a trainer would take.

    `watch` is called in every step when the gradient is there.
    """
    spec = training.spec
    optimizer = build_optimizer(model, spec.optim, training.rate)
    model.train()
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        add_gradient(model, training, step)
        watch()
        if spec.optim.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.optim.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.rate * rate_factor(step, training.steps, spec.optim.warmup)
        optimizer.step()
    return model


def add_gradient(model, training, step):
    """Add the mean gradient of a step's rows to `.grad`."""
    spec, prepared = training.spec, training.data
    rows = rows_of(spec, len(prepared.train), step)
    samples = []
    for row in rows:
        batch = collate(prepared.train, np.array([row]), Padding())
        label = batch.pop("labels")
        samples.append(Row(model, batch, label, prepared.task.regression, spec.seed, step, int(row)))
    options = dict(spec.recipe.options)
    if "sam_rho" in options:
        sam(model, samples, **options)
        return
    for sample in samples:
        (objective(sample, spec.recipe.method, options) / len(rows)).backward()


def rows_of(spec, count, step):
    """The rows of a step in the order of the epoch's shuffle."""
    size = spec.batches.batch_size
    epoch, index = divmod(step, -(-count // size))
    return np.random.default_rng([spec.seed, epoch]).permutation(count)[index * size : (index + 1) * size]


def sam(model, samples, sam_rho, sam_adaptive, sam_m=None):
    """Set `.grad` to the mean over groups, weighted by size, of the gradient of the mean loss at the group's ascent."""
    (samples[0].loss(samples[0].logits(samples[0].embeddings()))).backward()
    weights = [weight for weight in model.parameters() if weight.grad is not None]  # those that the loss depends on

    def gradient(group):
        loss = sum(sample.loss(sample.logits(sample.embeddings())) for sample in group) / len(group)
        return torch.autograd.grad(loss, weights)

    total = [torch.zeros_like(weight) for weight in weights]
    for start in range(0, len(samples), sam_m or len(samples)):
        group = samples[start : start + (sam_m or len(samples))]
        pairs = list(zip(weights, gradient(group), strict=True))
        scales = [w.detach().abs() + 0.01 if sam_adaptive and w.ndim > 1 else torch.ones_like(w) for w in weights]
        norm = sum((t * g).square().sum() for t, (_, g) in zip(scales, pairs, strict=True)).sqrt()
        kept = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            for t, (w, g) in zip(scales, pairs, strict=True):
                w += sam_rho * t * t * g / norm if norm > 0 else 0.0
        for sums, found in zip(total, gradient(group), strict=True):
            sums += len(group) / len(samples) * found
        with torch.no_grad():
            for w, before in zip(weights, kept, strict=True):
                w.copy_(before)
    for weight, mean in zip(weights, total, strict=True):
        weight.grad = mean


class Row:
    """One sample and the stock model."""

    def __init__(self, model, inputs, label, regression, seed, step, number):
        self.model, self.inputs, self.label, self.regression = model, inputs, label, regression
        self.seed, self.step, self.number = seed, step, torch.tensor([number])

    def embeddings(self):
        return self.model.get_input_embeddings()(self.inputs["input_ids"])

    def logits(self, embeddings):
        rest = {name: value for name, value in self.inputs.items() if name != "input_ids"}
        return self.model(inputs_embeds=embeddings, **rest).logits

    def loss(self, logits):
        if self.regression:
            return (logits.squeeze() - self.label.double().squeeze()) ** 2
        return functional.cross_entropy(logits, self.label)

    def divergence(self, first, second):
        if self.regression:
            return ((first - second) ** 2).sum()
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        return ((p.exp() - q.exp()) * (p - q)).sum()

    def noise(self, kind):
        _, length, width = self.embeddings().shape
        return kind(self.seed, self.step, self.number, torch.arange(length)[None], width, torch.float64)


def objective(row, method, options):
    if method == "freelb":
        return freelb(row, options)
    e = row.embeddings()
    clean = row.logits(e)
    loss = row.loss(clean)
    if method == "rdrop":  # without dropout the second pass is the first
        second = row.logits(e)
        return (loss + row.loss(second)) / 2 + options["alpha"] * row.divergence(clean, second) / 2
    if "noise" not in options:
        return loss
    delta = scala_noise(row, e.detach(), clean.detach(), options)
    return loss + options["lambda_"] * row.divergence(clean.detach(), row.logits(e + delta))


def scala_noise(row, e, clean, options):
    if options["noise"] == "none":
        return torch.zeros_like(e)
    start = row.noise(normal_noise)
    if options["noise"] == "gaussian":
        return options["omega"] * start
    delta = (options["sigma"] * start).requires_grad_()
    raised = row.divergence(clean, row.logits(e + delta))
    (g,) = torch.autograd.grad(raised, delta)
    if options["ascent"] == "normalized":
        g = g / g.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(g.dtype).tiny)
    return (delta.detach() + options["rho"] * g).clamp(-options["omega"], options["omega"])


def freelb(row, options):
    e, l2 = row.embeddings(), options["adv_norm"] == "l2"
    delta = row.noise(uniform_noise) * options["adv_init"] / (e[0].numel() ** 0.5 if l2 else 1.0)
    total = 0.0
    for k in range(options["adv_passes"]):
        delta = delta.detach().requires_grad_()
        loss = row.loss(row.logits(e + delta))
        total = total + loss / options["adv_passes"]
        if k + 1 < options["adv_passes"]:
            (g,) = torch.autograd.grad(loss, delta, retain_graph=True)
            delta = delta.detach() + options["adv_lr"] * g / (g.norm() if l2 else g.abs().max()).clamp_min(1e-8)
            limit = options["adv_max_norm"] or float("inf")
            delta = delta * min(1.0, limit / delta.norm()) if l2 else delta.clamp(-limit, limit)
    return total
