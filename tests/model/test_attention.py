"""Attention, its kernels and masks, against torch's own modules and plain computations."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from forked import run_program
from small_models import CPU, drawn, filled
from torch import Tensor, nn

from fidgpt import model as lm
from fidgpt.model import kernels
from fidgpt.model.context import counted
from fidgpt.model.cpu import attention as cpu_attention
from fidgpt.model.masks import alibi_slopes

HIDDEN, HEAD_DIM, HEADS, SEQ = 32, 8, 4, 11


def attention(**options) -> lm.Attention:
    return filled(lm.Attention(hidden_dim=HIDDEN, head_dim=HEAD_DIM, bias=True, **options)).eval()


def stream(seed: int = 0) -> Tensor:
    return drawn(2, SEQ, HIDDEN, seed=seed)


def test_equals_torchs_multihead_attention():
    ours = attention()
    theirs = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
    with torch.no_grad():
        projections = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([p.get_parameter("weight") for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.get_parameter("bias") for p in projections]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = stream()
    mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
    expected, _ = theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    torch.testing.assert_close(ours(x), expected, atol=1e-6, rtol=1e-5)


def test_weights_are_dropped_in_training_only():
    part = attention(dropout=0.5)
    x = stream()
    assert torch.equal(part(x), attention()(x))
    assert not torch.equal(part.train()(x), part(x))


def test_any_kernel_can_be_passed():
    x = stream()
    first = attention(kernel=lambda query, key, value, scoring: torch.zeros_like(query))
    torch.testing.assert_close(first(x), first.out.get_parameter("bias").expand_as(x))


SHAPES = [(2, 4, 4, 7), (2, 4, 2, 16), (1, 4, 1, 21)]  # batch, heads, key heads, positions


Inputs = tuple[Tensor, Tensor, Tensor]


def _inputs(shape: tuple[int, int, int, int], dtype: torch.dtype) -> Inputs:
    """Queries, keys and values as the projections give them: heads are not contiguous."""
    batch, heads, kv_heads, seq = shape
    x = drawn(batch, seq, heads + 2 * kv_heads, 8).transpose(1, 2).to(dtype)
    query, key, value = x.split([heads, kv_heads, kv_heads], dim=1)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def _causal(seq: int) -> lm.Scoring:
    """Plain causal attention among `seq` tokens."""
    return lm.Scoring(ctx=counted(seq, CPU), scale=8**-0.5)


def _with_gradients(out: Tensor, inputs: Inputs) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, inputs, weights)]


@pytest.fixture(params=[0, 512], ids=["recomputed", "kept"])
def _memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "KEEP_UP_TO", request.param)


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("block_size", [1, 4, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_give_the_result_and_gradients_of_torch(shape, block_size):
    inputs = _inputs(shape, torch.float64)
    ours = _with_gradients(lm.blockwise(*inputs, _causal(shape[3]), block_size=block_size), inputs)
    theirs = _with_gradients(lm.sdpa(*inputs, _causal(shape[3])), inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_memory")
def test_blockwise_errors_in_bfloat16_are_of_its_size():
    inputs = _inputs((2, 4, 2, 48), torch.bfloat16)
    ours = _with_gradients(lm.blockwise(*inputs, _causal(48), block_size=16), inputs)
    query, key, value = inputs
    exact = query.double(), key.double(), value.double()
    for mine, truth in zip(ours, _with_gradients(lm.sdpa(*exact, _causal(48)), exact), strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine.double() - truth).norm() < 1e-2 * truth.norm()


@pytest.mark.parametrize(
    ("dtype", "kernel"), [(torch.bfloat16, lm.blockwise), (torch.float32, lm.sdpa)]
)
def test_each_format_gets_the_kernel_that_suits_it(dtype, kernel):
    given = _inputs(SHAPES[1], dtype)
    assert torch.equal(lm.fastest(*given, _causal(16)), kernel(*given, _causal(16)))
    query, key, value = (x[:, :, :1].detach() for x in given)
    assert lm.fastest(query, key, value, _causal(1)).dtype == dtype


MASK_SEQ, MASK_HEADS, KV_HEADS = 12, 6, 2
MASKS = {
    "causal": lm.causal,
    "window": lm.And((lm.causal, lm.Window(3))),
    "prefix": lm.Prefix(4),
    "either": lm.Or((lm.Window(2), lm.Prefix(3))),
}
CHANGES = {
    "plain": {},
    "softcap": {"changes": (lm.Softcap(cap=1.5),)},
    "alibi": {"changes": (lm.ALiBi(),)},
    "both": {"changes": (lm.Softcap(cap=1.5), lm.ALiBi())},
    "sinks": {"sinks": torch.linspace(-1, 2, MASK_HEADS, dtype=torch.float64)},
}
TOKENS = torch.tensor([[5, 0, 3, 4, 5, 0, 1, 2, 3, 4, 0, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]])
LAYOUTS = {
    "whole": counted(MASK_SEQ, CPU),
    "packed": lm.PackedDocuments(end_of_text=0)(TOKENS),
    "padded": lm.padded(TOKENS, present=torch.tensor([[0] * 4 + [1] * 8, [1] * 12])),
}
KERNELS = {"sdpa": lm.sdpa, "blockwise": lm.blockwise, "fastest": lm.fastest, "eager": lm.eager}


def scoring(layout: str, mask: str, change: str) -> lm.Scoring:
    ctx = LAYOUTS[layout].columns(0, MASK_SEQ)
    return lm.Scoring(ctx=ctx, scale=0.4, mask=MASKS[mask], **CHANGES[change])


def inputs() -> list[Tensor]:
    sizes = [(MASK_HEADS, 4), (KV_HEADS, 4), (KV_HEADS, 3)]
    return [
        drawn(2, n, MASK_SEQ, d, seed=seed, dtype=torch.float64)
        for seed, (n, d) in enumerate(sizes)
    ]


def allowed(layout: str, mask: str, row: int, query: int, key: int) -> bool:
    """The masks' meaning in plain Python."""
    documents = [0] * MASK_SEQ
    positions = list(range(MASK_SEQ))
    if layout == "packed":
        for i in range(1, MASK_SEQ):
            begins = TOKENS[row, i] == 0
            documents[i] = documents[i - 1] + int(begins)
            positions[i] = 0 if begins else positions[i - 1] + 1
    if layout == "padded" and row == 0:
        positions = [max(i - 4, -1) for i in range(MASK_SEQ)]
    here, there = positions[query], positions[key]
    if there < 0 or documents[query] != documents[key]:
        return False
    return {
        "causal": there <= here,
        "window": here - 3 < there <= here,
        "prefix": there <= here or there < 4,
        "either": abs(here - there) < 2 or there <= here or there < 3,
    }[mask]


