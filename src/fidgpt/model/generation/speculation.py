"""Speculative decoding: a smaller model proposes tokens, and the model checks them in one pass."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from fidgpt.model.cache import RewindableCache
from fidgpt.model.generation.decoding import Probabilities, Sampling
from fidgpt.model.generation.reading import Reader, Rows, require_context
from fidgpt.model.transformer import LanguageModel
from fidgpt.ranges import require_size

__all__ = ["Draft"]


@dataclass(eq=False)
class Draft:
    """A smaller model of the same vocabulary that proposes tokens for speculative decoding.

    Texts have exactly the distribution of the model alone, whatever the draft (Leviathan et al.,
    2023, arXiv:2211.17192, algorithm 1 and appendix A.1): a proposed token x is accepted with
    probability min(1, p(x) / q(x)), p being the model's filtered probability and q the draft's, and
    otherwise replaced by a sample from max(0, p - q). At temperature 0 the text is the same, up to
    ties: a pass over several tokens rounds differently from one over a single token.

    Rows of a batch advance together, by the tokens that all of them accept and one more, so that
    samples, unlike their distribution, depend on other rows. Nothing is proposed once a text
    exceeds a context, since all columns are then recomputed for every token.

    Args:
      model: the draft, in eval mode.
      context: maximum number of tokens that it sees.
      num_tokens: number of tokens to propose at a time.

    Attributes:
      num_proposed: number of tokens proposed so far, of all rows.
      num_accepted: number of them that were accepted.

    Raises:
      ValueError: a size is out of range.
    """

    model: LanguageModel
    _: KW_ONLY
    context: int
    num_tokens: int = 4

    def __post_init__(self) -> None:
        require_size(context=self.context, num_tokens=self.num_tokens)
        self.num_proposed = self.num_accepted = 0


class Drafting:
    """A draft at work on rows.

    Args:
      draft: the draft.
      rows: the prompts.
      choose: filters the probabilities of the model and of the draft, and samples from them.

    Raises:
      ValueError: the draft's context exceeds its learned positions.
    """

    def __init__(self, draft: Draft, rows: Rows, *, choose: Sampling) -> None:
        require_context(draft.model, context=draft.context, num_columns=rows.capacity - 1)
        self._draft = draft
        self._rows = rows
        self._choose = choose
        cache = RewindableCache(capacity=min(rows.capacity, draft.context))
        self._reader = Reader(draft.model, cache, context=draft.context)

    def advance(self, reader: Reader, *, running: Sequence[bool]) -> bool:
        """Append one or more tokens to each row; return False if nothing can be proposed.

        Args:
          reader: the model.
          running: whether each row's text goes on; what the others get is arbitrary.

        Raises:
          ValueError: logits are NaN or infinite, or the vocabularies differ in size.
        """
        rows, draft = self._rows, self._draft
        start = rows.width
        room = min(rows.capacity - 1, reader.context, draft.context) - start
        count = min(draft.num_tokens, room)
        # A model first reads the prompt, and what was rewound, in a pass that writes one token.
        if count < 1 or not reader.is_current(rows):
            return False
        sizes = (self._choose.vocab_size, reader.num_logits)
        proposals = self._propose(count, vocab_size=min(size for size in sizes if size))
        reader.mark(count + 1)
        logits = reader.logits(rows, count + 1)
        rows.width = start
        runs = torch.tensor(running, device=logits.device)
        for index, (proposed, guess) in enumerate(proposals):
            exact = self._choose.probabilities(logits[:, index], rows.text())
            accepted, token = self._judge(proposed, guess=guess, exact=exact)
            rows.append(token)
            draft.num_accepted += int((accepted & runs).sum())
            if not (accepted | ~runs).all():
                break
        else:
            rows.append(self._choose(logits[:, count], rows.text()))
        draft.num_proposed += count * sum(running)
        for each in (reader, self._reader):
            each.rewind(rows.width - 1)
        return True

    def _propose(
        self, count: int, *, vocab_size: int
    ) -> list[tuple[Int[Tensor, " batch"], Probabilities]]:
        """Append proposed tokens to the rows; return them, each with its row's probabilities."""
        rows, proposals = self._rows, []
        for index in range(count):
            logits = self._reader.logits(rows)[:, 0]
            if index == 0:  # what was read until now is final
                self._reader.mark(count - 1)
            guess = self._choose.probabilities(logits, rows.text())
            if guess.shape[1] != vocab_size:
                raise ValueError(
                    f"the draft's vocabulary has {guess.shape[1]} tokens and the model's "
                    f"{vocab_size}; use a draft of the same vocabulary."
                )
            proposals.append((self._choose.draw(guess), guess))
            rows.append(proposals[-1][0])
        return proposals

    def _judge(
        self, proposed: Int[Tensor, " batch"], *, guess: Probabilities, exact: Probabilities
    ) -> tuple[Tensor, Int[Tensor, " batch"]]:
        """Return whether each row accepts its proposed token, and its token: that or another."""
        at = proposed.unsqueeze(1)
        likelier = self._choose.uniform(guess) * guess.gather(1, at)[:, 0]
        accepted = likelier < exact.gather(1, at)[:, 0]
        if accepted.all():
            return accepted, proposed
        rest = (exact - guess).clamp_min(0)
        # Equal up to rounding, which may leave nothing.
        rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, exact)
        return accepted, torch.where(accepted, proposed, self._choose.draw(rest))
