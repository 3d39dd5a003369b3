"""`config:nanochat` beside nanochat: sizes, and losses of its own code on the same weights."""

import math
from typing import Any, cast

import fiddle as fdl
import pytest
import torch
import torch.nn.functional as F

from fidgpt import configs, fiddlers
from fidgpt.model import Transformer, materialize
from fidgpt.optim import Phases
from fidgpt.parallel import DataParallel
from fidgpt.runs.building import build_trainer
from fidgpt.train import Trainer
from fidgpt.train.optimizer_groups import GroupSchedules, make_optimizer

VOCAB, SEQ_LEN, ROWS, STEPS = 300, 160, 2, 6
# Losses of nanochat at commit 92d63d4, with float32 and float() replaced by float64 and double()
# but for the frequencies of RoPE, on the weights and tokens below (GPT of depth 3 and width 256,
# MuonAdamW with the settings of base_train, TORCHDYNAMO_DISABLE=1).
LOSSES = [
    6.190578891491443,
    6.186907017091814,
    6.192981134399159,
    6.191165420995752,
    6.125190589021384,
    6.1562720397999895,
]


@pytest.fixture
def doubles() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trainer_of(depth: int) -> Trainer:
    cfg = configs.nanochat(depth=depth, seq_len=SEQ_LEN, vocab_size=VOCAB)
    cfg.batch_size, cfg.num_steps = ROWS, STEPS
    fiddlers.use_float32(cfg)
    return build_trainer(cfg)


def fill(model: Transformer) -> None:
    """Fill parameters by a closed form, of any names' order."""
    with torch.no_grad():
        for number, (_, parameter) in enumerate(sorted(model.named_parameters())):
            wave = torch.sin(torch.arange(parameter.numel()) * 1.7 + number) * 0.05
            few = 0.1 if parameter.numel() < 16 else 0.0
            parameter.copy_((wave + few).view(parameter.shape))


@pytest.mark.slow(8)
@pytest.mark.usefixtures("doubles")
def test_losses_are_those_of_nanochat() -> None:
    trainer = trainer_of(3)
    model = trainer.model
    assert isinstance(model, Transformer)
    materialize(model, device=torch.device("cpu"), seed=0)
    fill(model)
    optimizer = make_optimizer(trainer.optimizer, trainer.groups(model), parallel=DataParallel())
    schedules = GroupSchedules(optimizer, schedule=trainer.schedule, others=trainer.schedules or {})
    count = STEPS * ROWS * (SEQ_LEN + 1)
    tokens = (torch.arange(count) ** 2 * 7 // 3 % VOCAB).view(STEPS, ROWS, -1)
    for step, expected in enumerate(LOSSES):
        logits = model(tokens[step, :, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[step, :, 1:].flatten())
        assert loss.item() == pytest.approx(expected, abs=1e-9)
        loss.backward()
        schedules.apply(step)
        optimizer.step()
        optimizer.zero_grad()


def test_the_depth_decides_on_all_sizes() -> None:
    """The numbers that base_train of nanochat prints for --depth=12 and 24."""
    trainer = build_trainer(configs.nanochat(depth=12))
    sizes = trainer.num_steps, trainer.batch_size * trainer.seq_len
    assert sizes == (2520, 524_288)
    assert sum(p.numel() for p in trainer.model.parameters()) == 286_261_730
    assert isinstance(trainer.model, Transformer)
    windows = [cast(Any, block).attention.window for block in trainer.model.blocks]
    assert windows == [513, 513, 513, None] * 3  # 512 keys before the query
    cfg = configs.nanochat(depth=12)
    cfg.batch_size = 512  # twice as large: rates and decay grow by the root
    other = build_trainer(cfg)
    assert other.num_steps == 1260
    first, second = (vars(one)["optimizer"].keywords for one in (trainer, other))
    assert [first["lr"], second["lr"]] == [1.0, math.sqrt(2)]
    assert second["cautious_decay"] == pytest.approx(0.28 * math.sqrt(2))


def test_schedules_are_those_of_nanochat() -> None:
    """get_lr_multiplier, get_muon_momentum and get_weight_decay of base_train, for 1,000 steps."""
    cfg = configs.nanochat(depth=12)
    cfg.num_steps = 1000
    trainer = build_trainer(cfg)
    assert trainer.schedules is not None
    momentum, decay = trainer.schedules["momentum"], trainer.schedules["cautious_decay"]
    assert [trainer.schedule(step) for step in (0, 39, 40, 350)] == [1 / 40, 1, 1, 1]
    assert trainer.schedule(999) == pytest.approx(1 / 650 + (1 - 1 / 650) * 0.05)
    assert 0.97 * momentum(100) == pytest.approx(0.85 + 0.25 * 0.12)
    assert 0.97 * momentum(400) == pytest.approx(0.97 * (1 - 50 / 650) + 0.9 * 50 / 650)
    assert decay(250) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert isinstance(decay, Phases) and fdl.get_callable(cfg.optimizer).__name__ == "NorMuon"


KEPT = {"use_short_convolution": 2, "use_muon": 1, "use_adamw": 0}  # schedules of settings


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_other_layers_and_optimizers_keep_what_they_have_of_the_recipe(name: str) -> None:
    cfg = configs.nanochat(depth=4, head_dim=16, seq_len=64)
    getattr(fiddlers, name)(cfg)
    trainer = build_trainer(cfg)
    groups, schedules = trainer.groups(trainer.model), trainer.schedules or {}
    optimizer = make_optimizer(trainer.optimizer, groups, parallel=DataParallel())
    GroupSchedules(optimizer, schedule=trainer.schedule, others=schedules).apply(0)
    assert len(schedules) == KEPT[name]
