from __future__ import annotations

import torch

from scala_lab.curvature.shards import graph_bytes


def second_derivative_graph(rows):
    """Gradient of sum(tanh(x @ w)^2) by w, x with that many rows of 5 numbers in float32."""
    weight = torch.ones(5, 7, requires_grad=True)
    loss = (torch.ones(rows, 5) @ weight).tanh().square().sum()
    return torch.autograd.grad(loss, [weight], create_graph=True)


def test_counts_each_storage_once_and_no_leaf():
    x = torch.ones(6, requires_grad=True)
    y = x.exp()
    assert graph_bytes([y]) == 24  # exp saves its result
    assert graph_bytes([y * y, y + 1]) == 24
    assert graph_bytes([x * x]) == 0
    assert graph_bytes([x]) == 0


def test_a_gradient_graph_grows_with_the_rows_and_not_with_the_weights():
    small, large = (graph_bytes(second_derivative_graph(rows)) for rows in (10, 20))
    # by hand: x, tanh(x w), its square's gradient and the gradient that tanh hands on, and the factor 2 of the square
    assert large > small
    assert large - small == 2 * (small - graph_bytes(second_derivative_graph(5)))


def test_what_a_function_in_python_saved():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x * 2)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    assert graph_bytes([Double.apply(torch.ones(3, requires_grad=True))]) == 12
