"""Fiddlers of losses, evaluators, optimizers, schedules, and the dials that move whole runs."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import fiddle as fdl
import pytest
import torch
from small_models import start

from fidgpt import configs, data, fiddlers, optim, tags, train
from fidgpt.compose.composition import compose
from fidgpt.fiddlers.trackers import added_by_kind
from fidgpt.graph import ConfigError, bind, build, fingerprint, set_tag, title
from fidgpt.model import Transformer, materialize
from fidgpt.runs.building import build_trainer
from fidgpt.train.optimizer_groups import peak_rate

MADE = {
    "use_adamw": torch.optim.AdamW,
    "use_muon": optim.Muon,
    "use_lion": optim.Lion,
    "use_sgd": torch.optim.SGD,
    "use_adafactor": torch.optim.Adafactor,
    "use_schedule_free": optim.ScheduleFreeAdamW,
}
OTHER = [name for name in MADE if name != "use_adamw"]


@pytest.fixture
def cfg() -> fdl.Config[train.Trainer]:
    return configs.debug()


def built(cfg: fdl.Config) -> Any:
    """The trainer, whose components are of other kinds than its annotations."""
    return build_trainer(cfg)


def test_terms_are_added_and_the_loss_stays_what_it_is(cfg):
    loss = built(cfg).loss
    assert type(loss) is train.CrossEntropy and not loss.terms
    cfg.loss.chunk_size = 7
    fiddlers.use_label_smoothing(cfg, amount=0.2)
    fiddlers.use_fused_loss(cfg)
    fiddlers.use_z_loss(cfg, weight=0.01)
    loss = built(cfg).loss
    assert type(loss) is train.FusedCrossEntropy and loss.chunk_size == 7
    terms: dict[str, Any] = dict(loss.terms or {})
    assert {*terms} == {"label_smoothing", "z_loss"}
    assert (terms["label_smoothing"].amount, terms["z_loss"].weight) == (0.2, 0.01)
    cfg.loss = fdl.Config(dict)
    with pytest.raises(
        ConfigError, match="the loss is dict, but terms and fusion are of a CrossEntropy"
    ):
        fiddlers.use_label_smoothing(cfg)


def test_each_text_of_a_mixture_is_a_domain(cfg):
    fiddlers.use_mixture(cfg, {"here": __file__, "there": __file__})
    fiddlers.use_prefetch(cfg)
    before = cfg.evaluators["validation"]
    fiddlers.use_domain_validation(cfg)
    part = built(cfg).evaluators["validation"]
    assert isinstance(part, train.DomainValidation)
    domains: dict[str, Any] = dict(part.domains)
    assert list(domains) == ["here", "own", "there"]
    assert part.every == before.every
    assert {one.max_batches for one in domains.values()} == {before.data.num_batches}
    assert cfg.evaluators["validation"].domains["own"].corpus is before.data.corpus
    cfg.data = fdl.Config(data.Mixture, {"inner": cfg.data}, batch_size=4, weights={"inner": 1.0})
    fiddlers.use_domain_validation(cfg)
    names = [f"inner/{name}" for name in ("here", "own", "there")]
    assert [*cfg.evaluators["validation"].domains] == names
    cfg.evaluators = {}
    with pytest.raises(ConfigError, match="no evaluator"):
        fiddlers.use_domain_validation(cfg)


def test_a_file_of_which_all_is_held_out_is_validated_on_by_its_name(cfg, tmp_path):
    cfg.data.corpus.source = fdl.Config(data.TextFiles, __file__)
    cfg.data.corpus.cache_dir = str(tmp_path)
    before = cfg.evaluators["validation"]
    fiddlers.use_validation(cfg, {"here": __file__})
    cfg.evaluators["here"].data.corpus.cache_dir = str(tmp_path)
    parts = built(cfg).evaluators
    assert sorted(parts) == ["here", "validation"]
    here = parts["here"]
    assert isinstance(here, train.Validation) and isinstance(here.data, data.HeldOut)
    assert (here.every, here.data.max_batches) == (before.every, before.data.num_batches)
    prepared = here.data.corpus.prepare(show_progress=False)
    assert (prepared.train.num_tokens, prepared.validation.num_documents) == (0, 1)
    own = cfg.evaluators["here"]
    fiddlers.use_domain_validation(cfg)  # which is about what is trained on
    assert cfg.evaluators["here"] is own
    assert built(cfg).data.corpus.validation_fraction > 0  # which `validation` reads
    fiddlers.use_validation(cfg, {"validation": __file__})
    assert cfg.evaluators["validation"].data.corpus.validation_fraction == 1.0
    assert built(cfg).data.corpus.validation_fraction == 0  # which nothing reads


def test_tasks_inherit_the_length_and_share_the_text(cfg):
    fiddlers.use_tasks(cfg, ("one", "two"), limit=3, include_path=str(Path(__file__).parent))
    part = built(cfg).evaluators["tasks"]
    assert (part.tasks, part.limit, part.seq_len) == (["one", "two"], 3, cfg.seq_len)
    assert cfg.evaluators["tasks"].corpus is cfg.data.corpus


def groups_of(cfg: fdl.Config) -> list[dict[str, Any]]:
    trainer = build_trainer(cfg)
    return trainer.optimizer(trainer.groups(trainer.model)).param_groups


@pytest.mark.parametrize("name", MADE)
def test_it_is_the_optimizer_and_tags_still_reach_it(cfg, name):
    getattr(fiddlers, name)(cfg)
    assert {group["lr"] for group in groups_of(cfg)} == {
        group["lr"] for group in groups_of(configs.debug())
    }
    set_tag(cfg, tags.LearningRate, 0.125)
    set_tag(cfg, tags.WeightDecay, 0.25)
    trainer = build_trainer(cfg)
    optimizer = trainer.optimizer(trainer.groups(trainer.model))
    assert isinstance(optimizer, MADE[name])
    assert {group["lr"] for group in optimizer.param_groups} == {0.125}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.25, 0.0}
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in trainer.model.parameters())
    if name in OTHER:
        getattr(fiddlers, name)(cfg, learning_rate=0.5)
        assert {group["lr"] for group in groups_of(cfg)} == {0.5}


@pytest.mark.parametrize("name", OTHER)
def test_adamw_comes_back_as_it_was(cfg, name):
    same = configs.debug()
    getattr(fiddlers, name)(cfg)
    assert name != "use_muon" or cfg.groups is not optim.decay_matrices
    fiddlers.use_adamw(cfg)
    assert name != "use_muon" or fingerprint(cfg) == fingerprint(same)
    assert cfg.groups == same.groups


@pytest.mark.parametrize("muon", [False, True])
def test_layers_train_slower_the_deeper_they_are(cfg, muon):
    fiddlers.use_layer_decay(cfg, factor=0.5)
    if muon:
        fiddlers.use_muon(cfg)
    trainer = build_trainer(cfg)
    groups = trainer.groups(trainer.model)
    scales = {id(p): group.get("lr_scale", 1.0) for group in groups for p in group["params"]}
    decays = {id(p): "weight_decay" not in group for group in groups for p in group["params"]}
    last = cfg.model.num_layers - 1
    for name, parameter in trainer.model.named_parameters():
        layer = int(name.split(".")[1]) if name.startswith("blocks.") else last
        expected = 0.5 ** (last + 1) if name.startswith("embedding") else 0.5 ** (last - layer)
        assert scales[id(parameter)] == expected, name
        assert decays[id(parameter)] == (parameter.dim() == 2), name
    hidden = "hidden matrices" if muon else "matrices"
    assert [group["name"] for group in groups] == [
        *("matrices, embedding", f"{hidden}, layer 0", f"{hidden}, layer 1"),
        *("vectors, layer 0", "vectors, layer 1, norm"),
    ]


def curve(cfg: fdl.Config) -> list[float]:
    schedule: optim.Schedule = build(bind(cfg).schedule)
    return [schedule(step) for step in range(450)]


def test_named_shapes_are_what_they_were_bit_for_bit() -> None:
    cfg = configs.base()
    fiddlers.use_cosine(cfg)
    assert fdl.get_callable(cfg.schedule) is optim.Phases
    assert curve(cfg) == curve(configs.base())
    fiddlers.use_wsd(cfg)
    same = optim.WarmupStableDecay(num_steps=450, warmup_steps=45, decay_steps=90)
    assert curve(cfg) == [same(step) for step in range(450)]


def test_a_ratio_is_a_share_of_the_run_and_never_a_number_of_steps() -> None:
    cfg = configs.base()
    for use in (fiddlers.use_wsd, fiddlers.use_wsd_s):
        for ratio in (2, 1.5, -0.1):
            with pytest.raises(ConfigError, match=f"decay_ratio={ratio} .* set:schedule.decay="):
                use(cfg, decay_ratio=ratio)
    fiddlers.use_wsd(cfg, decay_ratio=1)
    fiddlers.set_warmup(cfg, warmup=0)
    assert curve(cfg)[0] == pytest.approx(1 - 1 / 450)


@pytest.mark.parametrize(
    "schedule",
    [
        fdl.Config(
            optim.WarmupCosine, num_steps=300, warmup_steps=tags.WarmupSteps.new(7), min_ratio=0.2
        ),
        fdl.Config(
            optim.WarmupStableDecay, num_steps=tags.NumSteps.new(), warmup_steps=7, decay_steps=9
        ),
        fdl.Config(optim.Constant),
    ],
    ids=["cosine", "wsd", "constant_at_once"],
)
def test_named_schedules_become_phases_with_all_their_settings(schedule: fdl.Config) -> None:
    cfg = configs.base()
    cfg.schedule = schedule
    before = curve(cfg)
    fiddlers.use_cycles(cfg, cycles=1)
    assert fdl.get_callable(cfg.schedule) is optim.Phases
    assert curve(cfg) == before
    set_tag(cfg, tags.WarmupSteps, 3)
    assert curve(cfg)[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_fiddlers_of_one_schedule_add_up() -> None:
    cfg = configs.base()
    fiddlers.use_cycles(cfg, cycles=[150, 300], rewarmup=0.1)
    fiddlers.use_polynomial(cfg, power=3.0, min_lr_ratio=0.0)
    fiddlers.set_warmup(cfg, warmup=15)
    values = curve(cfg)
    assert values[:15] == pytest.approx([(step + 1) / 15 for step in range(15)])
    assert values[15] == pytest.approx((1 - 1 / 135) ** 3)
    assert (values[149], values[299], values[449]) == (0.0, 0.0, 0.0)
    assert values[150:165] == pytest.approx([(step + 1) / 15 for step in range(15)])
    shape = build(bind(cfg).schedule).shape
    assert isinstance(shape, optim.PolynomialDecay) and shape.power == 3.0


def test_cycles_end_with_a_model_to_keep_and_are_set_once() -> None:
    cfg = configs.base()
    fiddlers.use_wsd_s(cfg, cycles=3)
    values = curve(cfg)
    assert [step + 1 for step, value in enumerate(values) if value == 0.1] == [150, 300, 450]
    assert values[150] == 1.0
    cfg = configs.base()
    fiddlers.use_cycles(cfg, cycle_length=150)
    assert build(bind(cfg).schedule).ends == [150, 300, 450]
    fiddlers.use_cycles(cfg, cycles=5, cycle_length=90)
    with pytest.raises(ConfigError, match="cycles=5 and cycle_length=90 cannot both be set"):
        build(bind(cfg).schedule)


def test_the_cycles_of_a_schedule_end_with_it() -> None:
    plain, after, kept, twice = (configs.base() for _ in range(4))
    fiddlers.use_cosine(plain)
    fiddlers.use_wsd_s(after, cycles=3)
    fiddlers.use_cosine(after)
    assert fingerprint(after) == fingerprint(plain)
    fiddlers.use_inverse(kept)
    fiddlers.use_cycles(kept, cycles=3)
    fiddlers.use_cosine(kept)
    assert build(bind(kept).schedule).ends == [150, 300, 450]
    fiddlers.use_wsd_s(twice, cycles=3)
    fiddlers.use_wsd_s(twice, cycles=[200, 450])
    assert build(bind(twice).schedule).ends == [200, 450]


def test_by_default_an_inverse_square_root_falls_from_the_end_of_the_warm_up() -> None:
    cfg = configs.base()
    fiddlers.use_inverse_sqrt(cfg)
    assert isinstance(build(bind(cfg).schedule).shape, optim.InverseSqrtDecay)
    assert curve(cfg)[44:] == pytest.approx([(45 / (step + 1)) ** 0.5 for step in range(44, 450)])
    cfg.schedule = fdl.Config(dict)  # one of a user's own
    with pytest.raises(ConfigError, match="the schedule is dict, whose warm-up and decay"):
        fiddlers.use_linear(cfg)


def started(cfg: fdl.Config) -> train.Trainer:
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return trainer


def moved(width: int, *changes: Callable[[fdl.Config], None], rate: float = 1e-2) -> float:
    """How far four steps move the stream after the last block, as a root mean square."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    for change in changes:
        change(cfg)
    cfg.model.hidden_dim = width
    cfg.optimizer.lr = rate
    trainer = started(cfg)
    state, model = start(trainer), trainer.model
    assert isinstance(model, Transformer)
    tokens = torch.randint(0, 257, (4, 33), generator=torch.Generator().manual_seed(0))
    stream = []
    norm = cast(torch.nn.Module, model.norm)
    norm.register_forward_pre_hook(lambda _, inputs: stream.append(inputs[0].detach()))
    for _ in range(5):
        trainer.update(state, data.Batch(tokens))
    return float((stream[-1] - stream[0]).square().mean().sqrt())


