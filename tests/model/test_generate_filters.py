"""What each filter leaves of logits, against transformers' meaning written out, and the end."""

import math

import pytest
import torch

from fidgpt.model.generation import (
    Chance,
    MinP,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
    UntilString,
    Vocabulary,
    sampling,
)

LOGITS = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.05, 0.05, 0.2, 0.7]]).log()
TOKENS = torch.tensor([[0, 0, 2], [1, 3, 2]])


def left(filtered: torch.Tensor) -> list[list[int]]:
    """Which tokens of each row may still be drawn."""
    return [row.isfinite().nonzero().flatten().tolist() for row in filtered]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Vocabulary(3), [[0, 1, 2], [0, 1, 2]]),
        (TopK(1), [[0], [3]]),
        (TopK(2), [[0, 2], [2, 3]]),
        (TopK(99), [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (TopP(0.3), [[0], [3]]),
        (TopP(0.55), [[0, 2], [3]]),
        (TopP(0.72), [[0, 2], [2, 3]]),
        (TopP(1.0), [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (MinP(1.0), [[0], [3]]),
        (MinP(0.25), [[0, 2], [2, 3]]),
        (MinP(0.19), [[0, 1, 2, 3], [2, 3]]),
    ],
    ids=str,
)
def test_what_is_left_keeps_its_logit(change, expected):
    filtered = change(LOGITS, TOKENS)
    assert left(filtered) == expected
    kept = filtered.isfinite()
    assert torch.equal(filtered[kept], LOGITS[:, : filtered.shape[1]][kept])


def test_top_k_leaves_so_many_even_where_logits_are_equal():
    equal = torch.tensor([[3.0, 1.0, 3.0, 3.0, 2.0]])
    sizes = [len(left(TopK(k)(equal, TOKENS[:1]))[0]) for k in (1, 2, 3, 4, 5, 99)]
    assert sizes == [1, 2, 3, 4, 5, 5]
    assert left(TopK(3)(equal, TOKENS[:1])) == [[0, 2, 3]]


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_penalty_makes_logits_that_cannot_be_drawn(penalty, temperature):
    logits = torch.tensor([[3.0, -2.0, 0.0, 1.0]])
    tokens = torch.tensor([[0, 1, 2]])
    choose = sampling(seeds=[0], temperature=temperature, repetition_penalty=penalty)
    assert choose(logits, tokens).item() in ([0] if penalty < 1 else [0, 2, 3])


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.inf, math.nan])
def test_a_penalty_is_a_number_above_0(penalty):
    with pytest.raises(ValueError, match="must be above 0, and finite; 1 is none"):
        RepetitionPenalty(penalty)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_told(spoilt):
    choose = sampling(seeds=[0], temperature=1.0)
    with pytest.raises(ValueError, match="the model's logits are NaN or inf"):
        choose(torch.tensor([[1.0, spoilt]]), torch.tensor([[0]]))


def test_temperature_divides():
    scaled = Temperature(0.5)(LOGITS, TOKENS).softmax(1)
    torch.testing.assert_close(scaled, (LOGITS.double() / 0.5).softmax(1))


@pytest.mark.parametrize("temperature", [1e-45, 1e-300])
def test_the_smallest_temperature_takes_the_likeliest(temperature):
    choose = sampling(seeds=[0, 1], temperature=temperature)
    assert choose(LOGITS, TOKENS).tolist() == [0, 3]


def test_what_the_text_holds_becomes_less_likely_and_counts_once():
    logits = torch.tensor([[2.0, -1.0, 4.0, 1.0], [2.0, -1.0, 4.0, 1.0]])
    penalised = RepetitionPenalty(2.0)(logits, TOKENS)
    assert penalised.tolist() == [[1.0, -1.0, 2.0, 1.0], [2.0, -2.0, 2.0, 0.5]]
    assert logits[0].tolist() == [2.0, -1.0, 4.0, 1.0]


@pytest.mark.xdist_group("transformers")  # whose import takes seconds
def test_all_together_are_those_of_transformers():
    import transformers

    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)) * 3
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
    choose = sampling(
        seeds=[0, 0, 0], temperature=0.7, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.3
    )
    ours = logits
    for change in choose.filters:
        ours = change(ours, tokens)
    torch.testing.assert_close(ours.softmax(1), theirs.double().softmax(1))
    assert 1 < len(left(ours)[0]) < 20


def test_what_has_no_probability_is_never_drawn():
    chance = Chance([0])
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, -40.0, -math.inf]])
    assert {int(chance(logits)) for _ in range(200)} == {1}


def test_the_smallest_random_number_draws_what_can_be_drawn(monkeypatch):
    monkeypatch.setattr(
        torch, "rand", lambda size, dtype, generator: torch.zeros(size, dtype=dtype)
    )
    assert Chance([0])(torch.tensor([[-math.inf, 0.0, -math.inf]])).tolist() == [1]


def passed(strings: list[str], pieces: list[str]) -> list[str]:
    until = UntilString(strings)
    shown = [until.push(piece) for piece in pieces]
    return [*shown, "" if until.found else until.finish()]


@pytest.mark.parametrize(
    ("strings", "pieces", "shown"),
    [
        (["END"], ["aE", "ND", "b"], ["a", "", "", ""]),
        (["END"], ["aE", "Nx", "END"], ["a", "ENx", "", ""]),
        (["END"], ["a", "E", "N"], ["a", "", "", "EN"]),
        (["aab"], ["aa", "a", "b"], ["", "a", "", ""]),
        (["\n\n", "def"], ["x\n", "de", "f"], ["x", "\n", "", ""]),
        (["cd", "b"], ["abcd"], ["a", ""]),
        ([], ["a", "b"], ["a", "b", ""]),
    ],
)
def test_a_string_ends_the_text_wherever_pieces_part_it(strings, pieces, shown):
    assert passed(strings, pieces) == shown


def test_an_empty_string_is_refused():
    with pytest.raises(ValueError, match="stop string must have one"):
        UntilString(["a", ""])
