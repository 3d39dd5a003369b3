"""Drawing tokens: greedy, by chance, within a window, and no more than asked."""

import collections
import itertools

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model import LanguageModel
from fidgpt.model.generate import generate


class Scored(LanguageModel):
    """Gives every next token the same fixed logits, and remembers what it was shown."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.unembedding = nn.Identity()
        self.seen: list[list[int]] = []

    def features(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq hidden"]:
        self.seen.append(tokens[0].tolist())
        assert not torch.is_grad_enabled()
        return self.logits.expand(*tokens.shape, -1)


def test_without_temperature_it_is_a_loop_over_argmax(make_model):
    model = make_model(tied=False)  # a tied one would say the latest token again and again
    nn.init.normal_(model.unembedding.weight, std=1.0)
    tokens = [1, 2, 3]
    for _ in range(12):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    assert len(set(tokens)) > 3
    drawn = generate(model, [1, 2, 3], num_tokens=12, context=99, temperature=0.0)
    assert list(drawn) == tokens[3:]
    only = generate(model, [1, 2, 3], num_tokens=12, context=99, temperature=1.0, top_k=1)
    assert list(only) == tokens[3:]


def test_tokens_are_drawn_as_often_as_they_are_likely():
    model = Scored([0.0, 1.0, 2.0, -1.0])
    generator = torch.Generator().manual_seed(0)
    draws = generate(
        model, [0], num_tokens=4000, context=1, temperature=0.5, top_k=None, generator=generator
    )
    counts = collections.Counter(draws)
    expected = (torch.tensor([0.0, 1.0, 2.0, -1.0]) / 0.5).softmax(0)
    for token, probability in enumerate(expected.tolist()):
        error = (probability * (1 - probability) / 4000) ** 0.5
        assert counts[token] / 4000 == pytest.approx(probability, abs=5 * error)


def test_top_k_draws_among_so_many_even_where_logits_are_equal():
    def draws(top_k: int | None, vocab_size: int | None = None) -> set[int]:
        return set(
            generate(
                Scored([3.0, 1.0, 3.0, 3.0, 2.0]),
                [0],
                num_tokens=300,
                context=1,
                top_k=top_k,
                vocab_size=vocab_size,
                temperature=5.0,
                generator=torch.Generator().manual_seed(0),
            )
        )

    assert [len(draws(top_k)) for top_k in (1, 2, 3, 4, 5, 99)] == [1, 2, 3, 4, 5, 5]
    assert draws(3) == {0, 2, 3}
    assert draws(None) == {0, 1, 2, 3, 4}
    assert draws(None, vocab_size=3) == {0, 1, 2}
    assert draws(99, vocab_size=3) == {0, 1, 2}


def test_the_generator_alone_decides(make_model):
    model = make_model()

    def draw(seed: int) -> list[int]:
        torch.manual_seed(99 + seed)
        before = torch.get_rng_state()
        generator = torch.Generator().manual_seed(seed)
        drawn = list(generate(model, [1], num_tokens=20, context=8, generator=generator))
        assert torch.equal(torch.get_rng_state(), before)
        return drawn

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)


def test_the_model_sees_the_latest_tokens_only():
    model = Scored([0.0, 1.0, 2.0])
    list(generate(model, [0, 1, 0], num_tokens=4, context=4, temperature=0.0))
    assert model.seen == [[0, 1, 0], [0, 1, 0, 2], [1, 0, 2, 2], [0, 2, 2, 2]]


def test_nothing_is_computed_before_it_is_asked_for():
    model = Scored([0.0, 1.0])
    prompt = [0]
    stream = generate(model, prompt, num_tokens=100, context=8)
    assert not model.seen
    assert len(list(itertools.islice(stream, 3))) == 3
    assert len(model.seen) == 3
    assert prompt == [0]
    assert len(list(generate(model, prompt, num_tokens=2, context=8))) == 2
    assert not list(generate(model, prompt, num_tokens=0, context=8))


@pytest.mark.parametrize("temperature", [1e-45, 1e-300])
def test_the_smallest_temperature_takes_the_likeliest(temperature):
    drawn = generate(Scored([0.0, 2.0, 1.0]), [0], num_tokens=5, context=8, temperature=temperature)
    assert list(drawn) == [1] * 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_no_numbers_write_nothing(temperature):
    drawn = generate(
        Scored([0.0, float("nan")]), [0], num_tokens=1, context=8, temperature=temperature
    )
    with pytest.raises(ValueError, match="no numbers"):
        next(drawn)


def test_gradients_are_off_inside_and_as_they_were_outside():
    for _ in generate(Scored([0.0, 1.0]), [0], num_tokens=2, context=8):
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"context": 0}, "context=0"),
        ({"top_k": 0}, "top_k=0"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, message):
    arguments = {"prompt": [0], "num_tokens": 1, "context": 4} | options
    with pytest.raises(ValueError, match=message):
        generate(Scored([0.0]), arguments.pop("prompt"), **arguments)
