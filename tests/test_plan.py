"""Plans: what is recorded of a pass, what it takes, which meshes there are, and what to train."""

import math
import random
from dataclasses import replace

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers
from fidgpt.parallel import Mesh
from fidgpt.parallel.pipeline_schedule import TorchSchedule
from fidgpt.plan import CHIPS, Cluster, Planner, UnknownHardware, cluster_named
from fidgpt.plan.timing import ordered, simulate
from fidgpt.plan.trace import Trace
from fidgpt.runs.building import build_trainer
from fidgpt.sweep.scaling import Run, budget_amount, fit, parabolas
from fidgpt.train import BFloat16

HIDDEN, FFN, LAYERS, HEAD, VOCAB, SEQ, BATCH = 128, 512, 4, 32, 512, 256, 32


def small() -> fdl.Config:
    """A model of a few layers, with grouped queries, in bfloat16."""
    cfg = configs.debug()
    cfg.precision = fdl.Config(BFloat16)
    cfg.model.hidden_dim, cfg.model.num_layers, cfg.vocab_size = HIDDEN, LAYERS, VOCAB
    cfg.model.blocks[0].mlp.ffn_dim = FFN
    cfg.model.blocks[0].attention.head_dim = HEAD
    cfg.seq_len, cfg.batch_size = SEQ, BATCH
    return cfg


def planner(cfg: fdl.Config | None = None, hardware: str = "h100x8") -> Planner:
    return Planner(build_trainer(cfg or small()), cluster_named(hardware))


def traced(plans: Planner, mesh: Mesh, recompute: str = "none", micro_batch: int = 1) -> Trace:
    setting = replace(plans.setting(mesh), recompute=recompute, micro_batch=micro_batch)
    return plans._trace(setting)


def test_operations_are_those_of_a_count_by_hand() -> None:
    """Each weight multiplies each token once; a causal kernel computes half of the pairs."""
    plans = planner()
    (block,) = traced(plans, Mesh(shard=8)).blocks
    weights = sum(p.numel() for p in plans._block("0").parameters() if p.dim() == 2)
    products = sum(product.flops * n for product, n in block.forward.products.items())
    assert products == 2 * weights * SEQ
    pairs = SEQ * (SEQ + 1) / 2
    assert sum(block.forward.attention.values()) == pytest.approx(4 * pairs * HIDDEN, rel=1e-6)
    # Two products for each of the forward pass; a fused kernel has five products for two.
    assert sum(block.backward.attention.values()) == pytest.approx(10 * pairs * HIDDEN, rel=1e-6)
    backward = sum(product.flops * n for product, n in block.backward.products.items())
    assert backward == 2 * products
    assert len(block.layers) == LAYERS


