"""Generation: sampling, filters, stop strings, scores, compiled steps, weights laid out for it."""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from small_models import CPU, drawn, filled, make_model
from torch import Tensor, nn

from fidgpt import model as lm
from fidgpt.model.generation import (
    Draft,
    Sampling,
    UntilString,
    generate,
    log_probabilities,
    prepare_to_write,
    score,
    write,
)
from fidgpt.model.mla import LatentAttention


class Scored(lm.LanguageModel):
    """Gives every next token the same fixed logits, and remembers what it was shown."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.unembedding = nn.Identity()
        self.layout = lm.one_document
        self.seen: list[list[int]] = []

    def features(
        self, tokens: Int[Tensor, "batch seq"], ctx: lm.AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        self.seen.append(tokens[0].tolist())
        assert not torch.is_grad_enabled()
        return self.logits.expand(*tokens.shape, -1)


@pytest.fixture
def model() -> Any:
    """An untied one: a tied one would repeat the latest token again and again."""
    model = make_model(tied=False)
    filled(model.unembedding, std=1.0, seed=1)
    return model


def greedy(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.argmax(1)


def by_argmax(model, prompt: list[int], *, num_tokens: int, context: int) -> list[int]:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(num_tokens):
            tokens.append(int(model(torch.tensor([tokens[-context:]]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def columns(steps) -> list[list[int]]:
    """Each row's tokens, of what `write` yields."""
    rows = itertools.zip_longest(*steps)
    return [[token for token in row if token is not None] for row in rows]


@pytest.mark.slow
def test_without_temperature_it_is_a_loop_over_argmax(model):
    expected = by_argmax(model, [1, 2, 3], num_tokens=12, context=99)
    assert len(set(expected)) > 3
    drawn = generate(model, [1, 2, 3], num_tokens=12, context=99, temperature=0.0)
    assert list(drawn) == expected
    only = generate(model, [1, 2, 3], num_tokens=12, context=99, temperature=1.0, top_k=1)
    assert list(only) == expected


@pytest.mark.slow
@pytest.mark.parametrize("context", [1, 4, 9, 10, 99])
def test_a_row_is_as_if_it_were_alone_within_any_context(model, context):
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [11, 12]]
    drawn = write(model, prompts, num_tokens=8, context=context, choose=greedy)
    for prompt, row in zip(prompts, columns(drawn), strict=True):
        assert row == by_argmax(model, prompt, num_tokens=8, context=context)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [[[1, 0, 3], [4], [0, 6, 7, 0], [0]], [[3, 0]]])
def test_documents_of_a_prompt_stay_apart(model, prompts):
    model.layout = lm.PackedDocuments(end_of_text=0)
    drawn = write(model, prompts, num_tokens=8, context=99, choose=greedy)
    for prompt, row in zip(prompts, columns(drawn), strict=True):
        assert row == by_argmax(model, prompt, num_tokens=8, context=99)


@pytest.mark.slow
def test_learned_positions_end_in_an_error_or_slide(model):
    model.embedding.positions = lm.LearnedPositions(seq_len=6, hidden_dim=32)
    nn.init.normal_(model.embedding.positions.weight)
    with pytest.raises(ValueError, match=r"up to 7 tokens exceeds the 6 learned posit"):
        generate(model, [1, 2, 3], num_tokens=5, context=7)
    assert len(list(generate(model, [1, 2, 3], num_tokens=4, context=99))) == 4
    expected = by_argmax(model, [1, 2, 3], num_tokens=9, context=6)
    assert list(generate(model, [1, 2, 3], num_tokens=9, context=6, temperature=0.0)) == expected


def test_each_row_ends_on_its_own():
    # Each stop is called with the tokens of its row, up to its end.
    stops = [partial(lambda left, token: next(left) == 1, iter(range(n, 0, -1))) for n in (3, 1, 5)]
    model = Scored([0.0, 1.0])
    steps = list(write(model, [[0]] * 3, num_tokens=9, context=9, choose=greedy, stops=stops))
    assert steps == [[1, 1, 1], [1, None, 1], [1, None, 1], [None, None, 1], [None, None, 1]]
    assert len(model.seen) == 5


