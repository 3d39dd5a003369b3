"""Every fiddler on every family of models, alone and together: it applies, and trains."""

import functools
import inspect
import itertools
import random
from collections.abc import Collection

import fiddle as fdl
import pytest
import torch
from small_models import ARGUMENTS, OF_MIXTURES, apply, shrunk, start, tiered

from fidgpt import configs, fiddlers, train
from fidgpt.configs.constraints import mup_fits_the_model
from fidgpt.data import Batch
from fidgpt.graph import ConfigError, bind, clone, fingerprint
from fidgpt.model import materialize
from fidgpt.runs import building
from fidgpt.runs.building import build_trainer

pytestmark = pytest.mark.slow

# One config of each family, and whether one table reads and scores tokens.
TIED = {
    "base": True,
    "debug": True,
    "gpt2_124m": True,
    "llama3_2_1b": True,
    "mistral_7b": False,
    "qwen2_5_0_5b": True,
    "qwen3_0_6b": True,
    "gemma2_2b": True,
    "gemma3_270m": True,
    "olmo2_1b": False,
    "falcon_7b": True,
    "smollm3_3b": True,
}
OWN = {"base", "debug", "gpt2_124m"}
GEMMA = {"gemma2_2b", "gemma3_270m"}
PRE_NORM = {*TIED} - GEMMA - {"olmo2_1b", "falcon_7b"}

# Where a fiddler changes nothing, because the config is so already.
ALREADY_SO: dict[str, Collection[str]] = {
    "make_small": {"gpt2_124m"},
    "tie_embeddings": {name for name in TIED if TIED[name]},
    "untie_embeddings": {name for name in TIED if not TIED[name]},
    "use_adamw": {*TIED},
    "use_bytes": {"debug"},
    "use_geglu": GEMMA,
    "use_gelu": {"gpt2_124m"},
    "use_gqa": {"qwen2_5_0_5b"},
    "use_layer_norm": {"gpt2_124m", "falcon_7b"},
    "use_learned_positions": {"gpt2_124m"},
    "use_offset_norm": GEMMA,
    "use_parallel_block": {"falcon_7b"},
    "use_post_norm": {"olmo2_1b"},
    "use_pre_norm": PRE_NORM,
    "use_qk_norm": {"qwen3_0_6b"},
    "use_rms_norm": {"base", "debug", "llama3_2_1b", "mistral_7b"},
    "use_rope": {"base", "debug", "mistral_7b", "gemma2_2b", "falcon_7b"},
    "use_sandwich_norm": GEMMA,
    "use_softcap": {"gemma2_2b"},
    "use_swiglu": {*TIED} - GEMMA - {"gpt2_124m", "falcon_7b"},
}

# Where a fiddler and a family conflict: heads do not fill the width, or cannot be split
# evenly over key heads.
REFUSED: dict[str, Collection[str]] = {
    "use_gqa": {"falcon_7b"},
    "make_small": {"llama3_2_1b", "mistral_7b", "olmo2_1b", "smollm3_3b"},
    "make_medium": {"olmo2_1b"},
    "make_large": {"llama3_2_1b", "mistral_7b", "olmo2_1b", "smollm3_3b"},
    "make_xl": {"llama3_2_1b", "mistral_7b", "olmo2_1b", "smollm3_3b", "qwen2_5_0_5b"},
}

MIXTURES = ["mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v2_lite", "deepseek_v3", "gpt_oss_20b"]
# Latent attention has no heads of keys; gpt-oss's experts have no MLP of their kind; and sizes.
DEEPSEEK = {"deepseek_v2_lite", "deepseek_v3"}
UNFIT: dict[str, Collection[str]] = {
    "use_gqa": DEEPSEEK,
    "use_mup": DEEPSEEK,
    "use_norm_per_head": DEEPSEEK,
    "use_qk_norm": DEEPSEEK,
    "use_value_embeddings": DEEPSEEK,
    "use_gated_value_embeddings": DEEPSEEK,
    "use_shared_expert": {"gpt_oss_20b"},
    "make_small": {"mixtral_8x7b"},
    "make_large": {"mixtral_8x7b"},
    "make_xl": {"mixtral_8x7b", "deepseek_v2_lite"},
}

CHANGE_MODELS = {
    "adapters",
    "attention",
    "blocks",
    "embeddings",
    "heads",
    "latent",
    "losses",
    "streams",
}
FEATURES = [
    name
    for name in fiddlers.__all__
    if getattr(fiddlers, name).__module__.rpartition(".")[2] in {*CHANGE_MODELS, "positions"}
    or name in {"use_mup", "use_moe"}
]
FEATURES.remove("freeze")  # which changes what is trained of a model, and not the model

REFUSAL = "refused"
PASSED: set[str] = set()  # models that could be gone through


def family(name: str) -> fdl.Config:
    """A named config; those of published models are cut to two rounds of their pattern."""
    return clone(_made(name))


@functools.cache
def _made(name: str) -> fdl.Config:
    cfg = getattr(configs, name)()
    if name not in OWN:
        cfg.model.num_layers = 2 * len(cfg.model.blocks)
    return cfg


def fiddled(cfg: fdl.Config, *names: str) -> fdl.Config:
    """A copy that some fiddlers were applied to."""
    cfg = clone(cfg)
    for name in names:
        apply(cfg, name)
    return cfg


@functools.cache
def begun(first: str, config: str) -> tuple[fdl.Config, str]:
    """What a fiddler is tried on, after another one if that is given, and its fingerprint."""
    cfg = fiddled(family(config), *filter(None, [first]))
    return cfg, fingerprint(cfg)


