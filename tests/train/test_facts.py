"""What is known of a run before it starts: memory, parameter groups and speed."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from memory_profile import memory_of
from run_facts import FACTS
from small_models import small_block, small_model, start
from torch import Tensor, nn

from fidgpt import model as parts
from fidgpt.configs import debug
from fidgpt.data import Batch
from fidgpt.fiddlers import use_muon
from fidgpt.model.mla import LatentAttention
from fidgpt.optim import adamw, decay_matrices
from fidgpt.parallel import Mesh
from fidgpt.plan import Memory, Planner, cluster_named
from fidgpt.plan.trace import Trace
from fidgpt.runs.building import build_trainer
from fidgpt.train import Average, BFloat16, CrossEntropy, Ema, Float32
from fidgpt.train.device import cluster_at_hand
from fidgpt.train.estimates.facts import facts_of, in_short, parameter_groups
from fidgpt.train.estimates.summary_text import memory_rows
from fidgpt.train.goodput import PLAN, PlannedRun
from fidgpt.train.loss import NextToken
from fidgpt.train.precision import Precision
from fidgpt.train.state import TrainState

pytestmark = pytest.mark.slow

SEQ, ROWS, HIDDEN, VOCAB, WIDE = 128, 4, 128, 600, 8000
CPU = torch.device("cpu")
ADAMW = partial(adamw, lr=1e-3)
Make = Callable[[], nn.Module]

SIZES: dict[str, Any] = {"hidden_dim": HIDDEN, "head_dim": 32}
ATTENTIONS: dict[str, Make] = {
    "plain": partial(parts.Attention, **SIZES, rope=parts.RoPE(head_dim=32)),
    "windowed": partial(parts.Attention, **SIZES, window=32),
    "softcap": partial(parts.Attention, **SIZES, scores=[parts.Softcap(cap=30.0)]),
    "few keys": partial(parts.Attention, **SIZES, num_kv_heads=1),
    "latent": partial(LatentAttention, **SIZES, kv_rank=48, rope=parts.RoPE(head_dim=16)),
}


def model(
    *attentions: Make,
    mlp: type[nn.Module] = parts.SwiGLU,
    dropout: float = 0.0,
    vocab_size: int = VOCAB,
) -> parts.Transformer:
    """Four layers, with these attentions in turn."""
    kind, made = partial(parts.Block, dropout=dropout), attentions or [ATTENTIONS["plain"]]
    blocks = [
        partial(small_block, lambda one=one, **_: one(), mlp, kind=kind, hidden_dim=HIDDEN)
        for one in made
    ]
    return small_model(*blocks, num_layers=4, hidden_dim=HIDDEN, vocab_size=vocab_size)


def tokens() -> Tensor:
    return torch.zeros(ROWS, SEQ + 1, dtype=torch.long)


def planner(
    module: nn.Module,
    precision: Precision,
    optimizer: Any = ADAMW,
    micro_batch_size: int | None = None,
    average: Average | None = None,
    hardware: str | None = None,
) -> Planner:
    run = dataclasses.replace(
        build_trainer(debug()),
        model=module,
        seq_len=SEQ,
        batch_size=ROWS,
        micro_batch_size=micro_batch_size,
        optimizer=optimizer,
        groups=decay_matrices,
        loss=CrossEntropy(),
        precision=precision,
        average=average,
    )
    at_hand = cluster_at_hand(run.parallel, torch.float32)
    return Planner(run, cluster_named(hardware) if hardware else at_hand)


def traced(plans: Planner) -> Trace:
    return plans._trace(plans.setting(Mesh()))


def needed(*args: Any, **options: Any) -> Memory:
    plans = planner(*args, **options)
    return plans.plan(plans.setting(Mesh())).memory[0]


def kept(module: parts.Transformer, precision: Precision) -> tuple[int, int]:
    """What a forward pass keeps, foretold and real."""
    objective = NextToken(precision.replica(module), CrossEntropy()).train()
    real = memory_of(lambda: objective(tokens()), PROFILES).left
    return traced(planner(module, precision)).kept, real


@pytest.fixture(autouse=True)
def _profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PROFILES", tmp_path)


PROFILES = Path()


MODELS = {name: partial(model, attention) for name, attention in ATTENTIONS.items()}
MIXED = ATTENTIONS["windowed"], ATTENTIONS["plain"]
MODELS["mixed"] = partial(model, *MIXED, mlp=parts.GELU, dropout=0.1)


@pytest.mark.parametrize("precision", [Float32(), BFloat16()], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("make", "seq"), [*((m, SEQ) for m in MODELS.values()), (model, 640)])
def test_activations_are_what_a_forward_pass_leaves(
    make: Callable[[], parts.Transformer],
    seq: int,
    precision: Precision,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "SEQ", seq)
    foretold, real = kept(make(), precision)
    assert foretold == pytest.approx(real, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "vocab_size", "micro_batch_size"),
    [
        (Float32(), VOCAB, None),
        (BFloat16(), VOCAB, 2),
        (Float32(), WIDE, 2),
        (BFloat16(), WIDE, None),
    ],
)
def test_the_peak_is_that_of_training(
    precision: Precision, vocab_size: int, micro_batch_size: int | None
) -> None:
    optimizer = partial(adamw, lr=1e-3)

    def train() -> TrainState:
        trainer = build_trainer(debug())
        trainer.model, trainer.precision = model(vocab_size=vocab_size), precision
        trainer.optimizer, trainer.loss = optimizer, CrossEntropy()
        state = start(trainer, micro_batch_size=micro_batch_size, max_grad_norm=1.0)
        for _ in range(2):
            trainer.update(state, Batch(tokens()))
        return state

    foretold = needed(model(vocab_size=vocab_size), precision, optimizer, micro_batch_size)
    peak = memory_of(train, PROFILES).peak
    assert foretold.total - foretold.allocator == pytest.approx(peak, rel=0.02)


def test_each_share_of_the_memory() -> None:
    module = model()
    count = sum(parameter.numel() for parameter in module.parameters())
    adam = needed(module, BFloat16())
    assert (adam.weights, adam.copy) == (4 * count, 2 * count)
    assert adam.optimizer == pytest.approx(8 * count, rel=1e-3)
    plain = needed(module, Float32(), partial(torch.optim.SGD, lr=1e-3))
    assert (plain.copy, plain.optimizer) == (0, 0)
    momentum = needed(module, Float32(), partial(torch.optim.SGD, lr=1e-3, momentum=0.9))
    assert momentum.optimizer == 4 * count
    several = needed(module, Float32(), micro_batch_size=1)
    assert several.gradients == 4 * count
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_state_of_an_optimizer_counts_each_layer() -> None:
    """Two moments of the table, which is there once, and one of each matrix of four layers."""
    module = model()
    matrices = [p for name, p in module.named_parameters() if "blocks" in name and p.dim() > 1]
    rest = [p for p in module.parameters() if not any(p is one for one in matrices)]
    trainer = build_trainer(debug())
    cfg = debug()
    use_muon(cfg)
    muon = build_trainer(cfg)
    run = dataclasses.replace(
        trainer, model=module, optimizer=muon.optimizer, groups=muon.groups, seq_len=SEQ
    )
    plans = Planner(run, cluster_at_hand(run.parallel, torch.float32))
    expected = 4 * sum(p.numel() for p in matrices) + 8 * sum(p.numel() for p in rest)
    assert plans.plan(plans.setting(Mesh())).memory[0].optimizer == pytest.approx(
        expected, rel=0.01
    )


def test_an_average_is_one_more_copy_of_what_is_trained() -> None:
    module, average = model(), Ema()
    plain, averaged = needed(module, Float32()), needed(module, Float32(), average=average)
    assert averaged.optimizer == pytest.approx(plain.optimizer + plain.weights, rel=1e-6)
    assert average.state_dict() == Ema().state_dict()
    on_gpu = needed(module, Float32(), average=average, hardware="h100x1")
    assert on_gpu.optimizer == pytest.approx(averaged.optimizer, rel=1e-6)


def test_a_gpu_keeps_no_scores() -> None:
    """FlexAttention, which no CPU trains with, keeps what every fused attention does."""
    softcap = model(ATTENTIONS["softcap"])
    plain = traced(planner(model(ATTENTIONS["few keys"]), Float32(), hardware="h100x1")).kept
    on_gpu = traced(planner(softcap, Float32(), hardware="h100x1")).kept
    on_cpu = traced(planner(softcap, Float32())).kept
    scores = 4 * 4 * ROWS * SEQ**2 * 4  # layers, heads, rows, pairs, bytes
    assert on_cpu - on_gpu > scores
    assert on_gpu < 1.2 * plain


class Reading(nn.Module):
    """An attention that looks at its numbers, which there are none of without memory."""

    def forward(self, x: Tensor, layout: object) -> Tensor:
        return x * float(x.sum() > 0)


def test_what_needs_numbers_is_unknown(cfg: fdl.Config) -> None:
    trainer = dataclasses.replace(build_trainer(cfg), model=model(Reading))
    facts = facts_of(trainer, cluster_named("h100x1"))  # on a small CPU model zeros are tried
    assert not facts.plan.is_executed and not facts.memory.activations
    assert facts.memory.weights == sum(p.nbytes for p in trainer.model.parameters())
    assert "unknown" in str(memory_rows(facts))


def test_a_run_compares_its_plan_with_what_was_measured(tmp_path: Path) -> None:
    """Of seconds, the first quarter is left out, in which caches fill."""
    held, planned = FACTS.plan.peak, PlannedRun(torch.device("cuda"), torch.nn.Module())
    for step in range(20):
        seconds = 9.0 if step < 5 else 2 * FACTS.plan.step
        planned.add({"step_seconds": seconds, "memory": held + step})
    (line,) = planned.finish(FACTS.plan, tmp_path)
    assert line.startswith("Measured 3 s a step, where the plan says 1.5: 2.00 times as much.")
    assert json.loads((tmp_path / PLAN).read_text()) == {
        "planned": {"seconds": 1.5, "bytes": held},
        "measured": {"seconds": 3.0, "bytes": held + 19},
    }


LAYERS = {f"blocks.*.{name}": {0, 1, 2} for name in ("a.query.w", "a.key.w", "norm.w", "mlp.0.w")}
LAYERS |= {"norm.w": set(), "scale": set()}


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["norm.w", "scale"], "norm.w, scale"),
        ([f"blocks.{i}.norm.w" for i in range(3)], "blocks.*.norm.w"),
        (["blocks.0.norm.w", "blocks.2.norm.w"], "blocks.{0,2}.norm.w"),
        (
            [f"blocks.{i}.a.{name}.w" for i in range(3) for name in ("query", "key")],
            "blocks.*.a.{query,key}.w",
        ),
    ],
)
def test_names_in_short(names: list[str], text: str) -> None:
    assert in_short(names, LAYERS) == text


def test_rates_decays_and_sizes_are_those_of_the_optimizer(cfg: fdl.Config) -> None:
    use_muon(cfg, learning_rate=0.1, matrix_scale=0.5)
    trainer = build_trainer(cfg)
    groups = parameter_groups(trainer)
    assert [(g.name, g.learning_rate, g.weight_decay) for g in groups] == [
        ("matrices", 0.1, 0.1),
        ("hidden matrices", 0.05, 0.1),
        ("vectors", 0.1, 0.0),
    ]
    assert groups[0].holds == "embedding.weight"
    assert groups[1].holds == (
        "blocks.*.attention.{query,key,value,out}.weight, blocks.*.mlp.{gate,up,down}.weight"
    )
    assert sum(g.num_parameters for g in groups) == sum(
        p.numel() for p in trainer.model.parameters()
    )
