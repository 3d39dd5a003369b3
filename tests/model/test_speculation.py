"""Speculative decoding: the texts of the model alone, whatever the draft proposes."""

import copy
import itertools
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int
from small_models import drawn, shrunk, started
from torch import Tensor, nn

from fidgpt import graph
from fidgpt import model as lm
from fidgpt.model.generation import Draft, Sampling, generate, prepare_to_write, write

from .test_cache import MODELS, recurrent_model

PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 3]]


def similar(model: nn.Module, *, noise: float = 0.3) -> Any:
    """A copy of a model with changed parameters, which often chooses the same token."""
    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter += noise * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return changed


def texts(model: Any, draft: Draft | None, prompts: list[list[int]], **options: Any) -> Any:
    settings: dict[str, Any] = {"num_tokens": 9, "context": 99, **options}
    choose = Sampling(seeds=[0] * len(prompts), temperature=0.0)
    return list(write(model, prompts, choose=choose, draft=draft, **settings))


def family(name: str) -> Any:
    """With a table of its own for the output: a tied one would repeat the latest token."""
    model: Any = started(graph.build(shrunk(name)).model).eval()
    model.unembedding.weight = nn.Parameter(drawn(*model.unembedding.weight.shape))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2_124m", "llama3_8b", "gemma3_1b"])
def test_greedy_texts_of_families_are_the_same(name: str) -> None:
    model = family(name)
    draft = Draft(similar(model, noise=0.1), context=99, num_tokens=3)
    prepare_to_write(model)
    alone = texts(model, None, PROMPTS[:2])
    assert len(set(map(tuple, alone))) > 3
    assert texts(model, draft, PROMPTS[:2]) == alone
    assert 0 < draft.num_accepted < draft.num_proposed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_tokens"),
    [
        ("window", 5),
        ("window with sinks and alibi", 3),
        ("learned positions", 1),
        ("latent", 3),
        ("recurrent", 3),
    ],
)
def test_every_kind_of_cache_is_rewound(kind: str, num_tokens: int) -> None:
    """Windows of 3 and 4 tokens, shorter than what is proposed and longer; and states."""
    model = recurrent_model() if kind == "recurrent" else MODELS[kind]()
    draft = Draft(similar(model), context=14, num_tokens=num_tokens)
    assert texts(model, draft, PROMPTS, context=14) == texts(model, None, PROMPTS, context=14)
    assert 0 < draft.num_accepted < draft.num_proposed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prefix", "window", "latent"])
def test_greedy_texts_with_filters_are_the_same(kind: str) -> None:
    """With a mask that shows later tokens of the prefix too, of which a proposal is none."""
    model = MODELS[kind]()
    draft = Draft(similar(model, noise=0.1), context=14, num_tokens=5)
    filters: dict[str, Any] = {"repetition_penalty": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.01}

    def written(draft: Draft | None) -> Any:
        choose = Sampling(seeds=[0] * len(PROMPTS), temperature=0.0, **filters)
        return list(write(model, PROMPTS, choose=choose, draft=draft, num_tokens=9, context=14))

    assert written(draft) == written(None)
    assert 0 < draft.num_accepted < draft.num_proposed


@pytest.mark.slow
@pytest.mark.parametrize(("context", "draft_context"), [(8, 99), (99, 8), (1, 99)])
def test_beyond_a_context_the_model_writes_alone(context: int, draft_context: int) -> None:
    model = MODELS["plain"]()
    draft = Draft(model, context=draft_context)
    alone = texts(model, None, PROMPTS[:1], context=context)
    assert texts(model, draft, PROMPTS[:1], context=context) == alone
    assert draft.num_proposed == (0 if context == 1 else 2)


