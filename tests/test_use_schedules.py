"""Fiddlers of schedules: what was set stays set, and numbers are those of the parts."""

import fiddle as fdl
import pytest

from fidgpt import fiddlers
from fidgpt.configs import base
from fidgpt.graph import ConfigError, bind, build, set_tag
from fidgpt.optim import (
    Constant,
    InverseSqrtDecay,
    Phases,
    PolynomialDecay,
    Schedule,
    WarmupCosine,
    WarmupStableDecay,
)
from fidgpt.tags import NumSteps, WarmupSteps


def curve(cfg: fdl.Config) -> list[float]:
    schedule: Schedule = build(bind(cfg).schedule)
    return [schedule(step) for step in range(450)]


def test_the_cosine_of_the_base_stays_what_it_was_bit_for_bit() -> None:
    cfg = base()
    fiddlers.use_cosine(cfg)
    assert fdl.get_callable(cfg.schedule) is Phases
    assert curve(cfg) == curve(base())


def test_wsd_is_a_trapezoid_bit_for_bit() -> None:
    cfg = base()
    fiddlers.use_wsd(cfg)
    same = WarmupStableDecay(num_steps=450, warmup_steps=45, decay_steps=90)
    assert curve(cfg) == [same(step) for step in range(450)]


def test_a_ratio_is_a_share_of_the_run_and_never_a_number_of_steps() -> None:
    cfg = base()
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
        fdl.Config(WarmupCosine, num_steps=300, warmup_steps=WarmupSteps.new(7), min_ratio=0.2),
        fdl.Config(WarmupStableDecay, num_steps=NumSteps.new(), warmup_steps=7, decay_steps=30),
        fdl.Config(Constant, warmup_steps=7),
        fdl.Config(Constant),
    ],
    ids=["cosine", "wsd", "constant", "constant_at_once"],
)
def test_schedules_that_have_a_name_become_phases_with_all_their_settings(
    schedule: fdl.Config,
) -> None:
    cfg = base()
    cfg.schedule = schedule
    before = curve(cfg)
    fiddlers.use_cycles(cfg, cycles=1)
    assert fdl.get_callable(cfg.schedule) is Phases
    assert curve(cfg) == before
    set_tag(cfg, WarmupSteps, 3)
    assert curve(cfg)[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_their_lengths_add_up() -> None:
    cfg = base()
    fiddlers.use_cycles(cfg, cycles=[150, 300], rewarmup=0.1)
    fiddlers.use_polynomial(cfg, power=3.0, min_lr_ratio=0.0)
    fiddlers.set_warmup(cfg, warmup=15)
    values = curve(cfg)
    assert values[:15] == pytest.approx([(step + 1) / 15 for step in range(15)])
    assert values[15] == pytest.approx((1 - 1 / 135) ** 3)
    assert (values[149], values[299], values[449]) == (0.0, 0.0, 0.0)
    assert values[150:165] == pytest.approx([(step + 1) / 15 for step in range(15)])
    shape = build(bind(cfg).schedule).shape
    assert isinstance(shape, PolynomialDecay) and shape.power == 3.0


def test_wsd_s_has_a_model_to_keep_at_the_end_of_each_cycle() -> None:
    cfg = base()
    fiddlers.use_wsd_s(cfg, cycles=3)
    values = curve(cfg)
    assert [step + 1 for step, value in enumerate(values) if value == 0.1] == [150, 300, 450]
    assert values[150] == 1.0


def test_by_default_an_inverse_square_root_falls_from_the_end_of_the_warm_up() -> None:
    cfg = base()
    fiddlers.use_inverse_sqrt(cfg)
    assert isinstance(build(bind(cfg).schedule).shape, InverseSqrtDecay)
    assert curve(cfg)[44:] == pytest.approx([(45 / (step + 1)) ** 0.5 for step in range(44, 450)])


def test_cycles_are_set_once() -> None:
    cfg = base()
    fiddlers.use_cycles(cfg, cycle_length=150)
    assert build(bind(cfg).schedule).ends == [150, 300, 450]
    fiddlers.use_cycles(cfg, cycles=5, cycle_length=90)
    with pytest.raises(ConfigError, match="cycles=5 and cycle_length=90 cannot both be set"):
        build(bind(cfg).schedule)


class Own:
    def __call__(self, step: int) -> float:
        return 1.0


def test_a_custom_schedule_has_no_known_phases() -> None:
    cfg = base()
    cfg.schedule = fdl.Config(Own)
    with pytest.raises(ConfigError, match="the schedule is Own, without a known warm-up"):
        fiddlers.use_linear(cfg)
