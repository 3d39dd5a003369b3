"""The dials that move many numbers at once: what follows from what."""

import fiddle as fdl
import pytest
import torch
from learning import start

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import base, debug
from fidgpt.fiddlers import make_depth, scale_depth, train_for, use_float32, use_moe, use_mup
from fidgpt.graph import ConfigError
from fidgpt.model import Transformer, materialize
from fidgpt.train import Trainer


def started(cfg: fdl.Config) -> Trainer:
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return trainer


def moved(width: int, *, mup: bool) -> float:
    """How far four steps move the stream after the last block, as a root mean square."""
    cfg = debug()
    use_float32(cfg)
    if mup:
        use_mup(cfg, base_dim=32, base_head_dim=16)
    cfg.model.hidden_dim = width
    cfg.optimizer.lr = 1e-2
    trainer = started(cfg)
    state, model = start(trainer), trainer.model
    assert isinstance(model, Transformer)
    tokens = torch.randint(0, 257, (4, 33), generator=torch.Generator().manual_seed(0))
    stream = []
    model.norm.register_forward_pre_hook(lambda _, inputs: stream.append(inputs[0].detach()))
    for _ in range(5):
        trainer.update(state, tokens)
    return float((stream[-1] - stream[0]).square().mean().sqrt())


def test_under_mup_updates_are_as_large_at_any_width():
    """The coordinate check of Yang et al. (2022, appendix D.1)."""
    scaled = [moved(width, mup=True) for width in (32, 128, 512)]
    plain = [moved(width, mup=False) for width in (32, 128, 512)]
    assert max(scaled) / min(scaled) < 1.6, scaled
    assert plain[2] / plain[0] > 2.5, plain


def test_at_its_base_width_mup_starts_as_without():
    first, second = debug(), debug()
    use_mup(second, base_dim=32, base_head_dim=16)
    one, other = (started(cfg).model for cfg in (first, second))
    assert all(map(torch.equal, one.parameters(), other.parameters()))


def test_one_dial_moves_a_whole_run():
    small, large = base(), base()
    make_depth(small, depth=4)
    make_depth(large, depth=12)
    assert (small.model.hidden_dim, large.model.hidden_dim) == (256, 768)
    model = build_trainer(large).model
    assert isinstance(model, Transformer)
    attention = model.get_submodule("blocks.11.attention")
    assert (len(model.blocks), attention.num_heads) == (12, 12)
    assert large.batch_size > small.batch_size and large.optimizer.lr < small.optimizer.lr
    tokens = large.num_steps * large.batch_size * large.seq_len
    assert tokens == pytest.approx(20 * 12 * 12 * 768**2, rel=0.01)
    # DeepSeek LLM (2024), section 3.1: C = 6 * 20 * N^2 operations.
    operations = 120 * (12 * 12 * 768**2) ** 2
    assert large.optimizer.lr == pytest.approx(0.3118 * operations**-0.125, rel=0.05)
    assert large.batch_size * 128 == pytest.approx(0.2920 * operations**0.3271, rel=0.01)


def test_depth_is_scaled_and_never_below_one_layer():
    cfg = base()
    scale_depth(cfg, factor=2.5)
    assert cfg.model.num_layers == 10
    scale_depth(cfg, factor=0.01)
    assert cfg.model.num_layers == 1


def test_a_run_of_so_many_tokens_keeps_them_whatever_a_batch_holds() -> None:
    cfg = base()
    train_for(cfg, tokens=1_024_000)
    assert build_trainer(cfg).num_steps == 1_024_000 // (8 * 128)
    cfg.batch_size, cfg.seq_len = 16, 64
    trainer = build_trainer(cfg)
    assert trainer.num_steps == trainer.schedule.num_steps == 1000  # pyright: ignore[reportAttributeAccessIssue]
    assert trainer.schedule.warmup_steps == 100  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("experts", [False, True])
def test_tokens_for_each_parameter_that_a_token_meets(experts: bool) -> None:
    cfg = debug()
    if experts:
        use_moe(cfg, num_experts=4, top_k=1)
    train_for(cfg, tokens_per_parameter=20)
    model = build_trainer(cfg).model
    met = sum(p.numel() // (4 if ".experts." in n else 1) for n, p in model.named_parameters())
    assert cfg.num_steps.tokens == 20 * met
    assert any(".experts." in name for name, _ in model.named_parameters()) == experts


def test_tokens_are_set_once_and_are_a_number() -> None:
    with pytest.raises(ConfigError, match="tokens=5 and tokens_per_parameter=20 say the same"):
        train_for(debug(), tokens=5, tokens_per_parameter=20)
    with pytest.raises(ConfigError, match="tokens_per_parameter=0 must be above 0"):
        train_for(debug(), tokens_per_parameter=0)