WIDTHS = (32, 128)
MUP = partial(fiddlers.use_mup, base_dim=32, base_head_dim=16)


def slope(*changes: Callable[[fdl.Config], None]) -> float:
    """The exponent of the width in the size of updates."""
    narrow, wide = (moved(width, *changes) for width in WIDTHS)
    return math.log(wide / narrow) / math.log(WIDTHS[1] / WIDTHS[0])


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", ["use_adamw", "use_lion", "use_schedule_free", "use_muon"])
def test_under_mup_updates_are_as_large_at_any_width(name: str) -> None:
    """The coordinate check of Yang et al. (2022, appendix D.1)."""
    optimizer = getattr(fiddlers, name)
    assert abs(slope(optimizer, MUP)) < 0.1
    if name == "use_muon":
        assert abs(slope(MUP, optimizer)) < 0.1
    if name == "use_adamw":
        assert slope(optimizer) > 0.3


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", ["use_gated_delta", "use_lightning_attention", "use_mamba"])
def test_under_mup_updates_of_recurrent_mixers_are_as_large_at_any_width(name: str) -> None:
    """At a small rate: at 1e-2 four steps leave the range in which an update tells the next one."""
    mix, mup = partial(getattr(fiddlers, name), every=0), partial(MUP, base_dim=64)
    narrow, wide = (moved(width, mix, mup, rate=1e-3) for width in (64, 256))
    assert abs(math.log(wide / narrow) / math.log(4)) < 0.1
    assert moved(64, mup, mix, rate=1e-3) == narrow


