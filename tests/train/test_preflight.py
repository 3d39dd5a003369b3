"""Custom components that break what they promise are named before a run; right ones pass."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import fiddle as fdl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt import configs, data, model, train
from fidgpt.compose.runs import build_trainer
from fidgpt.model import AttentionContext
from fidgpt.train import module_trials, preflight


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


class NextOnly(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible(model.Window(2)))


class FarFuture(Mixing):
    """A dilated convolution that is not causal."""

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        later = F.pad(value, (0, 0, 0, 30))[:, 30:]
        return averaged(value, ctx.visible()) + later


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


class Wide(Mixing):
    def forward(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        return super().forward(x, ctx).double()


class Promoting(Mixing):
    """Computes in float32, and returns it whatever it was given."""

    def forward(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        return super().forward(x, ctx).float()


class NotNarrow(Mixing):
    """Fails in bfloat16."""

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return ctx.visible().squeeze(1).float() @ value


class InPlace(Mixing):
    def forward(self, x: Tensor, ctx: AttentionContext) -> Tensor:
        return super().forward(x.mul_(2), ctx)


class Random(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return F.dropout(super().mix(value, ctx), 0.5)


class Remembering(Mixing):
    """Keeps its state on itself."""

    before: Any = 0.0

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        out = super().mix(value, ctx) + self.before
        self.before = value.mean().item() if not value.is_meta else 0.0
        return out


class AcrossRows(Mixing):
    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return averaged(value, ctx.visible()) - value.mean(0, keepdim=True)


class PlainPositions(Mixing):
    """Takes positions for one row; fails on padded rows of several."""

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        assert len(ctx.positions) == 1, "one row of positions"
        return super().mix(value, ctx)


class OutsideTensor(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.scale = torch.ones(hidden_dim)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return super().mix(value, ctx) * self.scale.to(value.device)


class ListedModules(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.others = [nn.Linear(hidden_dim, hidden_dim)]


class LostZeros(Mixing):
    """Sets the output to zero in its constructor, as many do."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        nn.init.zeros_(self.out.weight)


class LostNormal(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.apply(self.start)

    def start(self, module: nn.Module) -> None:
        if type(module) is nn.Linear:
            nn.init.normal_(module.weight, std=0.5)


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


class Misdeclared(Mixing):
    READS: ClassVar[Sequence[str]] = ("tomorrow",)


class ShiftingMLP(nn.Module):
    """Reads the token before, which an MLP does not get in generation."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__()
        self.out = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + F.pad(x, (0, 0, 1, 0))[:, :-1])


class BatchNorm(nn.Module):
    """Normalizes over tokens."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__()
        self.scale = model.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True).add(1e-6))


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


class Convolution(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.taps = nn.Parameter(torch.empty(3, hidden_dim))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.taps, std=0.3)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        positions = ctx.positions.unsqueeze(-1)
        parts = [
            self.taps[back] * F.pad(value, (0, 0, back, 0))[:, : value.shape[1]]
            * (positions >= back)
            for back in range(3)
        ]  # fmt: skip
        return torch.stack(parts).sum(0)


class Spectral(Mixing):
    """A long convolution by FFT, which rounds what it should not read."""

    READS: ClassVar[Sequence[str]] = ("documents", "padding")

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        seq = value.shape[1]
        decay = 0.9 ** torch.arange(seq, device=value.device, dtype=torch.float32)
        size = 2 * seq
        product = torch.fft.rfft(value.float(), size, dim=1) * torch.fft.rfft(decay, size)[:, None]
        return torch.fft.irfft(product, size, dim=1)[:, :seq].to(value.dtype)


class Sparse(Mixing):
    """Experts that may get no token, and a frozen weight."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.experts = nn.ModuleList(nn.Linear(hidden_dim, hidden_dim) for _ in range(8))
        self.frozen = nn.Linear(hidden_dim, hidden_dim)
        self.frozen.requires_grad_(False)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        mixed = super().mix(value, ctx)
        return torch.stack([mixed, self.experts[3](mixed)]).sum(0)


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


class SharedWeights(Mixing):
    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.gate = nn.Linear(hidden_dim, hidden_dim)
        self.gate.weight = self.value.weight

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return super().mix(value * self.gate(value).sigmoid(), ctx)


class ZeroStart(Mixing):
    """Starts at zero by an init, keeps a table in a buffer, and lists a module that it holds."""

    table: Tensor

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__(hidden_dim=hidden_dim)
        self.out = model.Linear(hidden_dim, hidden_dim, init=model.Constant(0.0))
        self.register_buffer("table", torch.empty(hidden_dim), persistent=False)
        self.aliases = [self.out]

    def reset_parameters(self) -> None:
        self.table.fill_(2.0)

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        return super().mix(value, ctx) * self.table


class GatedUnit(nn.Module):
    """An MLP of a user's."""

    def __init__(self, *, hidden_dim: int = 32) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(hidden_dim, 64), nn.Linear(32, hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.glu(self.both(x)))


