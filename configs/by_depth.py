"""nanochat's model and recipe of July 2026 (https://github.com/karpathy/nanochat), by one dial.

The depth derives width, heads, length of the run, batch, learning rates and decay. The text is
`base`'s; `fiddler:use_hub_text(climbmix)` uses nanochat's own.
"""

from typing import Any

import fiddle as fdl

from fidgpt.configs.small import base
from fidgpt.configs.windows import FULL, SLIDING, look_back
from fidgpt.fiddlers import (
    untie_embeddings,
    use_backout,
    use_embedding_norm,
    use_gated_value_embeddings,
    use_input_scalars,
    use_normuon,
    use_packing,
    use_smear,
    use_squared_relu,
    use_weightless_norm,
)
from fidgpt.graph import find, swap_all
from fidgpt.graph.formulas import make_formula
from fidgpt.model import (
    Attention,
    Backout,
    Constant,
    GatedValueEmbedding,
    InputScalars,
    LateNormAttention,
    Normal,
    Ramp,
    ReversedRoPE,
    RoPE,
    SquaredReLU,
    UniformFanIn,
    WeightlessRMSNorm,
)
from fidgpt.optim import (
    ByName,
    CosineDecay,
    LinearDecay,
    ParameterGroups,
    Phases,
    Rise,
    Rule,
    Switched,
    fraction,
    power_lines_batch_size,
)
from fidgpt.ranges import require_positive, require_size
from fidgpt.tags import HeadDim, LogitCap, NumSteps, SeqLen
from fidgpt.train import Trainer

_HEAD = "{model.blocks[0].attention.head_dim}"
# The parameters that count: of matrices of layers, and of the unembedding.
_PARAMETERS = (
    "(12 * {model.num_layers} * {model.hidden_dim}**2 + {vocab_size} * {model.hidden_dim} + "
    f"12 * (({{model.num_layers}} + 1) // 2) * ({{model.hidden_dim}} // {_HEAD}))"
)
# At depth 12 and with 2^19 tokens in a batch, settings were tuned.
_SHARE = f"{_PARAMETERS} / {12 * 12 * 768**2 + 32_768 * 768 + 12 * 6 * 6}"
_BY_BATCH = f"({{batch_size}} * {{seq_len}} / {2**19}) ** 0.5"
_BY_WIDTH = "({model.hidden_dim} / 768) ** -0.5"