@pytest.mark.parametrize("name", ["use_mla", "use_kimi_delta", "use_lora", "use_moe, use_lora"])
def test_mup_refuses_inputs_of_a_low_rank(name: str) -> None:
    """Their updates fall like width^-0.4 (use_mla), as the rank has one size at any width.

    Of adapters, too: the rate of B must not depend on the width (arXiv:2402.12354, section 3).
    """
    cfg = configs.debug()
    for one in name.split(", "):
        getattr(fiddlers, one)(cfg)
    MUP(cfg)
    with pytest.raises(ConfigError, match=r"use_mup scales .* a low rank.* leave out use_mup"):
        build_trainer(cfg)


def test_at_its_base_width_mup_starts_as_without_it() -> None:
    first, second = configs.debug(), configs.debug()
    MUP(second)
    one, other = (started(cfg).model for cfg in (first, second))
    assert all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("name", ["use_adamw", "use_muon"])
def test_under_mup_a_step_decays_weights_as_much_at_any_width(name: str) -> None:
    """As in the package mup (MuAdamW), which multiplies decay where it divides the rate."""
    for width in (32, 128):
        cfg = configs.debug()
        MUP(cfg)
        getattr(fiddlers, name)(cfg)
        cfg.model.hidden_dim, cfg.optimizer.lr, cfg.optimizer.weight_decay = width, 1e-2, 0.1
        trainer = started(cfg)
        groups = start(trainer).optimizer.param_groups
        decays = {round(peak_rate(one) * one["weight_decay"], 9) for one in groups}
        assert decays == {0.0, 1e-3}, width