def test_a_model_itself_as_the_draft_is_always_right_and_passes_are_saved() -> None:
    model = MODELS["plain"]()
    passes: list[int] = []
    draft = Draft(similar(model, noise=0.0), context=99, num_tokens=4)
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape[1]))
    texts(model, draft, PROMPTS[:1], num_tokens=16)
    assert (draft.num_accepted, draft.num_proposed) == (12, 12)
    assert passes == [5, 5, 5, 5]  # the prompt, and four proposed tokens after the latest
    assert len(list(generate(model, [3], num_tokens=7, context=99, draft=draft))) == 7


def test_rows_end_on_their_own() -> None:
    model = MODELS["plain"]()
    draft = Draft(similar(model), context=99)

    def ended(draft: Draft | None) -> list[list[int | None]]:
        stops = [partial(lambda left, _: next(left) == 1, iter(range(n, 0, -1))) for n in (3, 1, 8)]
        return texts(model, draft, PROMPTS, stops=stops)

    alone = ended(None)
    assert len(alone) == 8 and [row.count(None) for row in zip(*alone, strict=True)] == [5, 7, 0]
    assert ended(draft) == alone


class Bigrams(lm.LanguageModel):
    """The next token's logits are a function of the latest one."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.unembedding = nn.Identity()

    def features(
        self, tokens: Int[Tensor, "batch seq"], ctx: lm.AttentionContext | None = None
    ) -> Float[Tensor, "batch seq hidden"]:
        return self.logits[tokens]


def bigrams(seed: int, vocab_size: int = 3) -> Bigrams:
    generator = torch.Generator().manual_seed(seed)
    return Bigrams(torch.randn(vocab_size, vocab_size, generator=generator))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "options"),
    [(1, {}), (2, {}), (1, {"temperature": 0.7, "top_k": 2})],
    ids=["one row", "two rows", "filtered"],
)
def test_sampled_texts_have_the_distribution_of_the_model(rows: int, options: Any) -> None:
    """A chi-square test of each token given the latest, by Pearson's statistic."""
    model, draft = bigrams(1), Draft(bigrams(5), context=9999, num_tokens=2)
    arguments: dict[str, Any] = {"temperature": 1.0, "top_k": None, **options}
    choose = Sampling(seeds=range(rows), **arguments)
    drawn = write(
        model, [[0]] * rows, num_tokens=600 // rows, context=9999, choose=choose, draft=draft
    )
    pairs = Counter(pair for row in zip(*drawn, strict=True) for pair in itertools.pairwise(row))
    expected = choose.probabilities(model.logits.detach(), torch.zeros(3, 1, dtype=torch.long))
    statistic, freedom = 0.0, -3  # the counts of each latest token are as they are
    for latest, probabilities in enumerate(expected.tolist()):
        total = sum(pairs[latest, token] for token in range(3))
        for token, probability in enumerate(probabilities):
            count, predicted = pairs[latest, token], probability * total
            assert predicted > 5 if probability else count == 0
            if predicted:
                statistic += (count - predicted) ** 2 / predicted
                freedom += 1
    assert freedom == (3 if options else 6)
    assert statistic < {3: 16.27, 6: 22.46}[freedom]  # the 99.9th percentiles
    assert 0.3 < draft.num_accepted / draft.num_proposed < 0.9


def test_what_cannot_be_a_draft_is_refused() -> None:
    model = bigrams(1)
    with pytest.raises(ValueError, match="num_tokens=0"):
        Draft(model, context=9, num_tokens=0)
    other = Draft(bigrams(1, vocab_size=4), context=9)
    with pytest.raises(ValueError, match="the draft's vocabulary has 4 tokens and the model's 3"):
        list(generate(model, [0], num_tokens=9, context=9, top_k=None, draft=other))
    draft = Draft(model, context=9)
    with pytest.raises(ValueError, match=r"pass choose=Sampling\(...\)"):
        write(model, [[0]], num_tokens=1, context=9, choose=lambda x, _: x.argmax(1), draft=draft)
    deep = MODELS["learned positions"]()
    with pytest.raises(ValueError, match="context=99 .* exceeds the 14 learned positions"):
        generate(deep, [0], num_tokens=50, context=14, draft=Draft(deep, context=99))