def written_out(layout: str, mask: str, change: str) -> Tensor:
    query, key, value = inputs()
    steps = range(MASK_SEQ)
    rows = [[[allowed(layout, mask, row, q, k) for k in steps] for q in steps] for row in (0, 1)]
    key, value = (x.repeat_interleave(MASK_HEADS // KV_HEADS, dim=1) for x in (key, value))
    scores = 0.4 * query @ key.mT
    if change in ("softcap", "both"):
        scores = 1.5 * torch.tanh(scores / 1.5)
    if change in ("alibi", "both"):
        slopes = torch.tensor(alibi_slopes(MASK_HEADS)).double().view(-1, 1, 1)
        scores = scores - slopes * (torch.arange(MASK_SEQ)[:, None] - torch.arange(MASK_SEQ)).abs()
    weights = scores.exp() * torch.tensor(rows).unsqueeze(1)
    sinks = CHANGES["sinks"]["sinks"].exp().view(-1, 1, 1) if change == "sinks" else 0.0
    return weights / (weights.sum(-1, keepdim=True) + sinks) @ value  # NaN for padding


CASES = (
    [(layout, mask, change) for layout in LAYOUTS for mask in MASKS for change in ("plain", "both")]
    + [("whole", "causal", change) for change in CHANGES]
    + [("packed", "window", "sinks")]
)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str, str], Tensor]:
    return {case: written_out(*case) for case in dict.fromkeys(CASES)}