def test_a_divided_model_computes_a_part() -> None:
    plans = planner()
    (whole,) = traced(plans, Mesh(shard=8)).blocks
    (half,) = traced(plans, Mesh(shard=4, tensor=2)).blocks
    assert half.forward.flops == pytest.approx(whole.forward.flops / 2)
    assert half.size == pytest.approx(whole.size / 2, rel=0.01)
    plans.recipe.loss.chunk_size = 32  # logits of more than two chunks follow from two
    one, two = (traced(plans, Mesh(shard=8 // size, context=size)) for size in (1, 2))
    for part, of_half in zip(one.parts, two.parts, strict=True):
        assert of_half.forward.flops == pytest.approx(part.forward.flops / 2, rel=0.01)


def test_recomputation_trades_memory_for_operations() -> None:
    plans = planner()
    none, selective, full = (
        traced(plans, Mesh(shard=8), name) for name in ("none", "selective", "full")
    )
    assert none.kept > selective.kept > full.kept
    assert full.blocks[0].kept == SEQ * HIDDEN * 2  # its input alone
    # Torch stops where nothing more is needed: the last product is not computed again.
    again = full.blocks[0].backward.flops - none.blocks[0].backward.flops
    assert again == none.blocks[0].forward.flops - 2 * SEQ * FFN * HIDDEN
    assert selective.blocks[0].backward.flops == none.blocks[0].backward.flops


def test_a_pipeline_waits_as_long_as_its_formula_says() -> None:
    """Narayanan et al., 2021, arXiv:2104.04473, section 2.2: (p - 1) / m of the ideal time."""
    ranks, number = 4, 16
    actions = TorchSchedule("1f1b")(ranks, number)
    done = simulate(ordered(actions), [1.0] * ranks, [2.0] * ranks, sending=0.0)
    assert done.seconds == pytest.approx(3.0 * (number + ranks - 1))
    assert set(done.busy) == {3.0 * number}


def test_collectives_take_what_a_ring_takes() -> None:
    device = replace(
        CHIPS[0], link=1e9, network=1e8, sending=1.0, latency=(0.0, 0.0), per_machine=8
    )
    cluster = Cluster(device=device, size=16)
    assert cluster.seconds("gather", 8e9, 8, 1) == pytest.approx(7.0)
    assert cluster.seconds("reduce", 8e9, 8, 1) == pytest.approx(14.0)
    # Eight ports of a machine carry a ring over two; one carries that of every eighth process.
    assert cluster.seconds("gather", 8e8, 16, 1) == pytest.approx(8e8 * 15 / 16 / 8e8)
    assert cluster.seconds("gather", 2e8, 2, 8) == pytest.approx(1.0)


def test_memory_follows_the_mesh() -> None:
    plans = planner()
    eight = plans.plan(plans.setting(Mesh(shard=8))).memory[0]
    copies = plans.plan(plans.setting(Mesh(replicate=8))).memory[0]
    number = sum(p.numel() for p in plans.recipe.model.parameters())
    assert copies.weights == pytest.approx(4 * number, rel=0.01)
    assert copies.copy == pytest.approx(2 * number, rel=0.01)
    assert copies.optimizer == pytest.approx(8 * number, rel=0.01)  # of AdamW
    assert eight.weights == pytest.approx(copies.weights / 8, rel=0.01) and eight.copy == 0
    fiddlers.unroll(cfg := small())
    fiddlers.freeze(cfg, "model.blocks[1]")  # of the structure of the others, and of another kind
    plans = planner(cfg)
    frozen = sum(p.numel() for p in plans.recipe.model.get_submodule("blocks.1").parameters())
    partly = plans.plan(plans.setting(Mesh(replicate=8))).memory[0]
    assert partly.optimizer == pytest.approx(8 * (number - frozen), rel=0.01)
    fiddlers.use_adafactor(cfg := small())  # which reads values before it steps
    assert planner(cfg).training.state < 0.5  # a row and a column of each matrix


@pytest.mark.slow
def test_days_count_smaller_batches_and_shorter_sequences() -> None:
    fiddlers.grow_batch(cfg := small(), over=1.0)
    fiddlers.grow_seq_len(cfg, over=1.0)
    cfg.num_steps, cfg.micro_batch_size = 8, 1
    plans, seconds = planner(cfg, "h100x1"), 0.0
    cfg.batch_growth = cfg.seq_len_growth = None
    for size, length in map(plans.recipe.stream.growth, range(8)):
        cfg.batch_size, cfg.seq_len = round(BATCH * size / length), round(SEQ * length)
        seconds += (one := planner(cfg, "h100x1")).plan(one.setting(Mesh())).step
    assert plans.plan(plans.setting(Mesh())).days * 86400 == pytest.approx(seconds, rel=0.01)


def test_all_chunks_of_logits_count_in_predictions_too() -> None:
    fiddlers.use_mtp(cfg := small())
    # Logits are most of the memory.
    cfg.vocab_size, cfg.loss.chunk_size, cfg.model.loss.chunk_size = 32 * VOCAB, 200, 200
    every, plans = [("none", 1), ("none", 4), ("", 4)], planner(cfg)  # the second follows from two
    one, *four = (traced(plans, Mesh(shard=8), *each) for each in every)
    flops, memory = zip(*((t.parts[-1].forward.flops, t.passing) for t in four), strict=True)
    assert flops == pytest.approx([4 * one.parts[-1].forward.flops] * 2, rel=0.02)
    assert memory[0] == pytest.approx(memory[1], rel=0.01)  # two chunks exist at once
    fiddlers.use_preferences(cfg := small(), "pairs.jsonl")  # whose loss fills no chunk
    assert traced(planner(cfg), Mesh(shard=8), *every[1]).kept


def test_weights_gathered_once_a_step_take_memory_for_all_and_time_for_one_pass() -> None:
    plans = planner()
    setting = replace(plans.setting(Mesh(shard=8)), micro_batch=1, num_micro_batches=4)
    each, once = (plans.plan(replace(setting, reshards=reshards)) for reshards in (True, False))
    number = sum(p.numel() for p in plans.recipe.model.parameters())
    gathers = [
        sum(of.get("shard gather", 0.0) for of in (plan.seconds.sent, plan.seconds.hidden))
        for plan in (each, once)
    ]
    assert gathers[0] > 6 * gathers[1] > 0.0
    assert once.memory[0].gathered > max(2 * number, each.memory[0].gathered)


def test_a_search_ranks_every_setting_that_may_fit_or_shows_the_least() -> None:
    cfg = small()
    cfg.batch_size = 8
    plans = planner(cfg, "h100x4")
    every = [plans.plan(setting) for setting in plans._settings()]
    meshes = {str(plan.setting.mesh) for plan in every}
    assert {"shard=4", "shard=2, tensor=2", "pipeline=2, shard=2"} <= meshes
    memory = sorted(plan.peak for plan in every)[len(every) // 3]
    device = replace(plans.cluster.device, memory=memory)
    plans.cluster = replace(plans.cluster, device=device)
    found = plans.search()
    fitting = sorted((plan for plan in every if plan.peak <= memory), key=lambda plan: plan.step)
    assert [plan.setting for plan in found.plans if plan.fits] == [p.setting for p in fitting]
    assert found.num_settings == len(every) > len(found.plans)
    plans.cluster = replace(plans.cluster, device=replace(device, memory=1.0))
    assert plans.search().plans[0].peak == min(plan.peak for plan in every)


def test_experts_on_more_processes_follow_from_those_on_fewer() -> None:
    cfg = small()
    fiddlers.use_moe(cfg, num_experts=16, top_k=2)
    plans = planner(cfg, "h100x32")
    assert {mesh.sizes["expert"] for mesh in plans.meshes()} == {1, 2, 4, 8, 16}
    setting = replace(plans.setting(Mesh(shard=32, expert=16)), recompute="none", micro_batch=1)
    assert plans._trace(setting) == plans._execute(setting, {"expert": 16})


@pytest.mark.parametrize(
    ("text", "amount"), [("1e20", 1e20), ("2h", 7200), ("$16", 3600), ("1days", 86400)]
)
def test_a_budget_is_operations_time_or_money(text: str, amount: float) -> None:
    found, is_time = budget_amount(text, size=8, price=2.0)
    assert found == pytest.approx(amount) and is_time is (text != "1e20")
    with pytest.raises(ValueError, match="must be operations"):
        budget_amount("1e300", size=8, price=2.0)


CHINCHILLA = 1.8172, 482.01, 2085.43, 0.3478, 0.3658  # Besiroglu et al., 2024, arXiv:2404.10102


def runs(noise: float) -> list[Run]:
    """Runs of four budgets, of five sizes each, of a known law."""
    e, a, b, alpha, beta = CHINCHILLA
    generator, found = random.Random(0), []
    for flops in (1e18, 1e19, 1e20, 1e21):
        for ratio in (0.3, 0.6, 1.0, 1.7, 3.0):
            size = math.sqrt(flops / 120) * ratio
            tokens = flops / 6 / size
            loss = e + a / size**alpha + b / tokens**beta
            found.append(Run(size, tokens, flops, loss * math.exp(generator.gauss(0, noise))))
    return found


def test_a_known_law_is_found_within_its_intervals() -> None:
    exact = fit(runs(0.0), draws=2)
    assert exact.constants == pytest.approx(CHINCHILLA, rel=0.02)
    law = fit(runs(0.003))
    inside = [low <= value <= high for value, (low, high) in
              zip(CHINCHILLA, map(law.interval, range(5)), strict=True)]  # fmt: skip
    assert sum(inside) >= 4
    # Chinchilla itself: 70e9 parameters and 1.4e12 tokens, by the reconstructed law.
    parameters, tokens = law.best(5.76e23)
    assert 40e9 < parameters < 110e9 and parameters * tokens == pytest.approx(5.76e23 / 6)
    for curve in parabolas(runs(0.0)):
        assert curve.best == pytest.approx(exact.best(curve.flops)[0], rel=0.15)
    assert any("the largest run" in line for line in law.unknowns(1e25))


def test_a_fit_that_cannot_tell_a_size_takes_the_nearest_that_was_tried() -> None:
    law = fit([replace(run, loss=2 + run.tokens**-0.3) for run in runs(0.0)], draws=2)
    parameters, tokens = law.best(1e20)
    assert tokens / parameters == pytest.approx(law.tried[1])
    assert any("cannot tell the best size for 1e+20" in line for line in law.unknowns(1e20))


def test_unknown_hardware_names_what_is_known() -> None:
    with pytest.raises(UnknownHardware, match="h100.*mi300x"):
        cluster_named("abacusx4")
    assert cluster_named("mi300x").size == 1
    assert cluster_named("h100_96gbx16").device.title == "H100 96GB"
