"""Every kernel under every mask and change of scores, against a computation written out."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked import run_program
from torch import Tensor

from fidgpt.model import (
    ALiBi,
    And,
    Or,
    PackedDocuments,
    Prefix,
    Softcap,
    Window,
    blockwise,
    causal,
    eager,
    fastest,
    flex,
    padded,
    sdpa,
)
from fidgpt.model.context import counted
from fidgpt.model.kernels import Scoring
from fidgpt.model.masks import alibi_slopes

SEQ, HEADS, KV_HEADS = 12, 6, 2
MASKS = {
    "causal": causal,
    "window": And((causal, Window(3))),
    "prefix": Prefix(4),
    "either": Or((Window(2), Prefix(3))),
}
CHANGES = {
    "plain": {},
    "softcap": {"changes": (Softcap(cap=1.5),)},
    "alibi": {"changes": (ALiBi(),)},
    "both": {"changes": (Softcap(cap=1.5), ALiBi())},
    "sinks": {"sinks": torch.linspace(-1, 2, HEADS, dtype=torch.float64)},
}
TOKENS = torch.tensor([[5, 0, 3, 4, 5, 0, 1, 2, 3, 4, 0, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]])
LAYOUTS = {
    "whole": counted(SEQ, torch.device("cpu")),
    "packed": PackedDocuments(end_of_text=0)(TOKENS),
    "padded": padded(TOKENS, present=torch.tensor([[0] * 4 + [1] * 8, [1] * 12])),
}
KERNELS = {"sdpa": sdpa, "blockwise": blockwise, "fastest": fastest, "eager": eager}


def scoring(layout: str, mask: str, change: str) -> Scoring:
    ctx = LAYOUTS[layout].columns(0)
    return Scoring(ctx=ctx, scale=0.4, mask=MASKS[mask], **CHANGES[change])


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    make = [(HEADS, 4), (KV_HEADS, 4), (KV_HEADS, 3)]
    return [torch.randn(2, n, SEQ, d, generator=generator, dtype=torch.float64) for n, d in make]


def allowed(layout: str, mask: str, row: int, query: int, key: int) -> bool:
    """The masks' meaning in plain Python."""
    documents = [0] * SEQ
    positions = list(range(SEQ))
    if layout == "packed":
        for i in range(1, SEQ):
            begins = TOKENS[row, i] == 0
            documents[i] = documents[i - 1] + int(begins)
            positions[i] = 0 if begins else positions[i - 1] + 1
    if layout == "padded" and row == 0:
        positions = [max(i - 4, -1) for i in range(SEQ)]
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
    out = torch.zeros(2, HEADS, SEQ, 3, dtype=torch.float64)
    slopes = alibi_slopes(HEADS)
    for row, head, q in torch.cartesian_prod(*map(torch.arange, (2, HEADS, SEQ))).tolist():
        seen = [k for k in range(SEQ) if allowed(layout, mask, row, q, k)]
        shared = head // (HEADS // KV_HEADS)
        if not seen:
            continue
        scores = 0.4 * key[row, shared, seen] @ query[row, head, q]
        if change in ("softcap", "both"):
            scores = 1.5 * torch.tanh(scores / 1.5)
        if change in ("alibi", "both"):
            scores = scores - slopes[head] * torch.tensor([abs(q - k) for k in seen])
        weights = scores.exp()
        sink = CHANGES["sinks"]["sinks"][head].exp() if change == "sinks" else 0.0
        out[row, head, q] = (weights / (weights.sum() + sink)) @ value[row, shared, seen]
    return out


CASES = (
    [(layout, mask, change) for layout in LAYOUTS for mask in MASKS for change in ("plain", "both")]
    + [("whole", "causal", change) for change in CHANGES]
    + [("packed", "window", "sinks")]
)


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str, str], Tensor]:
    return {case: written_out(*case) for case in dict.fromkeys(CASES)}


def present(layout: str) -> Tensor:
    """Where a query is a token: what the others get is nobody's affair."""
    return (LAYOUTS[layout].positions >= 0).view(-1, 1, SEQ, 1).expand(2, HEADS, SEQ, 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", dict.fromkeys(CASES), ids="-".join)
def test_a_kernel_computes_what_the_parts_say(kernel, case, expected):
    with torch.no_grad():
        query, key, value = inputs()
        mixed = KERNELS[kernel](query, key, value, scoring(*case))
    assert mixed.isfinite().all()
    there = present(case[0])
    torch.testing.assert_close(mixed[there], expected[case][there], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", ["sdpa", "blockwise"])
@pytest.mark.parametrize("case", dict.fromkeys(CASES), ids="-".join)
def test_gradients_are_those_of_the_eager_kernel(kernel, case):
    results = []
    for compute in (KERNELS[kernel], eager):
        leaves = [x.requires_grad_() for x in inputs()]
        query, key, value = leaves
        mixed = compute(query, key, value, scoring(*case)) * present(case[0])
        results.append(torch.autograd.grad(mixed.square().sum(), leaves))
    assert all(gradient.isfinite().all() for gradient in results[0])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def compare_flex_with_eager() -> None:
    """To float32, in which torch gives the normalisers that sinks need."""
    for case in dict.fromkeys(CASES):
        query, key, value = inputs()
        mixed, exact = (kernel(query, key, value, scoring(*case)) for kernel in (flex, eager))
        there = present(case[0])
        torch.testing.assert_close(mixed[there], exact[there], rtol=1e-6, atol=1e-7)


def test_flex_attention_computes_the_same(tmp_path: Path):
    """In a process without type checks, which torch cannot trace through."""
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    program = f"{here}; import test_masks; test_masks.compare_flex_with_eager()"
    run_program(program, folder=tmp_path)


def test_a_mask_is_made_once_for_layers_alike():
    first = scoring("packed", "window", "plain")
    assert first.visible() is replace(first, scale=2.0).visible()
    assert first.visible() is not replace(first, mask=causal).visible()


def test_alibi_slopes_are_those_of_transformers():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (1, 2, 3, 6, 8, 12, 16, 25):
        theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
        torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs[:, 0, 1])


def test_positions_begin_anew_with_each_document():
    ctx = LAYOUTS["packed"]
    assert ctx.positions[0].tolist() == [0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]
    assert ctx.documents is not None
    assert ctx.documents[1].tolist() == [0] * 9 + [1] * 3


def test_padding_stands_nowhere_and_tokens_count_from_the_first():
    ctx = LAYOUTS["padded"]
    assert ctx.positions[0].tolist() == [-1] * 4 + list(range(8))
    assert not ctx.contiguous