def present(layout: str) -> Tensor:
    """Whether a query is a token; results for padding are arbitrary."""
    tokens = (LAYOUTS[layout].positions >= 0).view(-1, 1, MASK_SEQ, 1)
    return tokens.expand(2, MASK_HEADS, MASK_SEQ, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", dict.fromkeys(CASES), ids="-".join)
def test_every_kernel_computes_the_formula(kernel, case, expected):
    with torch.no_grad():
        query, key, value = inputs()
        mixed = KERNELS[kernel](query, key, value, scoring(*case))
    assert mixed.isfinite().all()
    there = present(case[0])
    torch.testing.assert_close(mixed[there], expected[case][there], rtol=1e-9, atol=1e-9)


def _results(kernel, case: tuple[str, str, str]) -> list[Tensor]:
    """The result for what is no padding, and the gradients of queries, keys, values and sinks."""
    leaves, how = [x.requires_grad_() for x in inputs()], scoring(*case)
    query, key, value = leaves
    if how.sinks is not None:
        sinks = how.sinks.clone().requires_grad_()
        leaves, how = [*leaves, sinks], replace(how, sinks=sinks)
    mixed = kernel(query, key, value, how) * present(case[0])
    gradients = torch.autograd.grad(mixed.square().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    return [mixed.detach(), *gradients]


@pytest.mark.parametrize("kernel", ["sdpa", "blockwise"])
@pytest.mark.parametrize("case", dict.fromkeys(CASES), ids="-".join)
def test_gradients_are_those_of_the_eager_kernel(kernel, case):
    ours, theirs = _results(KERNELS[kernel], case), _results(lm.eager, case)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


EVERY_CASE = [(a, b, c) for a in LAYOUTS for b in MASKS for c in CHANGES]


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("block_size", [1, 4, 5])
def test_blocks_are_exact_for_every_mask_with_every_change(block_size):
    for case in EVERY_CASE:
        ours = _results(partial(lm.blockwise, block_size=block_size), case)
        torch.testing.assert_close(ours, _results(lm.eager, case), rtol=1e-9, atol=1e-9)


def _pairs(ctx: lm.AttentionContext, mask: lm.Mask = lm.causal, window: int | None = None) -> int:
    """The pairs of query and key that blocks of 128 queries compute."""
    visible = ctx.visible(mask, window=window)
    tiles = cpu_attention.tiles_of(visible, ctx.documents, block_size=128, dtype=torch.float32)
    columns = torch.arange(visible.shape[-1])
    return sum(len(columns[tile.queries]) * len(columns[tile.keys]) for tile in tiles)


def test_what_a_mask_forbids_is_not_computed():
    whole = counted(1024, CPU)
    tokens = torch.ones(2, 1024, dtype=torch.long)
    tokens[0, ::128] = 0
    tokens[1, 100::300] = 0  # at 100, 400, 700 and 1000
    documents = lm.PackedDocuments(end_of_text=0)(tokens)
    assert _pairs(whole) == 128 * 128 * (8 * 9 // 2)
    assert _pairs(whole, window=128) == 128 * (128 + 7 * 255)
    assert _pairs(whole, lm.Prefix(200)) == 128 * (200 + 256 + 128 * (3 + 8) * 3)
    assert _pairs(documents) == (8 * 128**2) + (100**2 + 3 * 100 * 600 + 24**2)
    assert _pairs(documents, window=50) == (
        8 * 128**2 + 100**2 + 3 * 100 * (100 + 149 + 149) + 24**2
    )
    # The first keys and a window: none of those between.
    first = lambda query, key: lm.causal(query, key) & ((key.position < 3) | window(query, key))  # noqa: E731
    window = lm.Window(128)
    assert _pairs(whole, first) == 128 * (128 + 256 + 6 * (255 + 3))


def compare_flex_with_eager() -> None:
    """To float32, in which torch gives the normalizers that sinks need."""
    for case in dict.fromkeys(case for case in CASES if case[2] != "plain"):
        query, key, value = inputs()
        mixed, exact = (kernel(query, key, value, scoring(*case)) for kernel in (lm.flex, lm.eager))
        there = present(case[0])
        torch.testing.assert_close(mixed[there], exact[there], rtol=1e-6, atol=1e-7)
    first = scoring("packed", "window", "plain")
    blocks = kernels._block_mask(first, CPU)  # made once for layers alike
    assert blocks is kernels._block_mask(replace(first, scale=2.0), CPU)


@pytest.mark.slow
def test_flex_attention_computes_the_same(tmp_path: Path):
    """In a process without type checks, which torch cannot trace through."""
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    program = f"{here}; import test_attention; test_attention.compare_flex_with_eager()"
    run_program(program, folder=tmp_path)


def test_a_mask_is_made_once_for_layers_alike():
    first = scoring("packed", "window", "plain")
    assert first.visible() is replace(first, scale=2.0).visible()
    assert first.visible() is not replace(first, mask=lm.causal).visible()


def test_positions_of_documents_and_of_padded_rows():
    packed, late = LAYOUTS["packed"], LAYOUTS["padded"]
    assert packed.positions[0].tolist() == [0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]
    assert packed.documents is not None
    assert packed.documents[1].tolist() == [0] * 9 + [1] * 3
    assert late.positions[0].tolist() == [-1] * 4 + list(range(8))
    assert not late.contiguous
