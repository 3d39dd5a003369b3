"""Continuous batching: each text is as if it were alone, whenever the others come and go."""

from typing import Any

import pytest

from fidgpt.model.generation import ContinuousBatch, Sampling, WrittenText, write

from .test_cache import MODELS, recurrent_model
from .test_speculation import family

PROMPTS = [[3, 4, 5, 6, 7, 9, 2, 3], [8], [9, 3], [5, 4, 3, 2, 1, 6, 7, 8, 9, 3, 4, 5]]
CONTEXT = 48


def model_of(name: str) -> Any:
    if name == "recurrent":
        return recurrent_model().double()
    return (MODELS[name]() if name in MODELS else family(name)).double().eval()


def greedy() -> Sampling:
    return Sampling(seeds=[0], temperature=0.0)


def alone(model: Any, prompt: list[int], count: int) -> list[int]:
    steps = write(model, [prompt], num_tokens=count, context=CONTEXT, choose=greedy())
    return prompt + [token for (token,) in steps if token is not None]


def written(batch: ContinuousBatch, prompt: list[int], count: int) -> list[int]:
    text = WrittenText(list(prompt), greedy())
    batch.add(text)
    for _ in range(count - 1):
        batch.step()
    batch.remove(text)
    return text.tokens


@pytest.mark.slow(4)
@pytest.mark.parametrize("name", ["gemma3_1b", "prefix", "local and global", "recurrent"])
def test_texts_come_and_go(name: str) -> None:
    model = model_of(name)
    batch = ContinuousBatch(model, context=CONTEXT)
    texts = [WrittenText(list(prompt), greedy()) for prompt in PROMPTS]
    lengths = [len(prompt) + count for prompt, count in zip(PROMPTS, [9, 14, 5, 11], strict=True)]
    for step in range(24):
        if step % 3 == 0 and step // 3 < len(texts):
            batch.add(texts[step // 3])
        for text, length in zip(texts, lengths, strict=True):
            if text in batch.texts and len(text.tokens) == length:
                batch.remove(text)
        if batch.texts:
            batch.step()
    for text, prompt, length in zip(texts, PROMPTS, lengths, strict=True):
        assert text.tokens == alone(model, prompt, length - len(prompt))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("rope", (4, 1)),
        ("local and global", (4, 15)),
        ("recurrent", (4, 15)),
        ("prefix", (24, 15)),
    ],
)
def test_only_the_rest_of_the_next_turn_is_read(name: str, read: tuple[int, ...]) -> None:
    model = model_of(name)
    batch = ContinuousBatch(model, context=CONTEXT)
    turn = PROMPTS[3]
    first = written(batch, turn, 9)
    assert batch.num_read == len(turn)
    after = [*first, 7, 7, 7]  # the last token of the answer was not read yet
    other = [*first[:14], 6]  # as if the answer had been another one
    for prompt, count in zip([after, other], read, strict=True):
        before = batch.num_read
        assert written(batch, prompt, 6) == alone(model, prompt, 6)
        assert batch.num_read - before == count


def test_a_prompt_has_room_for_an_answer() -> None:
    batch = ContinuousBatch(model_of("rope"), context=4)
    with pytest.raises(ValueError, match=r"the prompt has 4 tokens; it must have from 1 to 3"):
        batch.add(WrittenText([1, 2, 3, 4], greedy()))