def nanochat(
    *,
    depth: int = 20,
    head_dim: int = 128,
    seq_len: int = 2048,
    vocab_size: int = 32_768,
    tokens_per_parameter: float = 12.0,
    window_pattern: str = "SSSL",
) -> fdl.Config[Trainer]:
    """A decoder with value embeddings and squared ReLUs, trained by NorMuon: 20 layers of 1,280.

    In nanochat, 24 layers with 8 tokens for each parameter take 1.65 hours on 8 H100, and have a
    CORE above GPT-2's 0.2565. In `window_pattern`, S is a layer with a window and L one without, as
    the last one always is.
    """
    require_size(depth=depth, head_dim=head_dim)
    require_positive(tokens_per_parameter=tokens_per_parameter)
    if not window_pattern or set(window_pattern) - {*"SL"}:
        raise ValueError(f"{window_pattern=} must be letters S and L, one or more.")
    cfg = base()
    cfg.vocab_size, cfg.seq_len, cfg.max_grad_norm = vocab_size, seq_len, None
    use_packing(cfg)
    _use_model(cfg, depth, head_dim)
    letters = [window_pattern[i % len(window_pattern)] for i in range(depth - 1)]
    window = -(-seq_len // 512) * 128 + 1  # a quarter in tiles of 128, besides the query
    look_back(cfg, window, [FULL if letter == "L" else SLIDING for letter in [*letters, "L"]])
    use_gated_value_embeddings(cfg, every=2)
    for table in find(cfg.model, GatedValueEmbedding):
        table.init = fdl.Config(UniformFanIn)
    _use_recipe(cfg, tokens_per_parameter)
    return cfg


def _use_model(cfg: fdl.Config[Trainer], depth: int, head_dim: int) -> None:
    model, zero = cfg.model, fdl.Config(Constant, 0.0)
    model.num_layers = depth
    for attention in swap_all(model, Attention, by=LateNormAttention):
        attention.head_dim = HeadDim.new(head_dim)
        # Queries and keys are 1.2 times longer than their norms make them.
        attention.scale = make_formula(cfg, f"1.44 * {_HEAD} ** -0.5")
        attention.init, attention.out_init = fdl.Config(UniformFanIn), zero
        for name in ("query_norm", "key_norm"):
            norm = fdl.ArgFactory(WeightlessRMSNorm, hidden_dim=HeadDim.new(), eps=None)
            setattr(attention, name, norm)
    for rope in swap_all(model, RoPE, by=ReversedRoPE):
        rope.theta = 100_000.0
    model.hidden_dim = make_formula(cfg, f"-(-64 * {{model.num_layers}} // {_HEAD}) * {_HEAD}")
    use_squared_relu(cfg)
    for mlp in find(model, SquaredReLU):
        mlp.init, mlp.out_init = fdl.Config(UniformFanIn, gain=0.4), zero
    use_weightless_norm(cfg, eps=None)
    untie_embeddings(cfg)
    use_embedding_norm(cfg, eps=None)
    use_smear(cfg)
    model.embedding.weight.init = fdl.Config(Normal, std=0.8)
    model.unembedding.weight.init = fdl.Config(Normal, std=0.001)
    model.unembedding.softcap = LogitCap.new(15.0)
    use_input_scalars(cfg)
    use_backout(cfg)
    for scalars in find(model, InputScalars):
        scalars.residual_init = fdl.Config(Ramp, first=1.15, last=1.05)
        scalars.input_init = fdl.Config(Ramp, first=0.2, last=0.05)
    for backout in find(model, Backout):
        backout.init = fdl.Config(Constant, 0.2)


def _use_recipe(cfg: fdl.Config[Trainer], tokens_per_parameter: float) -> None:
    cfg.batch_size = fdl.Config(
        power_lines_batch_size, share=make_formula(cfg, _SHARE), seq_len=SeqLen.new()
    )
    tokens = f"int({tokens_per_parameter} * {_PARAMETERS})"
    cfg.num_steps = make_formula(cfg, f"max(1, {tokens} // ({{batch_size}} * {{seq_len}}))")
    use_normuon(cfg)
    optimizer = cfg.optimizer
    optimizer.lr = make_formula(cfg, _BY_BATCH)
    optimizer.weight_decay, optimizer.eps, optimizer.momentum = 0.0, 1e-10, 0.97
    optimizer.cautious_decay = make_formula(cfg, f"0.28 * {_BY_BATCH} / ({_SHARE})")
    optimizer.adjust_lr_fn = "original"
    cfg.groups.groups = fdl.Config(ParameterGroups, [_rule(cfg, *row) for row in _RULES])
    cfg.schedule = _fall(0.05, fdl.Config(Rise, num_steps=40))
    momentum = fdl.Config(Rise, num_steps=400, begin=0.85 / 0.97, first=0)
    decay = fdl.Config(Phases, num_steps=NumSteps.new(), shape=fdl.Config(CosineDecay))
    decay.warmup, decay.min_lr_ratio, decay.first = 0, 0.0, 0
    cfg.schedules = {"momentum": _fall(0.9 / 0.97, momentum), "cautious_decay": decay}


# Name, parameters, rate, decay rates of the means, weight decay. NorMuon trains layers' matrices.
_RULES = (
    ("layers", "^blocks[.](?!.*value_embedding[.]weight)", "0.02", None, 0.0),
    ("unembedding", "^unembedding[.]", f"0.008 * {_BY_WIDTH}", (0.8, 0.96), 0.01),
    ("embedding", "^embedding[.]weight", f"0.3 * {_BY_WIDTH}", (0.8, 0.995), 0.001),
    ("values", "value_embedding[.]weight", f"0.15 * {_BY_WIDTH}", (0.8, 0.995), 0.01),
    ("residual scalars", "^skips.*residual", "0.005", (0.8, 0.95), 0.05),
    ("input scalars", "^skips.*input", "0.5", (0.96, 0.95), 0.0),
    ("gates", "^embedding[.][^w]|^skips.*amount", f"0.2 / {_BY_BATCH}", (0.8, 0.95), 0.0),
)


def _rule(
    cfg: Any, name: str, pattern: str, rate: str, betas: Any, decay: float
) -> fdl.Config[Rule]:
    rule = fdl.Config(Rule, name, match=fdl.Config(ByName, pattern), weight_decay=decay)
    rule.lr_scale = make_formula(cfg, rate) if "{" in rate else float(rate)
    if betas is not None:
        rule.settings = {"betas": betas}
    rule.may_be_idle = name != "layers"  # of a model without value embeddings, scalars or gates
    return rule


def _fall(least: float, before: fdl.Config[Rise]) -> fdl.Config[Switched]:
    """Return a schedule that rises, stays, and falls in the last 65 % of the run."""
    after = fdl.Config(Phases, num_steps=NumSteps.new(), shape=fdl.Config(LinearDecay))
    after.warmup, after.min_lr_ratio, after.first = 0, least, 0
    after.decay = fdl.Config(fraction, of=NumSteps.new(), ratio=0.65)
    return fdl.Config(Switched, step=before.num_steps, before=before, after=after)
