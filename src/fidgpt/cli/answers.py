"""A trained model that answers: in conversations, and to several callers at once."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fidgpt.cli.trained import GENERATION, generation_ends, load_trained, to_write
from fidgpt.data import DataError
from fidgpt.data.chat_templates import ChatTemplate
from fidgpt.data.messages import messages_in, require_order
from fidgpt.files import read_json
from fidgpt.model.generation import ContinuousBatch, Sampling, WrittenText, prepare_to_write
from fidgpt.train import StreamedText, prompt_tokens

# Defaults of `fidgpt.sample`, where a model has none of its own.
_DEFAULTS = {"temperature": 0.6, "top_k": 50}
_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(eq=False)
class Answer(WrittenText):
    """An answer that is being written.

    Attributes:
      shown: its tokens as text.
      num_tokens: the most tokens to write.
      num_prompt: number of tokens of the prompt.
      deliver: is called with each piece of text, with an error that ended it, and with None last.
      reason: why it ended: its own end, or its length; None while it goes on. Whoever no longer
        wants it sets `stop`.
    """

    shown: StreamedText
    num_tokens: int
    num_prompt: int
    deliver: Callable[[str | Exception | None], None] = lambda piece: None
    reason: Literal["stop", "length"] | None = None

    @property
    def num_written(self) -> int:
        """The number of tokens written so far."""
        return len(self.tokens) - self.num_prompt

    def push(self, token: int) -> str:
        """Return the text that a token makes certain."""
        if self.shown(token):
            self.reason = "stop"
        elif self.num_written == self.num_tokens:
            self.reason = "length"
        return self.shown.finish() if self.reason else self.shown.take()


class Assistant:
    """A trained model that answers, ready to write.

    Args:
      path: directory of a run, or of a model of the hub.
      float32: whatever the run's precision.
      settings: of `Sampling`; the settings of the model's generation_config.json, or the defaults
        of `fidgpt.sample`, in place of None.

    Attributes:
      settings: those.
      context: the most tokens of a conversation.

    Raises:
      RunError: there is no run.
      ConfigError: its config cannot be read.
      DataError: there is no tokenizer that can be read.
    """

    def __init__(self, path: Path, *, float32: bool, settings: Mapping[str, Any]) -> None:
        trainer, self._tokenizer = load_trained(path)
        model = to_write(trainer, float32=float32)
        prepare_to_write(model)
        self.context = trainer.seq_len
        self._batch = ContinuousBatch(model, context=self.context)
        given: Any = read_json(path / GENERATION)
        kept = {name: given[name] for name in _SETTINGS if given.get(name) is not None}
        kept |= {"temperature": 0.0} if kept and given.get("do_sample") is False else {}
        chosen = {name: value for name, value in settings.items() if value is not None}
        self.settings = ({"temperature": 1.0} | kept if kept else _DEFAULTS) | chosen
        if self.settings.get("top_k") == 0:  # all tokens
            del self.settings["top_k"]
        self._ends = generation_ends(path)
        self._template = None if self._tokenizer.chat is None else ChatTemplate(self._tokenizer)
        if self._template is not None:
            self._ends |= self._template.ends_of_turn()

    @property
    def num_read(self) -> int:
        """The number of tokens of prompts that were read so far."""
        return self._batch.num_read

    def conversation(self, messages: Any, **variables: Any) -> list[int]:
        """Return the tokens of a conversation, up to the answer to its last message.

        Args:
          messages: in one of the forms that files of conversations have.
          variables: others of the chat template, such as `tools`.

        Raises:
          DataError: there is no template, or it refuses them; a message has no text, or roles are
            out of order.
        """
        template = self._template or ChatTemplate(self._tokenizer)
        read = messages_in(messages, role="user")
        require_order(read, answers=False)
        return template.prompt(read, self._tokenizer, **variables)

    def text(self, text: str) -> list[int]:
        """Return the tokens of the beginning of a document."""
        return prompt_tokens(self._tokenizer, text)

    def answer(
        self,
        prompt: Sequence[int],
        *,
        num_tokens: int | None = None,
        stop: Sequence[str] = (),
        seed: int = 0,
        **settings: Any,
    ) -> Answer:
        """Return an answer to tokens, which is to be written.

        Args:
          prompt: of `conversation` or `text`.
          num_tokens: the most tokens to write; defaults to what the context has room for.
          stop: strings that end it and are not shown.
          seed: of the sampling.
          settings: of `Sampling`, other than the assistant's.

        Raises:
          DataError: the prompt leaves no room in the context.
          ValueError: a setting is out of range.
        """
        room = self.context - len(prompt)
        if room < 1:
            raise DataError(
                f"The conversation has {len(prompt)} tokens, and the model sees {self.context}, "
                "with the answer: begin a new one, or leave earlier messages out."
            )
        choose = Sampling(
            seeds=[seed], vocab_size=self._tokenizer.vocab_size, **{**self.settings, **settings}
        )
        shown = StreamedText(self._tokenizer, stop, ends=self._ends)
        most = room if num_tokens is None else min(num_tokens, room)
        return Answer([*prompt], choose, shown=shown, num_tokens=most, num_prompt=len(prompt))

    def begin(self, answer: Answer) -> str:
        """Read the prompt of an answer, and return its first piece."""
        piece = answer.push(self._batch.add(answer))
        self._remove_ended()
        return piece

    def advance(self) -> Iterator[tuple[Answer, str]]:
        """Yield the next piece of each answer that goes on."""
        self._remove_ended()
        texts = list(self._batch.texts)
        tokens = self._batch.step() if texts else []
        for answer, token in zip(texts, tokens, strict=True):
            assert isinstance(answer, Answer)  # others do not get in
            yield answer, answer.push(token)

    def write(self, answer: Answer) -> Iterator[str]:
        """Yield the pieces of one answer."""
        try:
            yield self.begin(answer)
            while answer.reason is None:
                yield from (piece for _, piece in self.advance())
        finally:
            answer.reason = answer.reason or "stop"
            self._remove_ended()

    def _remove_ended(self) -> None:
        for answer in list(self._batch.texts):
            if isinstance(answer, Answer) and answer.reason:
                self._batch.remove(answer)


class AnswerThread(threading.Thread):
    """Writes the answers to all callers, in one batch.

    Args:
      assistant: writes them.
      batch_size: number of answers to write at once; others wait.
    """

    def __init__(self, assistant: Assistant, *, batch_size: int) -> None:
        super().__init__(daemon=True)
        self._assistant = assistant
        self._batch_size = batch_size
        self._waiting: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._writing: list[Answer] = []

    def submit(self, answer: Answer) -> None:
        """Have an answer written, whose pieces are delivered from this thread."""
        self._waiting.put(answer)

    def run(self) -> None:
        """Write answers for ever."""
        while True:
            while not self._writing or (
                len(self._writing) < self._batch_size and not self._waiting.empty()
            ):
                self._begin(self._waiting.get())
            try:
                for answer, piece in self._assistant.advance():
                    answer.deliver(piece)
            except Exception as error:  # such as NaN logits; the callers get the error
                for answer in self._writing:
                    _fail(answer, error)
            self._drop_ended()

    def _begin(self, answer: Answer) -> None:
        self._writing.append(answer)
        if answer.reason is None:  # it is still wanted
            try:
                answer.deliver(self._assistant.begin(answer))
            except Exception as error:
                _fail(answer, error)
        self._drop_ended()

    def _drop_ended(self) -> None:
        for answer in self._writing:
            if answer.reason is not None:
                answer.deliver(None)
        self._writing = [answer for answer in self._writing if answer.reason is None]


def _fail(answer: Answer, error: Exception) -> None:
    answer.reason = "stop"
    answer.deliver(error)