@pytest.mark.slow
def test_a_row_draws_by_its_own_seed_alone(model):
    prompts, seeds = [[1, 2, 3], [4], [1, 2, 3]], [7, 8, 9]

    def drawn(rows: list[int]) -> list[list[int]]:
        choose = Sampling(seeds=[seeds[row] for row in rows], temperature=1.0)
        chosen = [prompts[row] for row in rows]
        return columns(write(model, chosen, num_tokens=10, context=99, choose=choose))

    before = torch.get_rng_state()
    together = drawn([0, 1, 2])
    assert torch.equal(torch.get_rng_state(), before)
    assert together[0] != together[2]
    assert [drawn([row])[0] for row in (0, 1, 2)] == together
    assert drawn([2, 0]) == [together[2], together[0]]


def test_the_model_sees_the_latest_tokens_only():
    model = Scored([0.0, 1.0, 2.0])
    list(generate(model, [0, 1, 0], num_tokens=4, context=4, temperature=0.0))
    assert model.seen == [[0, 1, 0], [2], [1, 0, 2, 2], [0, 2, 2, 2]]


class Running(nn.Module):
    """A custom mixer without a cache: the mean of the tokens so far."""

    def forward(
        self, x: Float[Tensor, "batch seq hidden"], ctx: lm.AttentionContext | None
    ) -> Float[Tensor, "batch seq hidden"]:
        count = torch.arange(1, x.shape[1] + 1, device=x.device)
        return x.cumsum(1) / count.unsqueeze(-1)


def test_a_layer_that_remembers_nothing_reads_the_text_anew(model):
    model.blocks[1].attention = Running()
    expected = by_argmax(model, [1, 2, 3], num_tokens=8, context=6)
    assert len(set(expected)) > 2
    assert list(generate(model, [1, 2, 3], num_tokens=8, context=6, temperature=0.0)) == expected


class Shift(nn.Module):
    """Adds the vector of an earlier token, from no cache."""

    def __init__(self, part: nn.Module, by: int) -> None:
        super().__init__()
        self.part, self.by = part, by

    def forward(self, x: Tensor) -> Tensor:
        out = self.part(x)
        return out + 3 * F.pad(out, (0, 0, self.by, 0))[:, : x.shape[1]]


class Declared(Shift):
    READS = ("past",)


class ShiftingBlock(lm.Block):
    """Keeps keys in the cache, and looks back beside it."""

    def forward(self, x: Tensor, ctx: lm.AttentionContext | None = None) -> Tensor:
        return super().forward(x + 3 * F.pad(x, (0, 0, 1, 0))[:, :-1], ctx)


@pytest.mark.parametrize("place", ["mlp", "norm", "block"])
def test_what_looks_back_without_the_cache_reads_the_text_anew(model, place):
    block = model.blocks[0]
    if place == "mlp":
        block.mlp = Declared(block.mlp, 1)
    elif place == "norm":
        block.attention_norm = Shift(block.attention_norm, 1)
    else:
        block.__class__ = ShiftingBlock
    expected = by_argmax(model, [1, 2, 3, 4, 5], num_tokens=12, context=99)
    assert len(set(expected)) > 1
    options = {"num_tokens": 12, "context": 99, "temperature": 0.0}
    assert list(generate(model, [1, 2, 3, 4, 5], **options)) == expected
    draft = Draft(model, context=99, num_tokens=3)
    assert list(generate(model, [1, 2, 3, 4, 5], **options, draft=draft)) == expected


LOGITS = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.05, 0.05, 0.2, 0.7]]).log()
TOKENS = torch.tensor([[0, 0, 2], [1, 3, 2]])


def filters(logits: Tensor = LOGITS, tokens: Tensor = TOKENS, **options: Any) -> Tensor:
    return Sampling(**{"seeds": [0, 1], "temperature": 1.0, "top_k": None} | options).filtered(
        logits, tokens
    )


