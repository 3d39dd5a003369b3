"""What the flattened code base has in one place: it is copied there as `parts.py`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_gather, all_reduce


def rotated(x, theta):
    """RoPE."""
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(half) / half)
    angles = torch.outer(torch.arange(x.shape[-2]), rates)
    first, second = x.split(half, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def distances(scores):
    """ALiBi."""
    heads, seq = scores.shape[1:3]
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    places = torch.arange(seq)
    return slopes.view(-1, 1, 1) * (places.view(-1, 1) - places).abs()


class LoRA(nn.Linear):
    """A Linear with an adapter."""

    def __init__(self, inner, outer, bias=True, rank=2):
        super().__init__(inner, outer, bias=bias)
        self.a, self.b = nn.Linear(inner, rank, bias=False), nn.Linear(rank, outer, bias=False)

    def forward(self, input):
        return super().forward(input) + self.b(self.a(input))


class Mixture(nn.Module):
    """Experts, and how uneven their load is."""

    def __init__(self, dim, inner, experts, top_k):
        super().__init__()
        self.router, self.top_k = nn.Linear(dim, experts), top_k
        self.up = nn.ModuleList(nn.Linear(dim, inner) for _ in range(experts))
        self.down = nn.ModuleList(nn.Linear(inner, dim) for _ in range(experts))

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        chosen = shares >= shares.topk(self.top_k).values[..., -1:]
        mixed = sum(
            down(F.gelu(up(x))) * (shares * chosen)[..., i : i + 1]
            for i, (up, down) in enumerate(zip(self.up, self.down, strict=True))
        )
        return mixed, (shares.mean((0, 1)) * chosen.float().mean((0, 1))).sum()


def processes():
    """Those that share each matrix product, or each sequence."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Copied(torch.autograd.Function):
    """The same on all processes, whose gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        if processes() > 1:
            dist.all_reduce(gradient)
        return gradient


class Columns(nn.Linear):
    """A Linear whose outputs are split over processes."""

    def __init__(self, inner, outer, bias=True):
        super().__init__(inner, outer // processes(), bias=bias)

    def forward(self, input):
        return super().forward(Copied.apply(input))


class Rows(nn.Linear):
    """A Linear whose inputs are split over processes."""

    def __init__(self, inner, outer, bias=True):
        super().__init__(inner // processes(), outer, bias=bias)

    def forward(self, input):
        product = F.linear(input, self.weight)
        product = all_reduce(product) if processes() > 1 else product
        return product if self.bias is None else product + self.bias


def own(x, dim):
    """This process's part of a sequence."""
    return x.chunk(processes(), dim)[dist.get_rank() if processes() > 1 else 0]


def gathered(x):
    """Keys or values of the whole sequence."""
    return torch.cat(all_gather(x), dim=2) if processes() > 1 else x