class TokenShift(ShiftingMLP):
    READS: ClassVar[Sequence[str]] = ("past",)


class MaxNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax(-1, keepdim=True).clamp(min=1e-6)


class HashEmbedding(model.Embedding):
    """Adds a vector of each pair of tokens, from a table of its own."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__(weight)
        self.pairs = nn.Embedding(61, weight.shape[1])

    def forward(self, tokens: Tensor, ctx: AttentionContext | None = None) -> Tensor:
        ctx = model.one_document(tokens) if ctx is None else ctx
        before = F.pad(tokens, (1, 0))[:, :-1] * (ctx.positions > 0)
        return super().forward(tokens, ctx) + self.pairs((before * 31 + tokens) % 61)


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
    cfg = configs.debug()
    cfg.seq_len = 128
    cfg.model.blocks[0].attention = fdl.ArgFactory(kind, hidden_dim=32)
    return cfg


def with_part(path: str, kind: Any, **arguments: Any) -> fdl.Config:
    cfg = configs.debug()
    setattr(cfg.model.blocks[0], path, fdl.ArgFactory(kind, **arguments))
    return cfg


def with_attention(name: str, value: Any) -> fdl.Config:
    cfg = configs.debug()
    setattr(cfg.model.blocks[0].attention, name, value)
    return cfg


def with_block(kind: Any) -> fdl.Config:
    cfg = configs.debug()
    if issubclass(kind, model.Block):
        fdl.update_callable(cfg.model.blocks[0], kind)
    else:
        cfg.model.blocks[0] = fdl.Partial(kind, hidden_dim=32)
    return cfg


def with_callable(path: str, kind: Any) -> fdl.Config:
    cfg = configs.debug()
    part = cfg
    for name in path.split("."):
        part = getattr(part, name)
    fdl.update_callable(part, kind, drop_invalid_args=True)
    return cfg


def check(cfg: fdl.Config, **changes: Any) -> None:
    """Check a run that computes in bfloat16."""
    trainer = build_trainer(cfg)
    trainer.precision = train.BFloat16()
    for name, value in changes.items():
        setattr(trainer, name, value)
    state = torch.random.get_rng_state()
    preflight.check_components(trainer)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(parameter.is_meta for parameter in trainer.model.parameters())


WRONG_MODULES: dict[str, tuple[Callable[[], fdl.Config], str]] = {
    "future": (partial(with_mixer, Future), "reads the future: its output at token 0"),
    "next": (partial(with_mixer, NextOnly), "reads the future"),
    "far future": (partial(with_mixer, FarFuture), "reads the future"),
    "beyond its mask": (partial(with_mixer, BeyondMask), r"reads the future.*its mask excludes"),
    "documents": (partial(with_mixer, Documents), "reads other documents"),
    "padding": (partial(with_mixer, Padding), "reads padding"),
    "NaN at padding": (partial(with_mixer, Spreading), "NaN or inf at padding, which spreads"),
    "shape": (partial(with_mixer, Transposed), r"returns the shape \[1, 1, 32\] for an input of"),
    "dtype": (partial(with_mixer, Wide), r"returns torch\.float64 for an input of torch\.float32"),
    "float32": (partial(with_mixer, Promoting), r"returns torch\.float32 .* torch\.bfloat16"),
    "bfloat16": (partial(with_mixer, NotNarrow), r"fails on a small batch in torch\.bfloat16: "
                 r"RuntimeError in test_preflight\.py:\d+"),
    "in place": (partial(with_mixer, InPlace), "changes its input in place"),
    "random": (partial(with_mixer, Random), "draws random numbers"),
    "state": (partial(with_mixer, Remembering), "keeps state between calls"),
    "rows": (partial(with_mixer, AcrossRows), "mixes the rows of a batch"),
    "several rows": (partial(with_mixer, PlainPositions), "fails on a small batch of padded rows: "
                     r"AssertionError in test_preflight\.py:\d+: one row"),
    "tensor": (partial(with_mixer, OutsideTensor), "keeps a tensor in scale, outside"),
    "modules": (partial(with_mixer, ListedModules), r"keeps modules in others, a list.*ModuleList"),
    "lost zeros": (partial(with_mixer, LostZeros), r"fills out\.weight in its constructor"),
    "lost normal": (partial(with_mixer, LostNormal), r"fills value\.weight in its constructor"),
    "unfilled": (partial(with_mixer, HalfFilled), "leaves rate without values"),
    "declaration": (partial(with_mixer, Misdeclared), r"READS=\['tomorrow'\]: declare some of"),
    "mlp": (partial(with_part, "mlp", ShiftingMLP, hidden_dim=32), "reads other tokens"),
    "norm": (partial(with_part, "mlp_norm", BatchNorm, hidden_dim=32), "reads other tokens"),
    "kernel": (partial(with_attention, "kernel", leaky_kernel), "reads the future"),
    "block": (partial(with_block, LeakyBlock), "reads the future"),
    "embedding": (partial(with_callable, "model.embedding", LeakyEmbedding), "reads the future"),
    "model": (partial(with_callable, "model", LeakyModel), "reads the future"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG_MODULES.values(), ids=WRONG_MODULES)
def test_a_wrong_module_is_named_with_its_file_and_line(make, message):
    with pytest.raises(train.ComponentError, match=message) as caught:
        check(make())
    assert re.match(
        r"(blocks\.0(\.\w+)?|embedding|model) \((Attention with )?\w+, tests/train/"
        r"test_preflight\.py:\d+\) ",
        str(caught.value),
    )


RIGHT_MODULES: dict[str, Callable[[], fdl.Config]] = {
    **{
        kind.__name__: partial(with_mixer, kind)
        for kind in (Uniform, Encoder, PrefixMixer, WindowMixer, Recurrent, Convolution, Spectral,
                     Sparse, TrainOnly, SharedWeights, ZeroStart)
    },
    "MLP": partial(with_part, "mlp", GatedUnit, hidden_dim=32),
    "token shift": partial(with_part, "mlp", TokenShift, hidden_dim=32),
    "norm": partial(with_part, "mlp_norm", MaxNorm),
    "block": partial(with_block, OwnBlock),
    "hash embedding": partial(with_callable, "model.embedding", HashEmbedding),
    "mask": partial(with_attention, "mask", own_mask),
    "prefix": partial(with_attention, "mask", fdl.Config(model.Prefix, 3)),
}  # fmt: skip


@pytest.mark.parametrize("make", RIGHT_MODULES.values(), ids=RIGHT_MODULES)
def test_a_right_module_passes_in_silence(make, capfd):
    check(make())
    assert capfd.readouterr().err == ""


def unused_mixer() -> fdl.Config:
    return with_mixer(Unused)


def test_a_parameter_without_a_gradient_is_named(capfd):
    check(unused_mixer())
    line = capfd.readouterr().err
    assert re.match(
        r"warning: blocks\.0\.attention \(Unused, tests/train/test_preflight\.py:\d+\) has "
        r"parameters that get no gradient: blocks\.0\.attention\.spare\.weight\. ",
        line,
    )
    assert line.count("\n") == 1  # though two layers have it
    check(unused_mixer(), trainable=lambda name, parameter: "spare" not in name)
    assert capfd.readouterr().err == ""


def test_on_several_processes_it_is_an_error():
    trainer = build_trainer(unused_mixer())
    trainer.parallel.world_size = 2
    with pytest.raises(train.ComponentError, match="DistributedDataParallel needs a gradient"):
        preflight.check_components(trainer)


def test_all_that_is_wrong_is_listed_at_once():
    cfg = with_mixer(Future)
    cfg.model.blocks[0].mlp = fdl.ArgFactory(ShiftingMLP, hidden_dim=32)
    with pytest.raises(train.ComponentError) as caught:
        check(cfg, trackers=[HalfTracker()])
    assert len(str(caught.value).splitlines()) == 3


def test_a_module_that_is_too_large_is_left_out_with_a_warning(monkeypatch, capfd):
    monkeypatch.setattr(module_trials, "LARGEST", 100)
    check(with_mixer(Future))
    assert "(Future, tests/" in capfd.readouterr().err


def test_layers_of_one_kind_are_tried_once(monkeypatch):
    cfg, calls = with_mixer(Counting), []
    monkeypatch.setattr(Counting, "calls", calls)
    cfg.model.num_layers = 2
    check(cfg)
    few = len(calls)
    calls.clear()
    cfg.model.num_layers = 40
    trainer = build_trainer(cfg)
    calls.clear()
    preflight.check_components(trainer)
    assert 0 < len(calls) <= few


class Counting(Mixing):
    calls: ClassVar[list[int]] = []

    def mix(self, value: Tensor, ctx: AttentionContext) -> Tensor:
        self.calls.append(1)
        return super().mix(value, ctx)


# Optimizers.


class Descent(torch.optim.Optimizer):
    """Gradient descent as it should be."""

    def __init__(self, params: Any, *, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.move(parameter, group)

    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter -= group["lr"] * parameter.grad


class NoRate(Descent):
    def __init__(self, params: Any, *, rate: float = 0.1) -> None:
        torch.optim.Optimizer.__init__(self, params, {"rate": rate})


class FixedRate(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter -= 0.1 * parameter.grad


class Still(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter = parameter - group["lr"] * parameter.grad


class OnlyMatrices(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter -= group["lr"] * parameter.grad @ torch.eye(parameter.shape[1])


class Exploding(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        parameter /= 0 * group["lr"]


class Unsaved(Descent):
    def move(self, parameter: Any, group: dict[str, Any]) -> None:
        super().move(parameter, group)
        self.state[parameter]["history"] = {*range(3)}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (NoRate, r"has a group of parameters without `lr`"),
        (FixedRate, "takes the same step whatever the groups' `lr`"),
        (Still, r"leaves all parameters as they are in 2 steps with lr=0\.1"),
        (OnlyMatrices, "fails in a trial step: the optimizer OnlyMatrices cannot step"),
        (Exploding, "makes parameters NaN or inf"),
        (Unsaved, "cannot be saved: .*history is a set"),
    ],
)
def test_a_wrong_optimizer_is_named(kind, message):
    cfg = configs.debug()
    cfg.optimizer = fdl.Partial(kind)
    where = rf"^optimizer \({kind.__name__}, tests/train/test_preflight\.py:\d+\) "
    with pytest.raises(train.ComponentError, match=where + message):
        check(cfg)


@pytest.mark.slow
def test_a_right_optimizer_passes_and_the_run_is_as_without_the_check(train, monkeypatch):
    cfg = configs.debug()
    cfg.optimizer = fdl.Partial(Descent)
    cfg.model.blocks[0].attention = fdl.ArgFactory(TrainOnly, hidden_dim=32)
    checked = [row["loss"] for row in train(cfg, "checked")]
    monkeypatch.setattr(preflight, "check_components", lambda run: None)
    monkeypatch.setattr(preflight, "check_streams", lambda run: None)
    assert [row["loss"] for row in train(cfg, "unchecked")] == checked


# Trackers, evaluators, observers and schedules.


class HalfTracker:
    def start(self, run: Any, facts: Any, *, step: int) -> None: ...
    def log(self, row: Any, more: Any) -> None: ...
    def print(self, text: str) -> None: ...


class HalfEvaluator:
    def prepare(self, *, show_progress: bool = True) -> None: ...
    def due(self, step: int) -> bool:
        return False


class HalfObserver:
    def observing(self, run: Any, parallel: Any) -> Any: ...


def test_methods_that_are_missing_are_listed():
    for name, value, message in (
        ("trackers", [HalfTracker()], r"^trackers\[0\] \(HalfTracker, .*:\d+\) is not a Tracker: "
         r"log\(row\) cannot be called, since log\(row: Any, more: Any\) -> None is defined: "
         r"missing a required argument: 'more'; it has no method finish\(\)\."),
        ("evaluators", {"mine": HalfEvaluator()}, r"^evaluators\['mine'\] \(HalfEvaluator, .*"
         r"due\(step, \*, num_steps\) cannot be called.*; it has no method __call__\(model, loss"),
        ("observers", [HalfObserver()], r"HalfObserver, .*it has no method stepping\(step\)"),
    ):  # fmt: skip
        with pytest.raises(train.ComponentError, match=message):
            check(configs.debug(), **{name: value})


@pytest.mark.parametrize("value", [-0.5, float("nan"), None, "1.0", torch.ones(())])
def test_a_schedule_that_is_no_multiplier_is_named(value):
    with pytest.raises(train.ComponentError, match=r"^schedule \(<lambda>, .*:\d+\) is .* at step"):
        check(configs.debug(), schedule=lambda step: value)


def test_a_schedule_that_fails_is_named():
    message = r"^schedules\['weight_decay'\] .* at step 9: IndexError in test_preflight\.py:\d+"
    cfg = configs.debug()
    cfg.num_steps = 10
    with pytest.raises(train.ComponentError, match=message):
        check(cfg, schedules={"weight_decay": lambda step: [1.0, *[0.5] * 8][step]})


# Streams.


class Counted(data.TrainingStream):
    """Tokens that count up, as a stream of a user's."""

    def __init__(self, *, batch_size: int = 4, seq_len: int = 32) -> None:
        self.batch_size, self.seq_len = batch_size, seq_len

    def prepare(self, *, show_progress: bool = True) -> None:
        """Do nothing."""

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Any:
        rows = self.batch_size // world_size
        count = torch.arange(rows * (self.seq_len + 1)).view(rows, -1)
        return (count + step + rank) % 100

    @property
    def tokenizer(self) -> Any:
        raise NotImplementedError

    @property
    def checksum(self) -> str:
        return "counted"