def left(filtered: Tensor) -> list[list[int]]:
    """Which tokens of each row may still be drawn."""
    return [row.isfinite().nonzero().flatten().tolist() for row in filtered]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"vocab_size": 3}, [[0, 1, 2], [0, 1, 2]]),
        ({"top_k": 1}, [[0], [3]]),
        ({"top_k": 2}, [[0, 2], [2, 3]]),
        ({"top_p": 0.3}, [[0], [3]]),
        ({"top_p": 0.55}, [[0, 2], [3]]),
        ({"top_p": 0.72}, [[0, 2], [2, 3]]),
        ({"min_p": 1.0}, [[0], [3]]),
        ({"min_p": 0.25}, [[0, 2], [2, 3]]),
        ({"min_p": 0.19}, [[0, 1, 2, 3], [2, 3]]),
    ],
    ids=str,
)
def test_filters_keep_the_logits_of_some_tokens(option, expected):
    filtered = filters(temperature=0.0, **option)
    assert left(filtered) == expected
    kept = filtered.isfinite()
    assert torch.equal(filtered[kept], LOGITS[:, : filtered.shape[1]][kept])


def test_top_k_keeps_k_even_where_logits_are_equal():
    equal = torch.tensor([[3.0, 1.0, 3.0, 3.0, 2.0]])
    sizes = [len(left(filters(equal, TOKENS[:1], top_k=k))[0]) for k in (1, 2, 3, 4, 5, 99)]
    assert sizes == [1, 2, 3, 4, 5, 5]
    assert left(filters(equal, TOKENS[:1], top_k=3)) == [[0, 2, 3]]


