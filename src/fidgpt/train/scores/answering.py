"""Questions, and how a model answers them: each in passes of its own, on one of the processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fidgpt.data import Tokenizer
from fidgpt.model.generation import Choice, Sampling
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.train.evaluation import continuations

T = TypeVar("T")
_CHUNK = 1024  # tokens whose logits exist at once


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
    def features(
        self, rows: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[tuple[Float[Tensor, "scored hidden"], Int64[Tensor, " scored"]]]:
        """Return the tokens of each row from a start on, and the features that predict them.

        All rows are read in one pass.
        """
        width = max(map(len, rows))
        # Padding is on the right, where no earlier token sees it.
        padded = torch.tensor([[*row, *[row[0]] * (width - len(row))] for row in rows])
        padded = padded.to(self.model.device)
        return [
            (x[start - 1 : len(row) - 1], tokens[start : len(row)])
            for row, start, tokens, x in zip(
                rows, starts, padded, self.model.features(padded[:, :-1]), strict=True
            )
        ]

    @torch.inference_mode()
    def likelihoods(
        self, rows: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[tuple[Float[Tensor, " scored"], Bool[Tensor, " scored"]]]:
        """Return the nats of the tokens of each row from a start on, and whether each is greedy."""
        parts = self.features(rows, starts)
        kept, targets = (torch.cat(each) for each in zip(*parts, strict=True))
        nats, greedy = [], []
        for x, y in zip(kept.split(_CHUNK), targets.split(_CHUNK), strict=True):
            logits = self.model.unembedding(x).float()
            nats.append(-F.cross_entropy(logits, y, reduction="none"))
            greedy.append(logits.argmax(-1) == y)
        counts = [len(tokens) for _, tokens in parts]
        each = (torch.cat(parts).cpu().split(counts) for parts in (nats, greedy))
        return [*zip(*each, strict=True)]

    def fitting(
        self, rows: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> tuple[list[Sequence[int]], list[int]]:
        """Cut the beginnings of rows that are longer than a table of positions."""
        tables = [module for module in self.model.modules() if isinstance(module, LearnedPositions)]
        most = min((table.num_positions for table in tables), default=max(map(len, rows)))
        kept = [row[-most:] for row in rows]
        cut = [len(row) - len(rest) for row, rest in zip(rows, kept, strict=True)]
        return kept, [max(1, start - n) for start, n in zip(starts, cut, strict=True)]

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        num_tokens: int,
        stop: Sequence[str] = (),
        choose: Choice | None = None,
    ) -> list[str]:
        """Return the texts after prompts, the most likely ones unless `choose` draws others.

        A long prompt is cut on the left to leave room for the text, up to a half of the context.
        """
        room = max(self.context - num_tokens, (self.context + 1) // 2)
        greedy = Sampling(
            seeds=[0] * len(prompts), temperature=0.0, vocab_size=self.tokenizer.vocab_size
        )
        pieces = continuations(
            self.model,
            self.tokenizer,
            [prompt[-room:] for prompt in prompts],
            context=self.context,
            num_tokens=num_tokens,
            choose=choose or greedy,
            stop=stop,
        )
        return ["".join(row) for row in zip(*pieces, strict=True)]

    def least_loss(self, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> int:
        """Return which row has the least mean loss per token from its start, the first of several.

        The mean of no token is not a number. It is the least where it comes first and never
        elsewhere, as it is to Python's `min`, by which nanochat chooses.
        """
        likelihoods = self.likelihoods(*self.fitting(rows, starts))
        means = [-nats.mean().item() for nats, _ in likelihoods]
        return means.index(min(means))

    def completes(self, row: Sequence[int], start: int) -> bool:
        """Return whether each token from the start on is the most likely one."""
        ((_, is_greedy),) = self.likelihoods(*self.fitting([row], [start]))
        return bool(is_greedy.all())


Question = Callable[[Examinee], bool]  # asks a model; whether its answer is right


@dataclass(frozen=True)
class Letters:
    """Which of some tokens is the most likely one after a prompt."""

    prompt: Sequence[int]
    letters: Sequence[int]
    right: int

    @torch.inference_mode()
    def __call__(self, examinee: Examinee) -> bool:
        row, count = [*self.prompt, self.letters[0]], len(self.prompt)
        ((x, _),) = examinee.features(*examinee.fitting([row], [count]))
        logits = examinee.model.unembedding(x[0]).float()
        return int(logits[list(self.letters)].argmax()) == self.right


@dataclass(frozen=True)
class Writing:
    """Whether the text that is written after a prompt is right, by `judge`."""

    prompt: Sequence[int]
    judge: Callable[[str], bool]
    num_tokens: int = 512

    def __call__(self, examinee: Examinee) -> bool:
        (text,) = examinee.write([self.prompt], num_tokens=self.num_tokens)
        return self.judge(text)


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
    share = own_share(range(exam.count), examinee.parallel, writes=exam.writes)
    return gathered({i: exam.question(i)(examinee) for i in share}, examinee.parallel)


def own_share(
    numbers: Sequence[int], parallel: DataParallel, *, writes: bool = False
) -> Sequence[int]:
    """Return the questions of this process, all of them where the number of passes is not known.

    All processes have as many, some of them twice, as others may need the shard of a process
    without questions of its own.
    """
    if writes and parallel.places.passes_together:
        return numbers
    rank, size = parallel.data_rank, parallel.data_size
    return [numbers[min(i + rank, len(numbers) - 1)] for i in range(0, len(numbers), size)]


def gathered(own: Mapping[int, T], parallel: DataParallel) -> list[T]:
    """Return what all processes have, in the order of their numbers."""
    results: dict[int, T] = {}
    for part in parallel.world.gather(own):
        results |= part
    return [results[number] for number in sorted(results)]
