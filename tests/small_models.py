"""Small models, published configs made small, and any fiddler on any config."""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn

from fidgpt import configs, fiddlers, parallel
from fidgpt import model as lm
from fidgpt.placement import whole_of
from fidgpt.train import Trainer, state

M = TypeVar("M", bound=nn.Module)
CPU = torch.device("cpu")
# One config of each.
FAMILIES = (
    *("gpt2_124m", "llama3_2_1b", "qwen3_0_6b", "gemma3_270m", "olmo2_1b", "falcon_7b"),
    *("smollm3_3b", "mixtral_8x7b", "deepseek_v2_lite", "deepseek_v3", "gpt_oss_20b"),
    *("command_r", "gpt_neox_20b", "phi3_3_8b", "granite3_2b", "olmoe_1b_7b", "gemma2_2b"),
)
# They change a mixture of experts, and so come after the one that makes it.
OF_MIXTURES = [
    "use_expert_capacity",
    "use_micro_batch_balancing",
    "use_expert_groups",
    "use_loss_free_balancing",
    "use_sequence_balancing",
    "use_shared_expert",
    "use_sigmoid_router",
]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "freeze": {"path": "model.embedding"},
    "initialize_from": {"path": str(Path(__file__))},
    "mirror_checkpoints": {"url": "memory://runs/this"},
    "use_conversations": {"path": str(Path(__file__))},
    "use_hub_conversations": {"path": "some/talks"},
    "use_hub_preferences": {"path": "some/pairs"},
    "use_hub_text": {"path": "some/texts"},
    "use_preferences": {"path": str(Path(__file__))},
    "use_text": {"path": str(Path(__file__))},
    "use_mixture": {"texts": {"this": str(Path(__file__))}},
    "use_validation": {"texts": {"this": str(Path(__file__))}},
}


def small_block(
    attention: Callable[..., Any] = lm.Attention,
    mlp: Callable[..., nn.Module] = lm.SwiGLU,
    *,
    kind: Callable[..., nn.Module] = lm.Block,
    hidden_dim: int = 32,
) -> nn.Module:
    """A block with heads of 8."""
    return kind(
        attention_norm=lm.RMSNorm(hidden_dim=hidden_dim),
        attention=attention(hidden_dim=hidden_dim, head_dim=8),
        mlp_norm=lm.RMSNorm(hidden_dim=hidden_dim),
        mlp=mlp(hidden_dim=hidden_dim),
    )


def small_model(
    *blocks: Callable[[], Any],
    num_layers: int = 2,
    tied: bool = True,
    positions: nn.Module | None = None,
    hidden_dim: int = 32,
    vocab_size: int = 50,
    kind: Callable[..., Any] = lm.Transformer,
    **options: Any,
) -> Any:
    """A Transformer of some blocks; its table has 50 tokens and a width of 32."""
    make_table = partial(lm.token_table, vocab_size=vocab_size, hidden_dim=hidden_dim)
    table = make_table()
    return kind(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        blocks=blocks,
        unembedding=lm.Unembedding(table if tied else make_table()),
        **{
            "embedding": lm.Embedding(table, positions=positions),
            "norm": lm.RMSNorm(hidden_dim=hidden_dim),
            **options,
        },
    )


def meta_model(*, num_layers: int = 3, tied: bool = True) -> Any:
    """A model of the shape of `base`, without memory."""
    with torch.device("meta"):
        block = partial(small_block, partial(lm.Attention, rope=lm.RoPE(head_dim=8)))
        return small_model(block, num_layers=num_layers, tied=tied)


def make_model(*, seed: int = 0, num_layers: int = 3, tied: bool = True) -> Any:
    """The same on the CPU, ready to compute."""
    return started(meta_model(num_layers=num_layers, tied=tied), seed=seed).eval()


def started(model: M, *, seed: int = 0) -> M:
    """A model, materialized on the CPU."""
    lm.materialize(model, device=CPU, seed=seed)
    return model


def filled(model: M, *, std: float = 0.3, seed: int = 0) -> M:
    """A model with parameters that are far from zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std, generator=generator)
    return model


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def shrunk(name: str) -> fdl.Config:
    """A named config of width 64 that reads bytes, two rounds of its pattern deep."""
    cfg = getattr(configs, name)()
    fiddlers.make_tiny(cfg, num_steps=2)
    fiddlers.use_float32(cfg)
    return cfg


def cut(cfg: fdl.Config) -> None:
    """Let a model have two rounds of its pattern, after its first layers."""
    cfg.model.num_layers = len(cfg.model.first_blocks) + 2 * len(cfg.model.blocks)


def start(
    trainer: Trainer, *, micro_batch_size: int | None = None, max_grad_norm: float | None = None
) -> state.TrainState:
    """Prepare single steps at the peak learning rate, with a model that has memory already."""
    trainer.schedule = lambda step: 1.0
    trainer.parallel = parallel.DataParallel()
    trainer.micro_batch_size = micro_batch_size
    trainer.max_grad_norm = max_grad_norm
    return trainer.init_state()


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights, copied; each process of a mesh that holds parts of them calls this."""
    return {name: whole_of(p.detach(), p).clone() for name, p in model.named_parameters()}


def tiered(names: Iterable[Any], usual: Collection[Any]) -> list[Any]:
    """Parameters of a test: those in `usual` always, the others only in `make test-long`."""
    long = pytest.mark.long
    return [name if name in usual else pytest.param(name, marks=long) for name in names]


def apply(cfg: fdl.Config, name: str) -> None:
    """With the default arguments; a path is that of this file."""
    assert getattr(fiddlers, name)(cfg, **ARGUMENTS.get(name, {})) is None


def apply_to_any(cfg: fdl.Config, name: str) -> None:
    """The same, after what makes the config one that it applies to."""
    if name in OF_MIXTURES:
        fiddlers.use_moe(cfg)
    apply(cfg, name)