class Floats(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options).float()


class Arrays(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options).numpy()


class Short(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options)[:, :-1]


class Flat(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options).flatten()


class AllRows(Counted):
    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Any:
        return super().batch(step)


class TooLarge(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        return super().batch(step, **options) + 1000


class Drawing(Counted):
    """Goes on where it was at the last call."""

    count = 0

    def batch(self, step: int, **options: Any) -> Any:
        self.count += 1
        return super().batch(self.count, **options)


class Masked(Counted):
    """Masks tokens out of the loss, and raises before it is prepared."""

    def batch(self, step: int, **options: Any) -> Any:
        tokens = super().batch(step, **options)
        return torch.where(tokens % 2 == 0, data.mask_loss(tokens), tokens)


def with_stream(stream: Any, **changes: Any) -> train.Trainer:
    trainer = build_trainer(configs.debug())
    for name, value in {"data": stream, "batch_size": 4, "seq_len": 32, **changes}.items():
        setattr(trainer, name, value)
    return trainer


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Floats, r"returns batches of torch\.float32: token ids are"),
        (Arrays, "returns batches of ndarray"),
        (Short, r"returns a batch of the shape \[4, 32\], and the run needs \[4, 33\]"),
        (Flat, r"returns a batch of the shape \[132\], and the run needs \[4, 33\]"),
        (TooLarge, r"returns the token 1\d\d\d, and the model has vocab_size=257"),
        (Drawing, "returns two batches for one step"),
    ],
)
def test_a_wrong_stream_is_named(kind, message):
    where = rf"^data \({kind.__name__}, tests/train/test_preflight\.py:\d+\) "
    with pytest.raises(train.ComponentError, match=where + message):
        preflight.check_streams(with_stream(kind()))


