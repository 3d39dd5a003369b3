"""A text in parts, with what was kept of the parts before, gives the logits of the whole."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from small_models import filled, small_block, small_model
from torch import Tensor, nn

from fidgpt import model as lm
from fidgpt.model.cache import Cache
from fidgpt.model.generation import Sampling, write
from fidgpt.model.mla import LatentAttention

SEQ = 14
ATTENTIONS: dict[str, Callable[..., nn.Module]] = {
    "plain": lm.Attention,
    "window": partial(lm.Attention, window=3),
    "window of one": partial(lm.Attention, window=1),
    "grouped": partial(lm.Attention, num_kv_heads=2),
    "alibi": partial(lm.Attention, scores=[lm.ALiBi()]),
    "softcap": partial(lm.Attention, scores=[lm.Softcap(cap=1.0)]),
    "sinks": partial(lm.Attention, sinks=lm.attention_sinks),
    "window with sinks and alibi": partial(
        lm.Attention, window=4, sinks=lm.attention_sinks, scores=[lm.ALiBi()]
    ),
    "prefix": partial(lm.Attention, mask=lm.Prefix(3)),
    "rope": partial(lm.Attention, rope=lm.RoPE(head_dim=8, theta=100.0)),
    "latent": partial(
        LatentAttention, rope_head_dim=4, kv_rank=12, rope=lm.RoPE(head_dim=4, theta=100.0)
    ),
}


def make_model(*kinds: str, shared: bool = False, **options: Any) -> lm.Transformer:
    """Two layers for each kind of attention in turn, with parameters that are far from zero."""
    settings = {key: options.pop(key) for key in ("kind", "mlp") if key in options}
    blocks = [partial(small_block, ATTENTIONS[kind], **settings) for kind in kinds]
    factories = [lm.Shared(block) for block in blocks] if shared else blocks
    model = small_model(*factories, num_layers=2 * len(kinds), tied=False, **options)
    return filled(model, seed=1).eval()


def tight_mixture(*, hidden_dim: int) -> lm.MoE:
    """Experts that have room for a few tokens in training."""
    return lm.MoE(
        num_experts=4,
        router=lm.SoftmaxRouter(hidden_dim=hidden_dim, num_experts=4, top_k=2),
        experts=lm.GatedExperts(hidden_dim=hidden_dim, num_experts=4),
        dispatch=lm.Capacity(factor=0.5),
    )


MODELS: dict[str, Callable[[], lm.Transformer]] = {
    **{kind: partial(make_model, kind) for kind in ATTENTIONS},
    "local and global": partial(make_model, "window", "rope", "window with sinks and alibi"),
    "learned positions": lambda: make_model(
        "plain", positions=lm.LearnedPositions(seq_len=SEQ, hidden_dim=32)
    ),
    "one block for all": partial(make_model, "rope", shared=True),
    "parallel": partial(make_model, "grouped", kind=lm.ParallelBlock),
    "experts with little room": partial(make_model, "rope", mlp=tight_mixture),
}


def parts_of(
    layout: lm.AttentionContext, sizes: list[int], cache: Cache
) -> list[lm.AttentionContext]:
    """The same text in parts, each with the cache."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(replace(layout.columns(begin, begin + size), cache=cache))
        begin += size
    return parts


def in_parts(
    model: lm.Transformer, layout: lm.AttentionContext, sizes: list[int], cache: Cache
) -> Tensor:
    parts = parts_of(layout, sizes, cache)
    with torch.inference_mode():
        return torch.cat([model(part.tokens, part) for part in parts], dim=1)


