"""Recurrent mixers: chunks against the definition, packed rows, padding, states and groups."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import drawn, filled, small_block, small_model
from torch import Tensor, nn

from fidgpt import model as lm
from fidgpt.model.cache import Cache
from fidgpt.model.context import AttentionContext, PackedDocuments, counted, padded
from fidgpt.model.recurrent.filters import CausalFilter
from fidgpt.model.recurrent.segments import Segments
from fidgpt.optim import decay_matrices, hidden_matrices, mup_groups

HIDDEN, SEQ = 32, 150  # two chunks and a part of a third
MIXERS: dict[str, Callable[..., nn.Module]] = {
    "gated delta": partial(
        lm.GatedDeltaNet, head_dim=8, num_heads=4, num_key_heads=2, value_head_dim=12
    ),
    "mamba": partial(lm.Mamba2, head_dim=8, num_heads=4, num_groups=2, state_dim=12),
    "convolution": lm.ShortConvolution,
    "kimi delta": partial(lm.KimiDeltaNet, head_dim=8, num_heads=3),
    "lightning": partial(lm.LightningAttention, head_dim=8, num_heads=3),
}
each_mixer = pytest.mark.parametrize("name", MIXERS)


def mixer(name: str) -> nn.Module:
    return filled(MIXERS[name](hidden_dim=HIDDEN).double())


def positions_of(*lengths: int) -> Tensor:
    return torch.cat([torch.arange(length) for length in lengths])


@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize("decays", [1, 8])
def test_chunks_compute_what_the_definition_does(decays: int, is_delta: bool) -> None:
    """Outputs, the last state and gradients; rows of documents, one with padding in front."""
    key = F.normalize(drawn(2, SEQ, 2, 8, seed=1, dtype=torch.double), dim=-1)
    tensors: list[Tensor] = [
        drawn(2, SEQ, 2, 8, dtype=torch.double),
        key,
        drawn(2, SEQ, 4, 6, seed=2, dtype=torch.double),
        -0.03 * (2 * drawn(2, SEQ, 4, decays, seed=3, dtype=torch.double)).exp(),
    ]
    options: dict[str, Tensor] = {"state": drawn(2, 4, 8, 6, seed=4, dtype=torch.double)}
    if is_delta:
        options["beta"] = drawn(2, SEQ, 4, seed=5, dtype=torch.double).sigmoid()
    inputs = [x.requires_grad_() for x in (*tensors, *options.values())]
    positions = torch.stack(
        [
            torch.cat([torch.arange(7, 44), positions_of(30, 83)]),  # goes on with a document
            torch.cat([torch.full((20,), -1), positions_of(100, 30)]),
        ]
    )
    real = (positions >= 0)[:, :, None, None]
    for ctx in (counted(SEQ, torch.device("cpu")), AttentionContext(positions)):
        results: list[list[Tensor]] = []
        for compute in (lm.by_tokens, lm.by_chunks):
            out, state = compute(lm.Steps(*tensors, **options, segments=Segments.of(ctx)))
            out = out * real
            loss = (out * out).sum() + state.sum()
            results.append([out, state, *torch.autograd.grad(loss, inputs)])
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@each_mixer
def test_packed_rows_are_one_document_at_a_time(name: str) -> None:
    """And so are padded ones."""
    module, x = mixer(name), drawn(2, SEQ, HIDDEN, dtype=torch.double)
    lengths = [70, 3, 77]
    alone = torch.cat([module(part, None) for part in x.split(lengths, dim=1)], dim=1)
    begins = torch.zeros(2, SEQ, dtype=torch.long)
    begins[:, [0, 70, 73]] = 1
    packed = module(x, PackedDocuments(end_of_text=1)(begins))
    torch.testing.assert_close(packed, alone)
    present = torch.ones(2, SEQ, dtype=torch.long)
    present[1, :60] = present[:, 140:] = 0
    out = module(x, padded(begins, present=present))
    torch.testing.assert_close(out[:1, :140], module(x[:1, :140], None))
    torch.testing.assert_close(out[1:, 60:140], module(x[1:, 60:140], None))
    assert out.isfinite().all()


@each_mixer
def test_a_cache_keeps_the_state(name: str) -> None:
    """Some tokens, one, and some more: what all at once are, in a layer of a model too."""
    module, x = mixer(name), drawn(2, SEQ, HIDDEN, dtype=torch.double)
    cache, parts, begin = Cache(capacity=SEQ), [], 0
    for end in (80, 81, 82, SEQ):
        positions = torch.arange(begin, end).unsqueeze(0)
        ctx = AttentionContext(positions, contiguous=True, cache=cache, continues=begin > 0)
        parts.append(module(x[:, begin:end], ctx))
        begin = end
    torch.testing.assert_close(torch.cat(parts, dim=1), module(x, None))


@each_mixer
def test_what_optimizers_take_for_matrices(name: str) -> None:
    """Linears alone: no filter, rate or gate vector; none of those decays either."""

    def make(*, hidden_dim: int, head_dim: int) -> nn.Module:
        return MIXERS[name](hidden_dim=hidden_dim)

    model: Any = small_model(partial(small_block, make))
    matrices = {
        f"blocks.{path}" for path, m in model.blocks.named_modules() if isinstance(m, nn.Linear)
    }
    assert {one.removesuffix(".weight") for one in hidden_matrices(model)} == matrices
    decayed, others = (group["params"] for group in decay_matrices(model))
    tables = {id(model.embedding.weight)}
    assert {id(p) for p in decayed} - tables == {
        id(model.get_submodule(one).weight) for one in matrices
    }
    scaled = [g for g in mup_groups(model, base_dim=16) if "width_scale" in g]
    assert {id(p) for g in scaled for p in g["params"]} == {id(p) for p in decayed} - tables
    assert {p.dim() for p in others} <= {1, 3}


def test_a_filter_has_its_gradients_with_and_without_documents() -> None:
    """Of its own backward pass, and of torch's where positions are not known to be contiguous."""
    module = filled(CausalFilter(6, size=4, bias=True).double())
    x = drawn(2, 9, 6, dtype=torch.double).requires_grad_()
    positions = torch.arange(9).unsqueeze(0)
    results: list[list[Tensor]] = []
    for ctx in (counted(9, x.device), AttentionContext(positions)):
        out = module(x, ctx)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])])
    torch.testing.assert_close(*results)