@pytest.mark.parametrize(
    "name", ["use_sgd", "use_adafactor", "use_normuon", "RAdam", "Adadelta", "ASGD", "Adafactor"]
)
def test_mup_refuses_optimizers_whose_updates_follow_the_width(name: str) -> None:
    """Slopes of torch's: -1.07 in five steps (RAdam), -0.5 (Adadelta)."""
    cfg = configs.debug()
    MUP(cfg)
    if name.startswith("use_"):
        getattr(fiddlers, name)(cfg)
    else:
        cfg.optimizer = fdl.Partial(getattr(torch.optim, name), lr=1e-3)
    with pytest.raises(ConfigError, match=r"use_mup scales learning rates .* leave out use_mup"):
        build_trainer(cfg)


def numbers_of(cfg: fdl.Config) -> tuple[int, int, int, int, float]:
    """Width, tokens of a batch, sequences of a batch, tokens of the run, and learning rate."""
    bound = bind(cfg)
    width, seq_len = build(bound.model.hidden_dim), bound.seq_len
    batch, steps = (build(one) for one in (bound.batch_size, bound.num_steps))
    rate = build(bound.optimizer.lr)
    return width, batch * seq_len, batch, steps * batch * seq_len, rate


@pytest.mark.slow
def test_one_dial_moves_a_whole_run() -> None:
    cfg = configs.base()
    fiddlers.make_depth(cfg, depth=12)
    model = build_trainer(cfg).model
    assert isinstance(model, Transformer)
    attention = model.get_submodule("blocks.11.attention")
    assert (len(model.blocks), attention.num_heads) == (12, 12)
    width, batch_tokens, _, tokens, rate = numbers_of(cfg)
    assert width == 768 and tokens == pytest.approx(20 * 12 * 12 * 768**2, rel=0.01)
    # DeepSeek LLM (2024), section 3.1: C = 6 * 20 * N^2 operations.
    operations = 120 * (12 * 12 * 768**2) ** 2
    assert rate == pytest.approx(0.3118 * operations**-0.125, rel=0.05)
    assert batch_tokens == pytest.approx(0.2920 * operations**0.3271, rel=1 / 16)
    for factor, num_layers in [(2.5, 30), (0.001, 1)]:
        fiddlers.scale_depth(cfg, factor=factor)
        assert cfg.model.num_layers == num_layers
        assert numbers_of(cfg)[0] == 64 * num_layers


