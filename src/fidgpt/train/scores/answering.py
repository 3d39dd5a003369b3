"""Questions, and how a model answers them: each in passes of its own, on one of the processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fidgpt.data import Tokenizer
from fidgpt.model.generation import Sampling
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.train.evaluation import continuations

__all__ = ["Choices", "Completion", "Exam", "Examinee", "Letters", "Writing", "graded"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Examinee:
    """A model that is asked questions.

    Attributes:
      model: in eval mode.
      tokenizer: of its tokens.
      context: the most tokens that it sees while it writes.
      parallel: the processes that share the questions.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    context: int
    parallel: DataParallel = field(default_factory=DataParallel)

    @torch.inference_mode()
    def logits(
        self, rows: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[tuple[Float[Tensor, "scored vocab"], Tensor]]:
        """Return the logits of the tokens of each row from a start on, and these tokens.

        All rows are read in one pass. A row that is longer than a table of positions loses its
        beginning.
        """
        tables = [one for one in self.model.modules() if isinstance(one, LearnedPositions)]
        most = min((table.num_positions for table in tables), default=max(map(len, rows)))
        kept = [list(row[-most:]) for row in rows]
        width = max(map(len, kept))
        padded = torch.tensor([[*row, *[row[0]] * (width - len(row))] for row in kept])
        padded = padded.to(self.model.device)
        found = []
        for row, tokens, start, x in zip(
            rows, padded, starts, self.model.features(padded), strict=True
        ):
            length = min(len(row), most)
            begin = max(1, start - (len(row) - length))
            logits = self.model.unembedding(x[begin - 1 : length - 1]).float()
            found.append((logits, tokens[begin:length]))
        return found

    def write(self, prompt: Sequence[int], *, num_tokens: int, stop: Sequence[str] = ()) -> str:
        """Return the most likely text after a prompt, whose beginning is cut if it is too long."""
        room = max(self.context - num_tokens, (self.context + 1) // 2)
        pieces = continuations(
            self.model,
            self.tokenizer,
            [prompt[-room:]],
            context=self.context,
            num_tokens=num_tokens,
            choose=Sampling(seeds=[0], temperature=0.0, vocab_size=self.tokenizer.vocab_size),
            stop=stop,
        )
        return "".join(piece for (piece,) in pieces)


@runtime_checkable
class Question(Protocol):
    """Asks a model; whether its answer is right."""

    def __call__(self, examinee: Examinee, /) -> bool: ...


@dataclass(frozen=True)
class Choices:
    """Which row has the least mean loss per token from its start on; the first one of several.

    The mean of no token is not a number. It is the least where it comes first and never elsewhere,
    as it is to Python's `min`, by which nanochat chooses.
    """

    rows: Sequence[Sequence[int]]
    starts: Sequence[int]
    right: int

    def __call__(self, examinee: Examinee) -> bool:
        means = [
            F.cross_entropy(logits, targets, reduction="none").mean().item()
            for logits, targets in examinee.logits(self.rows, self.starts)
        ]
        return means.index(min(means)) == self.right


@dataclass(frozen=True)
class Completion:
    """Whether each token from the start on is the most likely one."""

    row: Sequence[int]
    start: int

    def __call__(self, examinee: Examinee) -> bool:
        ((logits, targets),) = examinee.logits([self.row], [self.start])
        return bool((logits.argmax(-1) == targets).all())


@dataclass(frozen=True)
class Letters:
    """Which of some tokens is the most likely one after a prompt."""

    prompt: Sequence[int]
    letters: Sequence[int]
    right: int

    def __call__(self, examinee: Examinee) -> bool:
        # The last token is scored, whichever it is.
        ((logits, _),) = examinee.logits([[*self.prompt, self.letters[0]]], [len(self.prompt)])
        return int(logits[0, list(self.letters)].argmax()) == self.right


@dataclass(frozen=True)
class Writing:
    """Whether the text that is written after a prompt is right, by `judge`."""

    prompt: Sequence[int]
    judge: Callable[[str], bool]
    num_tokens: int = 512

    def __call__(self, examinee: Examinee) -> bool:
        return self.judge(examinee.write(self.prompt, num_tokens=self.num_tokens))


@dataclass(frozen=True, kw_only=True)
class Exam:
    """The questions of a task.

    Attributes:
      count: number of questions.
      question: returns one by its index, from 0.
      baseline: the share of right answers of a model that guesses.
      writes: whether the model writes texts, whose number of passes is not known before.
    """

    count: int
    question: Callable[[int], Question]
    baseline: float = 0.0
    writes: bool = False


def graded(exam: Exam, examinee: Examinee) -> list[bool]:
    """Return whether the answer to each question is right.

    Processes with different rows of a batch have different questions. A question is answered in
    passes of its own, so that the answer does not depend on how many they are.
    """
    parallel = examinee.parallel
    rank, size = parallel.data_rank, parallel.data_size
    if exam.writes and parallel.places.passes_together:
        rank, size = 0, 1
    own: dict[int, bool] = {}
    for first in range(0, exam.count, size):
        # A process without a question left asks the last one, as others may need its shard.
        index = min(first + rank, exam.count - 1)
        own[index] = exam.question(index)(examinee)
    return gathered(own, parallel)


def gathered(own: Mapping[int, T], parallel: DataParallel) -> list[T]:
    """Return what all processes have, in the order of their numbers."""
    found: dict[int, T] = {}
    for part in parallel.world.gather(own):
        found |= part
    return [found[number] for number in sorted(found)]