def try_to_build(cfg: fdl.Config) -> train.Trainer:
    """As `build_trainer`, but goes through a model once: half of the fiddlers leave it as it is."""
    bound = bind(cfg)
    seen = fingerprint([bound.model, bound.seq_len, bound.parallel])  # all that the trial looks at
    if seen in PASSED:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(building, "try_model", lambda _: None)
            return build_trainer(cfg)
    trainer = build_trainer(cfg)
    PASSED.add(seen)
    return trainer


@pytest.mark.parametrize("config", tiered(TIED, {"base"}))
@pytest.mark.parametrize("name", fiddlers.__all__)
def test_a_fiddler_applies_and_changes_something_once(name: str, config: str) -> None:
    before, identity = begun("use_moe" if name in OF_MIXTURES else "", config)
    cfg = fiddled(before, name)
    found = fingerprint(cfg)
    assert (found == identity) == (config in ALREADY_SO.get(name, ()))
    twice = fingerprint(fiddled(cfg, name))
    assert (twice == found) == (name not in {"scale_learning_rate", "scale_depth"})
    if config in REFUSED.get(name, ()):
        with pytest.raises(ConfigError, match="num_kv_heads|must be a multiple of head_dim"):
            try_to_build(cfg)
    else:
        model = try_to_build(cfg).model
        assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("config", tiered(MIXTURES, {"deepseek_v3"}))
@pytest.mark.parametrize("name", tiered(fiddlers.__all__, FEATURES))
def test_a_fiddler_applies_to_a_published_mixture_or_is_refused(name: str, config: str) -> None:
    cfg = family(config)
    cfg.model.num_layers += len(cfg.model.first_blocks)
    try:
        apply(cfg, name)
        model = try_to_build(cfg).model
    except ConfigError as error:
        assert config in UNFIT.get(name, ()), error
        assert str(error).strip()
    else:
        assert config not in UNFIT.get(name, ())
        assert all(parameter.is_meta for parameter in model.parameters())


def test_fiddlers_can_be_used_from_a_command_line() -> None:
    """Their arguments are literals with defaults, and what needs a mixture reports that."""
    names = {*ALREADY_SO, *REFUSED, *OF_MIXTURES}
    assert names <= {*fiddlers.__all__}, "a fiddler that is named here is gone"
    for name in OF_MIXTURES:
        with pytest.raises(ConfigError, match="no MoE"):
            fiddled(family("base"), name)
    required = {
        (name, parameter.name)
        for name in fiddlers.__all__
        for parameter in list(inspect.signature(getattr(fiddlers, name)).parameters.values())[1:]
        if parameter.default is inspect.Parameter.empty
    }
    assert required == {(name, key) for name, given in ARGUMENTS.items() for key in given}


FAMILIES = [*(name for name in TIED if name not in {"base", "debug"}), *MIXTURES]


@functools.cache
def outcome_of(family: str, *names: str) -> str:
    """The fingerprint of a family after some fiddlers, or that one of them is refused."""
    try:
        cfg = composed(family, [*names])
        mup_fits_the_model(cfg)
        return fingerprint(cfg)
    except ConfigError:
        return REFUSAL


def is_unrelated(family: str, one: str, other: str) -> bool:
    """Whether two fiddlers commute and neither undoes the other."""
    together = outcome_of(family, one, other)
    if together in {outcome_of(family, one), outcome_of(family, other), REFUSAL}:
        return False
    return together == outcome_of(family, other, one)


def drawn(index: int) -> list[str]:
    """Features at random that have nothing to do with each other."""
    family, chance = FAMILIES[index % len(FAMILIES)], random.Random(index)
    names: list[str] = []
    for name in chance.sample(FEATURES, len(FEATURES)):
        is_fit = outcome_of(family, name) != REFUSAL
        if is_fit and all(is_unrelated(family, one, name) for one in names):
            names.append(name)
        if len(names) == 2 + index % 10:
            break
    return names


_shrunk = functools.cache(shrunk)


def composed(family: str, names: list[str]) -> fdl.Config:
    cfg = clone(_shrunk(family))
    for name in names:
        getattr(fiddlers, name)(cfg)
    return cfg


@pytest.mark.parametrize("index", tiered(range(42), range(len(FAMILIES))))
def test_any_features_in_any_order_are_one_graph_and_train(index: int) -> None:
    family, names = FAMILIES[index % len(FAMILIES)], drawn(index)
    cfg = composed(family, names)
    orders = [names[::-1], random.Random(1).sample(names, len(names))]
    for order in orders:
        assert fingerprint(composed(family, order)) == fingerprint(cfg), order
    trainer = build_trainer(cfg)
    model = trainer.model
    materialize(model, device=torch.device("cpu"), seed=0)
    if trainer.trainable is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trainer.trainable(name, parameter))
    state = start(trainer, max_grad_norm=1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    tokens = torch.randint(0, 257, (2, 33), generator=torch.Generator().manual_seed(0))
    losses = [trainer.update(state, Batch(tokens))["loss"] for _ in range(3)]
    assert losses[-1] < losses[0]
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert moved <= trained
    assert len(trained - moved) <= len(trained) // 4, trained - moved


@pytest.mark.parametrize("third", tiered(range(3), {0}))
@pytest.mark.parametrize("family", tiered(FAMILIES, {"gemma3_270m", "deepseek_v3", "gpt_oss_20b"}))
def test_every_two_features_build(family: str, third: int) -> None:
    """Each pair on one family; which features go with which family is tried one by one."""
    pairs = list(itertools.combinations(FEATURES, 2))[FAMILIES.index(family) :: len(FAMILIES)]
    for pair in pairs[third::3]:
        try:
            build_trainer(composed(family, [*pair]))
        except ConfigError as error:
            latent = {"use_mla", "use_indexer", "use_indexer_warmup"} & {*pair}
            assert family in DEEPSEEK or latent, f"{pair}: {error}"