def test_what_the_dial_derives_does_not_depend_on_the_order() -> None:
    dial, change = "fiddler:make_depth(depth=8)", "set:seq_len=2048"
    plain, before, after = (
        compose(directives, base=configs.base()).config
        for directives in ([dial], [change, dial], [dial, change])
    )
    assert fingerprint(before) == fingerprint(after)
    # A batch has about as many tokens as with short sequences, and a run as many.
    assert numbers_of(after)[1] == pytest.approx(numbers_of(plain)[1], rel=1 / 8)
    assert numbers_of(after)[3] == pytest.approx(numbers_of(plain)[3], rel=0.01)


@pytest.mark.parametrize("over", [0.25, 500])
@pytest.mark.parametrize("first", ["fiddler:train_for(tokens=1000003)", "set:batch_size=24"])
def test_a_run_of_so_many_tokens_counts_growing_batches(first, over) -> None:
    growth = f"fiddler:grow_batch(over={over}, multiple_of=3)"
    directives = ["fiddler:train_for(tokens=1000003)", "set:batch_size=24", growth]
    directives.append("fiddler:grow_seq_len")
    cfg = compose(sorted(directives, key=first.__ne__), base=configs.base()).config
    assert fingerprint(cfg) == fingerprint(compose(directives[::-1], base=configs.base()).config)
    trainer = built(cfg)
    counted = [trainer.stream.full_batches(trainer.num_steps - n) * 24 * 128 for n in (1, 0)]
    assert counted[0] < 1_000_003 <= counted[1]