@pytest.mark.parametrize("logit", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_are_reported(logit, temperature):
    choose = Sampling(seeds=[0], temperature=temperature)
    with pytest.raises(ValueError, match="the model's logits are NaN or inf"):
        choose(torch.tensor([[1.0, logit]]), torch.tensor([[0]]))


def test_temperature_divides_and_the_smallest_takes_the_likeliest():
    scaled = filters(temperature=0.5).softmax(1)
    torch.testing.assert_close(scaled, (LOGITS.double() / 0.5).softmax(1))
    for temperature in (1e-45, 1e-300):
        choose = Sampling(seeds=[0, 1], temperature=temperature)
        assert choose(LOGITS, TOKENS).tolist() == [0, 3]


def test_the_repetition_penalty_counts_a_token_once():
    logits = torch.tensor([[2.0, -1.0, 4.0, 1.0]] * 2)
    penalized = filters(logits, temperature=0.0, repetition_penalty=2.0)
    assert penalized.tolist() == [[1.0, -1.0, 2.0, 1.0], [2.0, -2.0, 2.0, 0.5]]
    assert logits[0].tolist() == [2.0, -1.0, 4.0, 1.0]


@pytest.mark.xdist_group("transformers")  # whose import takes seconds
def test_all_filters_together_are_those_of_transformers():
    import transformers

    logits = drawn(3, 40) * 3
    tokens = torch.randint(0, 40, (3, 12), generator=torch.Generator().manual_seed(1))
    theirs = logits
    for process in (
        transformers.RepetitionPenaltyLogitsProcessor(1.3),
        transformers.TemperatureLogitsWarper(0.7),
        transformers.TopKLogitsWarper(20),
        transformers.TopPLogitsWarper(0.9),
        transformers.MinPLogitsWarper(0.05),
    ):
        theirs = process(tokens, theirs)
    options = dict(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.3)
    ours = filters(logits, tokens, **options)
    torch.testing.assert_close(ours.softmax(1), theirs.double().softmax(1))
    assert 1 < len(left(ours)[0]) < 20


def test_tokens_of_probability_0_are_never_drawn():
    choose = Sampling(seeds=[0], temperature=1.0, top_k=None)
    logits = torch.tensor([[-1e30, 0.0, -1e30, -40.0, -1e30]])
    assert {int(choose(logits, TOKENS[:1])) for _ in range(200)} == {1}


def passed(strings: list[str], pieces: list[str]) -> list[str]:
    until = UntilString(strings)
    shown = [until.push(piece) for piece in pieces]
    return [*shown, "" if until.found else until.finish()]


@pytest.mark.parametrize(
    ("strings", "pieces", "shown"),
    [
        (["END"], ["aE", "ND", "b"], ["a", "", "", ""]),
        (["END"], ["aE", "Nx", "END"], ["a", "ENx", "", ""]),
        (["aab"], ["aa", "a", "b"], ["", "a", "", ""]),
        (["\n\n", "def"], ["x\n", "de", "f"], ["x", "\n", "", ""]),
        (["cd", "b"], ["abcd"], ["a", ""]),
        ([], ["a", "b"], ["a", "b", ""]),
    ],
)
def test_a_string_ends_the_text_wherever_pieces_part_it(strings, pieces, shown):
    assert passed(strings, pieces) == shown


def one_by_one(model, tokens: list[int], *, begins: list[int]) -> torch.Tensor:
    """Of each token but the first, after what stands from `begins` on."""
    found = []
    with torch.no_grad():
        for index, begin in enumerate(begins, start=1):
            logits = model(torch.tensor([tokens[begin:index]]))[0, -1]
            found.append(logits.log_softmax(0)[tokens[index]])
    return torch.stack(found)


def test_each_token_is_scored_after_those_before_it(model):
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    scored = score(model, tokens, context=99)
    expected = one_by_one(model, tokens, begins=[0] * 7)
    torch.testing.assert_close(scored.log_probabilities, expected, atol=1e-5, rtol=1e-5)
    nats = -expected.double().sum().item()
    assert scored.nats == pytest.approx(nats)
    assert scored.perplexity == pytest.approx(math.exp(nats / 7))
    assert scored.bits_per_byte(20) == pytest.approx(nats / math.log(2) / 20)


@pytest.mark.slow
def test_a_long_text_is_read_in_windows_that_overlap_by_half(model):
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    scored = score(model, tokens, context=4)
    expected = one_by_one(model, tokens, begins=[0, 0, 0, 0, 2, 2, 4, 4, 6, 6])
    torch.testing.assert_close(scored.log_probabilities, expected, atol=1e-5, rtol=1e-5)
    single = score(model, tokens, context=1)
    expected = one_by_one(model, tokens, begins=list(range(10)))
    torch.testing.assert_close(single.log_probabilities, expected, atol=1e-5, rtol=1e-5)


def test_rows_of_different_length_are_scored_at_once(model):
    tokens = torch.tensor([[0, 0, 7, 8, 9], [1, 2, 3, 4, 5]])
    present = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    scored = log_probabilities(model, tokens, lm.padded(tokens[:, :-1], present=present))
    for row, absent in enumerate((2, 0)):
        alone = score(model, tokens[row, absent:].tolist(), context=99).log_probabilities
        torch.testing.assert_close(scored[row, absent:], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("tied", "num_threads"), [(True, 1), (True, 2), (False, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@torch.inference_mode()
def test_logits_stay(dtype, tied, num_threads):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)  # a single one may leave products to MKL
    model = make_model(tied=tied).to(dtype)
    nn.init.normal_(model.blocks[0].attention.query.weight)
    model.unembedding.scale, model.unembedding.softcap = 0.5, 3.0
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = model(tokens)
    prepare_to_write(model)
    for shown in (tokens, tokens[:1, :1]):
        logits = model(shown)
        tolerance = {torch.bfloat16: 2e-2}.get(dtype, 1e-5)
        wanted = expected[: len(shown), : shown.shape[1]]
        torch.testing.assert_close(logits, wanted, atol=tolerance, rtol=tolerance)
    assert model.device == CPU
    torch.set_num_threads(before)


class Tripled(lm.Attention):
    """Looks at its own projections."""

    def forward(self, x, ctx=None):
        return super().forward(x, ctx) + self.query(x)


class Doubled(lm.Linear):
    """Does more with its weight than a product."""

    def forward(self, input):  # torch's own name
        return 2 * super().forward(input)


SIZES: dict[str, Any] = dict(hidden_dim=16, head_dim=8)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (partial(LatentAttention, **SIZES, rope_head_dim=4, kv_rank=8), "kv_up"),
        (partial(lm.Attention, **SIZES, linear=partial(lm.LoRALinear, rank=2)), "query"),
        (lambda: nn.Sequential(Doubled(8, 8), nn.LayerNorm(8)), "0"),
    ],
)
def test_matrices_that_serve_more_than_one_product_stay(make, name):
    model = make()
    kept = model.get_submodule(name)
    prepare_to_write(model)
    assert model.get_submodule(name) is kept


def test_the_projections_of_another_attention_stay_apart():
    model, x = filled(Tripled(**SIZES), std=0.2), drawn(1, 3, 16)
    expected = model(x)
    prepare_to_write(model)
    torch.testing.assert_close(model(x), expected, atol=1e-6, rtol=1e-6)
