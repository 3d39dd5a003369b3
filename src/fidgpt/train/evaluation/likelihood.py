"""How likely a model finds tokens after others, many at once."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.model.language_model import LanguageModel

_CHUNK = 1024  # logits of so many tokens at once


class Likelihood(NamedTuple):
    """Of some tokens after others.

    Attributes:
      log_probability: in nats.
      is_greedy: whether each of them is the likeliest where it stands.
    """

    log_probability: float
    is_greedy: bool


class _Window(NamedTuple):
    """What the model sees at once: tokens, of which the last `scored` are scored."""

    owner: int
    tokens: Sequence[int]
    scored: int


def likelihoods(
    model: LanguageModel,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    context: int,
    batch_size: int,
) -> list[Likelihood]:
    """Of each text's second tokens after its first ones.

    A text longer than the context is cut on the left. Where the second tokens alone are longer,
    they are scored `context` at a time, the first of them after one token, those of the last
    window after as many as fit: each token is scored once, as lm-evaluation-harness does.

    Args:
      model: what reads, in eval mode.
      texts: tokens to be read, one at least, and tokens to be scored, perhaps none.
      context: the model sees at most this many tokens.
      batch_size: texts that are read at once.

    Raises:
      ValueError: nothing comes before the tokens of a text, or a size is below 1.
    """
    check_arguments(context=context, batch_size=batch_size)
    windows: list[_Window] = []
    for owner, (before, scored) in enumerate(texts):
        if not before:
            raise ValueError(
                f"nothing comes before the tokens of text {owner}: give the end of text at least."
            )
        windows += _windows(owner, list(before), list(scored), context)
    windows.sort(key=lambda window: -len(window.tokens))  # alike in length: little is padding
    found = [Likelihood(0.0, is_greedy=True)] * len(texts)
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        for window, (nats, is_greedy) in zip(batch, _scores(model, batch), strict=True):
            so_far = found[window.owner]
            found[window.owner] = Likelihood(
                so_far.log_probability + nats, is_greedy=so_far.is_greedy and is_greedy
            )
    return found


def check_arguments(*, context: int, batch_size: int) -> None:
    """Raises ValueError unless there is something to see, and a text at a time."""
    if context < 1 or batch_size < 1:
        raise ValueError(f"{context=} tokens and {batch_size=} texts have to be 1 or more.")


def _windows(owner: int, before: list[int], scored: list[int], context: int) -> Iterator[_Window]:
    while scored:
        here, scored = scored[:context], scored[context:]
        before = (before + here)[-context - 1 :]
        yield _Window(owner, before, len(here))


@torch.inference_mode()
def _scores(model: LanguageModel, windows: Sequence[_Window]) -> list[tuple[float, bool]]:
    """The log-probability of what is scored in each window, and whether it is the likeliest."""
    width = max(len(window.tokens) for window in windows)
    # Padding stands on the right, where nothing before it can see it.
    rows = torch.tensor([[*w.tokens, *[0] * (width - len(w.tokens))] for w in windows])
    rows = rows.to(model.device)
    features = model.features(rows[:, :-1])
    places = [slice(len(w.tokens) - 1 - w.scored, len(w.tokens) - 1) for w in windows]
    kept = torch.cat([row[place] for row, place in zip(features, places, strict=True)])
    targets = torch.cat([row[1:][place] for row, place in zip(rows, places, strict=True)])
    counts = [window.scored for window in windows]
    nats, is_likeliest = _token_scores(model, kept, targets)
    return [
        (float(some.double().sum()), bool(greedy.all()))
        for some, greedy in zip(nats.split(counts), is_likeliest.split(counts), strict=True)
    ]


def _token_scores(
    model: LanguageModel,
    features: Float[Tensor, "tokens hidden"],
    targets: Int[Tensor, " tokens"],
) -> tuple[Tensor, Tensor]:
    nats, is_likeliest = [], []
    for x, y in zip(features.split(_CHUNK), targets.split(_CHUNK), strict=True):
        logits = model.unembedding(x).float()
        nats.append(-F.cross_entropy(logits, y, reduction="none"))
        is_likeliest.append(logits.argmax(-1) == y)
    return torch.cat(nats).cpu(), torch.cat(is_likeliest).cpu()