def test_rows_are_those_of_the_process():
    trainer = with_stream(AllRows())
    trainer.parallel.world_size = 2
    with pytest.raises(train.ComponentError, match=r"needs \[2, 33\]: batch_size=4 over 2 proc"):
        preflight.check_streams(trainer)
    trainer.data = Counted()
    preflight.check_streams(trainer)


class Unready(Counted):
    def batch(self, step: int, **options: Any) -> Any:
        raise data.DataError("call prepare() first")


def test_right_streams_pass():
    preflight.check_streams(with_stream(Counted()))
    preflight.check_streams(with_stream(Masked()))
    preflight.check_streams(with_stream(data.Prefetch(Counted()), seq_len=32))
    preflight.check_streams(with_stream(Unready()), prepared=False)
    with pytest.raises(data.DataError, match="call prepare"):
        preflight.check_streams(with_stream(Unready()))


def test_the_stream_of_an_evaluator_is_checked():
    class Evaluated(data.HeldOut):
        def batch(self, number: int, *, rank: int = 0, world_size: int = 1) -> Any:
            return torch.full((2, 9), 300)

    trainer = with_stream(Counted())
    trainer.evaluators = {
        "own": train.Validation(Evaluated(data.Corpus, seq_len=8, batch_size=2), every=None)  # pyright: ignore
    }
    with pytest.raises(train.ComponentError, match=r"^evaluators\['own'\]\.data \(Evaluated"):
        preflight.check_streams(trainer)


@pytest.mark.slow
def test_fidgpts_own_components_are_not_tried(monkeypatch):
    def fail(*args: object) -> None:
        raise AssertionError("tried")

    monkeypatch.setattr(module_trials, "Trial", fail)
    monkeypatch.setattr(preflight, "_trial_steps", fail)
    monkeypatch.setattr(preflight, "_stream_errors", fail)
    for name in ("debug", "gpt2_124m"):
        trainer = build_trainer(getattr(configs, name)())
        preflight.check_components(trainer)
        preflight.check_streams(trainer)


def test_the_attention_of_the_documentation_is_right(monkeypatch, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "models.md"
    (source,) = re.findall(r"```python\n(# lab/mixing.py\n.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "mixing_of_docs.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import mixing_of_docs  # pyright: ignore[reportMissingImports]

    check(with_mixer(mixing_of_docs.MovingAverage))