def text(*, rows: int = 2) -> Tensor:
    return torch.randint(1, 50, (rows, SEQ), generator=torch.Generator().manual_seed(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows", "sizes"),
    [
        *((kind, 1, [6] + [1] * 8) for kind in MODELS),
        *((kind, 2, [4, 5, 1, 1, 3]) for kind in MODELS),
        *((kind, 2, [1] * SEQ) for kind in ("learned positions", "local and global")),
    ],
)
def test_logits_are_those_of_the_whole_text(kind, rows, sizes):
    model, tokens = MODELS[kind](), text(rows=rows)
    cached = in_parts(model, model.layout(tokens), sizes, Cache(capacity=SEQ + 3))
    torch.testing.assert_close(cached, model(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_short_row_is_as_if_it_were_alone(kind):
    model, tokens = MODELS[kind](), text(rows=3)
    present = torch.ones_like(tokens)
    present[1, :3] = present[2, :1] = 0
    layout = lm.padded(tokens, present=present)
    cached = in_parts(model, layout, [6, 4, 1, 1, 2], Cache(capacity=SEQ))
    for row, absent in enumerate((0, 3, 1)):
        alone = model(tokens[row : row + 1, absent:])
        torch.testing.assert_close(cached[row : row + 1, absent:], alone, atol=1e-5, rtol=1e-5)


def test_documents_stay_apart():
    model, tokens = make_model("rope", "window"), text()
    tokens[0, 4] = tokens[1, 9] = 0
    model.layout = lm.PackedDocuments(end_of_text=0)
    cached = in_parts(model, model.layout(tokens), [7] + [1] * 7, Cache(capacity=SEQ))
    torch.testing.assert_close(cached, model(tokens), atol=1e-5, rtol=1e-5)


def test_more_tokens_than_there_is_room_for_are_refused():
    model, tokens = make_model("window"), text()
    with pytest.raises(ValueError, match=r"10 \+ 4 tokens exceed the cache's capacity of 13"):
        in_parts(model, model.layout(tokens), [10, 4], Cache(capacity=SEQ - 1))
    with pytest.raises(ValueError, match="capacity=0"):
        Cache(capacity=0)


class Recurrent(nn.Module):
    """h_t = a_t * h_(t-1) + b_t of each channel, and a convolution over three tokens before it."""

    def __init__(self, *, hidden_dim: int, head_dim: int = 0) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.empty(3, hidden_dim))
        self.decay = lm.Linear(hidden_dim, hidden_dim)
        self.value = lm.Linear(hidden_dim, hidden_dim)

    def forward(self, x: Tensor, ctx: lm.AttentionContext) -> Tensor:
        past, state = ctx.state(self) or (
            x.new_zeros(len(x), 2, x.shape[2]),
            x.new_zeros(x[:, 0].shape),
        )
        joined = torch.cat([past, x], dim=1)
        positions = ctx.positions.unsqueeze(-1)
        shifted = [joined[:, 2 - back : joined.shape[1] - back] for back in range(3)]
        x = torch.stack(
            [self.taps[back] * one * (positions >= back) for back, one in enumerate(shifted)]
        ).sum(0)
        kept = torch.sigmoid(self.decay(x)) * (positions > 0)
        added = self.value(x) * (positions >= 0)
        states = []
        for column in range(x.shape[1]):
            state = kept[:, column] * state + added[:, column]
            states.append(state)
        ctx.keep_state(self, [joined[:, -2:], state])
        return torch.stack(states, dim=1)


def recurrent_model() -> lm.Transformer:
    blocks = [partial(small_block, Recurrent), partial(small_block, ATTENTIONS["window"])]
    return filled(small_model(*blocks, num_layers=4, tied=False), seed=1).eval()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[1] * SEQ, [6, 1, 1, 4, 1, 1]])
def test_a_recurrent_state_goes_on_where_it_was(sizes):
    model, tokens = recurrent_model(), text()
    tokens[0, 4] = tokens[1, 9] = 0
    for layout in (lm.one_document, lm.PackedDocuments(end_of_text=0)):
        cached = in_parts(model, layout(tokens), sizes, Cache(capacity=SEQ))
        torch.testing.assert_close(cached, model(tokens, layout(tokens)), atol=1e-5, rtol=1e-5)


def test_a_recurrent_model_generates_the_same_text_by_token_as_in_one_pass():
    model, cut = recurrent_model(), recurrent_model()
    prompts = [[3, 4, 5, 6, 7], [8, 9]]  # of which the shorter one is padded
    counts: list[int] = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))

    choose = Sampling(seeds=[0, 0], temperature=0.0)
    by_token = [*write(model, prompts, num_tokens=8, context=20, choose=choose)]
    trial = [20, 19, 1]  # of whether the custom mixer goes on from its cache
    assert counts == [*trial, 5] + [1] * 7
    for row, prompt in enumerate(prompts):
        tokens = [*prompt]
        for _ in range(8):
            tokens.append(int(cut(torch.tensor([tokens]))[0, -1].argmax()))
        assert [column[row] for column in by_token] == tokens[len(prompt) :]


def test_a_state_has_the_memory_of_one_token():
    model, tokens, cache = recurrent_model(), text(), Cache(capacity=1000)
    in_parts(model, model.layout(tokens), [SEQ - 1, 1], cache)
    states = 2 * 2 * 3 * 32 * 4  # layers, rows, two inputs and a state, width, bytes
    keys = 2 * 2 * 2 * 3 * 32 * 4  # of the attentions, whose window is 3
    assert cache.bytes() == states + keys + 8 * 3
