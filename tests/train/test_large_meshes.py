"""The largest configs on thousands of processes that are not there: what each of them holds."""

import resource
import time

import fiddle as fdl
import pytest
import torch.distributed as dist
from meshes import Fiddler, base, mesh, use_separate_experts
from torch.testing._internal.distributed.fake_pg import FakeStore

from fidgpt import configs, fiddlers
from fidgpt.placement import held
from fidgpt.plan import cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.train import Trainer
from fidgpt.train.estimates.facts import facts_of

pytestmark = pytest.mark.filterwarnings("ignore:Set timeout is now only supported")
GIB = 2**30


def recipe(name: str, number: int, **sizes: int) -> fdl.Config:
    cfg = getattr(configs, name)()
    fiddlers.for_hardware(cfg, f"h100x{1024 if name == 'llama3_1_405b' else 2048}")
    fiddlers.use_mesh(cfg, **sizes)
    return cfg


def holding(trainer: Trainer, number: int, rank: int) -> tuple[int, int]:
    """The place in the pipeline of one of so many processes, and the bytes of its weights."""
    # Collectives return at once and leave their tensors as they are.
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=number)
    try:
        with trainer.parallel as parallel:
            parallel.shard(trainer.model, trainer.precision.dtype)
            own = sum(held(parameter).nbytes for parameter in trainer.model.parameters())
            return parallel.places.axes["pipeline"].rank, own
    finally:
        dist.destroy_process_group()


@pytest.mark.slow(15)
@pytest.mark.parametrize(
    ("name", "number", "sizes", "weights", "bubble"),
    [
        # 406e9 parameters of 4 bytes over 16 x 8 x 8 processes: 1.48 GiB.
        ("llama3_1_405b", 1024, {}, 1.48, 0.024),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ("deepseek_v3", 2048, {}, 1.2, 0.047),
                ("llama3_1_405b", 16_384, {"replicate": 2, "shard": 64}, 0.18, 0.185),
                ("deepseek_v3", 16_384, {"context": 8}, 0.17, 0.047),
            ]
        ),
    ],
)
def test_processes_hold_what_the_summary_shows(
    name: str, number: int, sizes: dict[str, int], weights: float, bubble: float
) -> None:
    began, cfg = time.process_time(), recipe(name, number, **sizes)
    trainer = build_trainer(cfg)
    plan = facts_of(trainer, cluster_named(f"h100x{number}")).plan
    # The process that computes longest waits less than all do on average, which is the formula's.
    assert 0.4 * bubble < plan.bubble / plan.step < bubble
    assert plan.peak < 80e9
    for rank in (0, number // 2, number - 1):
        whole = trainer if rank == 0 else build_trainer(cfg)
        stage, own = holding(whole, number, rank)
        assert own == pytest.approx(plan.memory[stage].weights, rel=0.02)  # uneven shards
    assert max(one.weights for one in plan.memory) / GIB == pytest.approx(weights, rel=0.15)
    assert time.process_time() - began < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 2e9


@pytest.mark.parametrize("changes", [(), (use_separate_experts,)])
def test_experts_that_other_axes_divide_too_are_planned(changes: tuple[Fiddler, ...]) -> None:
    trainer = build_trainer(base(fiddlers.use_moe, *changes, mesh(shard=2, tensor=2, expert=2)))
    (planned,) = facts_of(trainer, cluster_named("h100x4")).plan.memory
    assert holding(trainer, 4, 0)[1] == pytest.approx(planned.weights, rel=0.02)
