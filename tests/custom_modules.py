"""Custom modules, wrong and right ones, and how they are put into a small config."""

from collections.abc import Sequence
from typing import Any, ClassVar

import fiddle as fdl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt import configs, model
from fidgpt.model import AttentionContext
from fidgpt.runs.building import build_trainer
from fidgpt.train.checks import preflight


class Mixing(nn.Module):
    """A base of mixers with a matrix before and one after."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__()
        self.value = nn.Linear(hidden_dim, hidden_dim)
        self.out = model.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        value = self.value(x)
        (value,) = ctx.update_cache(self, [value])
        return self.out(self.mix(value, ctx)).to(x.dtype)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible())


def averaged(value: Tensor, visible: Tensor) -> Tensor:
    weight = visible.squeeze(1).to(value.dtype)
    return weight / weight.sum(-1, keepdim=True).clamp(min=1) @ value


class Uniform(Mixing):
    """The mean of all tokens so far."""


# What is wrong.


class Future(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return value.mean(1, keepdim=True).expand_as(value) * (ctx.positions >= 0).unsqueeze(-1)


class BeyondMask(Mixing):
    mask: ClassVar[Any] = model.Prefix(4)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible(model.Prefix(6)))


class Documents(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        seq = value.shape[1]
        causal = torch.ones(seq, seq, dtype=torch.bool, device=value.device).tril()
        return averaged(value, causal & (ctx.positions >= 0).unsqueeze(1).unsqueeze(1))


class Padding(Mixing):
    """Masks by positions, which are equal for all padding, and forgets that it is negative."""

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        visible = ctx.positions.unsqueeze(-1) >= ctx.positions.unsqueeze(-2)
        if ctx.documents is not None:
            visible = visible & (ctx.documents.unsqueeze(-1) == ctx.documents.unsqueeze(-2))
        return averaged(value, visible.unsqueeze(1))


class Spreading(Mixing):
    """A softmax over no key at all, which is NaN at padding."""

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        visible = ctx.visible().squeeze(1)
        scores = torch.zeros_like(visible, dtype=value.dtype).masked_fill(~visible, -torch.inf)
        return scores.softmax(-1) @ value


class Transposed(Mixing):
    def forward(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        return super().forward(x, ctx).sum(1, keepdim=True)


class Random(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return F.dropout(super().mix(value, ctx), 0.5)


class AcrossRows(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible()) - value.mean(0, keepdim=True)


class OutsideTensor(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.scale = torch.ones(hidden_dim)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return super().mix(value, ctx) * self.scale.to(value.device)


class HalfFilled(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.rate = nn.Parameter(torch.zeros(hidden_dim))

    def reset_parameters(self) -> None:
        """Leave the rate to the constructor."""


class Unused(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.spare = model.Linear(hidden_dim, hidden_dim)


class ShiftingMLP(nn.Module):
    """Reads the token before, which an MLP does not get in generation."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__()
        self.out = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + F.pad(x, (0, 0, 1, 0))[:, :-1])


def leaky_kernel(query: Tensor, key: Tensor, value: Tensor, scoring: Any) -> Tensor:
    """A kernel of a user's that forgets the mask."""
    return F.scaled_dot_product_attention(query, key, value)


class LeakyBlock(model.Block):
    def forward(self, x: Tensor, ctx: AttentionContext | None = None) -> Tensor:
        return super().forward(x, ctx) + x.mean(1, keepdim=True)


class LeakyEmbedding(model.Embedding):
    def forward(self, tokens: Tensor, ctx: AttentionContext | None = None) -> Tensor:
        x = super().forward(tokens, ctx)
        return x + F.pad(x, (0, 0, 0, 1))[:, 1:]


class LeakyModel(model.Transformer):
    def features(self, tokens: Tensor, ctx: AttentionContext | None = None) -> Tensor:
        x = super().features(tokens, ctx)
        return x + x.flip(1)


# What is right.


class Encoder(Mixing):
    """Reads all of a document, in both directions."""

    READS: ClassVar[Sequence[str]] = ("future",)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible(model.Prefix(10**9)))


class PrefixMixer(Mixing):
    def __init__(self, *, hidden_dim: int = 32, length: int = 5) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.mask = model.Prefix(length)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible(self.mask))


class WindowMixer(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible(window=4))


class Recurrent(Mixing):
    def forward(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        (state,) = ctx.state(self) or [x.new_zeros(x[:, 0].shape)]
        value, states = self.value(x), []
        begins, real = ctx.positions.unsqueeze(-1) <= 0, ctx.positions.unsqueeze(-1) >= 0
        for column in range(x.shape[1]):
            state = torch.where(begins[:, column], 0.0, 0.9 * state) + value[:, column]
            state = torch.where(real[:, column], state, 0.0)
            states.append(state)
        ctx.keep_state(self, [state])
        return self.out(torch.stack(states, 1))


class TrainOnly(Mixing):
    """Has a part that only training uses, and draws random numbers there."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.noise = nn.Parameter(torch.empty(hidden_dim))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.noise)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        mixed = super().mix(value, ctx)
        return mixed + torch.randn_like(mixed) * self.noise if self.training else mixed


class GatedUnit(nn.Module):
    """An MLP of a user's, which gets the context by name."""

    takes_context = True

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(hidden_dim, 64), nn.Linear(32, hidden_dim)

    def forward(self, x: Tensor, *, ctx: model.TokenMasks | None = None) -> Tensor:
        return self.out(F.glu(self.both(x)))


class TokenShift(ShiftingMLP):
    READS: ClassVar[Sequence[str]] = ("past",)


class OwnBlock(nn.Module):
    """A block that is none of fidgpt's."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__()
        self.mixer, self.norm = Uniform(hidden_dim=hidden_dim), nn.LayerNorm(hidden_dim)

    def forward(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        return x + self.mixer(self.norm(x), ctx)


def own_mask(query: model.Token, key: model.Token) -> Tensor:
    """Allow every second token before, and the token itself."""
    distance = query.position - key.position
    return (distance >= 0) & (distance % 2 == 0)


# How they are put in place.


def with_mixer(kind: Any) -> fdl.Config:
    return with_part("attention", fdl.ArgFactory(kind, hidden_dim=32))


def with_part(path: str, part: Any) -> fdl.Config:
    cfg = configs.debug()
    setattr(cfg.model.blocks[0], path, part)
    return cfg


def with_attention(name: str, value: Any) -> fdl.Config:
    cfg = configs.debug()
    setattr(cfg.model.blocks[0].attention, name, value)
    return cfg


def with_callable(path: str, kind: Any) -> fdl.Config:
    cfg = configs.debug()
    part: Any = cfg
    for name in path.split("."):
        part = part[int(name)] if name.isdecimal() else getattr(part, name)
    fdl.update_callable(part, kind, drop_invalid_args=True)
    return cfg


def check(cfg: fdl.Config, **changes: Any) -> None:
    """Check a run, and that this changes neither random numbers nor its model."""
    trainer = build_trainer(cfg)
    for name, value in changes.items():
        setattr(trainer, name, value)
    state = torch.random.get_rng_state()
    preflight.check_components(trainer)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.is_meta for parameter in trainer.model.parameters())