def test_a_run_of_so_many_tokens_keeps_them_whatever_a_batch_holds() -> None:
    cfg = configs.base()
    fiddlers.train_for(cfg, tokens=1_024_000)
    assert build_trainer(cfg).num_steps == 1_024_000 // (8 * 128)
    cfg.batch_size, cfg.seq_len = 16, 64
    trainer = built(cfg)
    assert trainer.num_steps == trainer.schedule.num_steps == 1000
    assert trainer.schedule(98) < trainer.schedule(99) == 1  # after 100 steps of warm-up


@pytest.mark.parametrize("experts", [False, True])
def test_tokens_for_each_active_parameter(cfg, experts) -> None:
    if experts:
        fiddlers.use_moe(cfg, num_experts=4, top_k=1)
    fiddlers.train_for(cfg, tokens_per_parameter=20)
    trainer = build_trainer(cfg)
    model = trainer.model
    met = sum(p.numel() // (4 if ".experts." in n else 1) for n, p in model.named_parameters())
    assert trainer.num_steps == -(-20 * met // (trainer.batch_size * trainer.seq_len))
    assert any(".experts." in name for name, _ in model.named_parameters()) == experts


def test_a_tag_of_tokens_for_each_parameter_makes_and_changes_the_length() -> None:
    wider, tag = "tag:HiddenDim=64", "tag:TokensPerParameter"
    fiddler = "fiddler:train_for(tokens_per_parameter=20.5)"
    made = compose([wider, f"{tag}=10.5", f"{tag}=20.5"], base=configs.base()).config
    assert fingerprint(made) == fingerprint(compose([wider, fiddler], base=configs.base()).config)


class Comet(train.Console):
    """A tracker of the user's own."""


class Aim(train.Console):
    """Another."""


@pytest.mark.parametrize("field", ["trackers", "observers"])
def test_parts_of_a_list_stand_in_one_order_whichever_came_first(cfg, field: str) -> None:
    base = list(getattr(cfg, field))
    added = [fdl.Config(one) for one in (Comet, train.MLflow, Aim, train.WandB, Comet)]
    for order in itertools.permutations(added):
        parts = base
        for part in order:
            parts = added_by_kind(parts, part)
        names = [title(part) for part in parts]
        assert names == [*map(title, base), "Aim", "Comet", "MLflow", "WandB"]
