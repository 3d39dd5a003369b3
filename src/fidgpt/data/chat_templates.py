"""Chat templates: conversations as text, and which characters of it the assistant wrote."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.tokenizers import ChatSettings, Tokenizer

__all__ = ["CHAT_TEMPLATES", "ChatTemplate", "Message", "template_tokens"]

Message = Mapping[str, Any]

# Our own templates, for tokenizers without one, by name. They are Jinja without extensions, so that
# other systems read them too.
CHAT_TEMPLATES: Mapping[str, str] = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
_CONTROL = re.compile(r"<\|\w+\|>")  # what most special tokens look like
# Characters that Unicode reserves for programs: they are in no text.
_BROKEN, _BEGIN, _END, _OTHER = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_RESERVED = str.maketrans(dict.fromkeys((_BROKEN, _BEGIN, _END), "\ufffd"))
# Templates that write the day of their use write this one, the default of Llama's: a run must not
# depend on the day.
_DATE = date(2024, 7, 26)
_PROBE = [{"role": role, "content": "a"} for role in ("user", "assistant", "user", "assistant")]


class Rendered(NamedTuple):
    """A conversation as text.

    Attributes:
      text: of the conversation; every spelling of a special token in it is that token.
      spans: the first character of each answer of the assistant, and the one after its end of turn.
      is_open: whether the last answer has no end of turn of its own.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    is_open: bool


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
      tokenizer: has a template.

    Raises:
      DataError: it has none, or one that cannot be read or needs special tokens that it lacks.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.chat is None:
            raise DataError(
                "The tokenizer has no chat template.\nChoose one of "
                f"{', '.join(CHAT_TEMPLATES)}, or a file: use_chat_template(chatml)."
            )
        self._special = tokenizer.special_ids()
        names = sorted(self._special, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._normalize = tokenizer.normalize
        self._settings = tokenizer.chat
        self._template = _compiled(tokenizer.chat)
        self._marked = None
        if re.search(r"{%-?\s*generation\b", tokenizer.chat.template):
            self._marked = _compiled(tokenizer.chat, marks=(_BEGIN, _END))
        # What looks like special tokens in a conversation that says nothing.
        controls = dict.fromkeys(_CONTROL.findall(self.render(_PROBE)))
        if lacking := [name for name in controls if name not in self._special]:
            raise DataError(
                f"The chat template writes {', '.join(lacking)}, which are no special tokens of "
                "the tokenizer.\nChoose another template, or a tokenizer that has them; one that "
                f"is trained gets them by BPETokenizer(special_tokens={lacking!r})."
            )

    def render(self, messages: Sequence[Message], *, prompts: bool = False, **more: Any) -> str:
        """Return messages as text, in which no message spells a special token.

        Args:
          messages: of the conversation.
          prompts: whether to begin an answer at the end.
          more: other variables of the template, such as `tools`.

        Raises:
          DataError: the template refuses them.
        """
        return self._rendered(self._template, messages, prompts=prompts, **more)

    def _rendered(
        self, template: Any, messages: Sequence[Message], *, prompts: bool, **more: Any
    ) -> str:
        variables = {"tools": None, "documents": None, **self._settings.tokens, **more}
        if variables["tools"] and "tools" not in self._settings.template:
            raise DataError("the chat template lists no tools: leave them out, or take another.")
        variables.setdefault("bos_token", "")
        variables.setdefault("eos_token", "")
        try:
            return template.render(
                messages=self._safe(list(messages)), add_generation_prompt=prompts, **variables
            )
        except Exception as error:  # a template may raise anything
            reason = " ".join(str(error).split())
            raise DataError(f"the chat template refuses it: {reason}") from error

    def _safe(self, value: Any) -> Any:
        """Return a value whose texts are normalized, and spell no special token."""
        if isinstance(value, str):
            text = self._normalize(value.translate(_RESERVED))
            return self._specials.sub(lambda match: f"{match[0][0]}{_BROKEN}{match[0][1:]}", text)
        if isinstance(value, Mapping):
            return {self._safe(key): self._safe(item) for key, item in value.items()}
        return [self._safe(item) for item in value] if isinstance(value, list | tuple) else value

    def conversation(self, messages: Sequence[Message], **more: Any) -> Rendered:
        """Return a conversation as text, and the answers in it.

        Where the template marks them by `generation` tags, an answer is the text in them, and the
        end of turn behind it. Else an answer begins where the text ends that is rendered up to the
        question, with the beginning of an answer.

        Args:
          messages: of the conversation.
          more: other variables of the template, such as `tools`.

        Raises:
          DataError: the template refuses them, or does not tell where an answer is.
        """
        text = self.render(messages, **more)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if self._marked is not None:
            marked = self._rendered(self._marked, messages, prompts=False, **more)
            spans = self._marked_spans(marked, text, len(turns))
        else:
            spans = [self._span(text, messages, turn, more) for turn in turns]
        is_open = bool(spans) and not text[spans[-1][1] :].strip()
        is_open = is_open and self._last_special(text[slice(*spans[-1])]) is None
        return Rendered(text, spans, is_open)

    def _marked_spans(self, marked: str, text: str, count: int) -> list[tuple[int, int]]:
        parts = re.split(f"([{_BEGIN}{_END}])", marked)
        spans: list[tuple[int, int]] = []
        begin, length = -1, 0
        for part in parts:
            if part == _BEGIN:
                begin = length
            elif part == _END:
                after = self._specials.match(text, length)
                is_ended = self._last_special(text[begin:length]) is not None
                spans.append((begin, after.end() if after and not is_ended else length))
            else:
                length += len(part)
        if "".join(parts[::2]) != text:
            raise DataError("its chat template changes the text that its generation tags mark")
        if len(spans) != count or any(begin == stop for begin, stop in spans):
            raise DataError(
                f"the generation tags of its chat template mark {len(spans)} answers of {count}"
            )
        return spans

    def _span(
        self, text: str, messages: Sequence[Message], turn: int, more: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Return where an answer begins, and where its turn ends."""
        before = self.render(messages[:turn], prompts=True, **more)
        until = self.render(messages[: turn + 1], **more)
        if before == self.render(messages[:turn], **more):  # it has no beginning of an answer
            other = [*messages[:turn], {**messages[turn], "content": _OTHER}]
            letters = zip(until, self.render(other, **more), strict=False)
            before = until[: next((i for i, (a, b) in enumerate(letters) if a != b), 0)]
        if not before or not text.startswith(before) or not until.startswith(before):
            _refuse(turn, "begins")
        answer, rest = until[len(before) :], text[len(before) :]
        end = self._last_special(answer)
        is_ended = end is not None and not answer[end:].strip()
        answer = answer[:end] if is_ended else answer.rstrip()
        if not rest.startswith(answer):
            # A template may show less of earlier answers, as without what they thought.
            count = len(self._specials.findall(answer))
            ends = [match.end() for match in self._specials.finditer(rest)][:count]
            if not count or len(ends) < count or not answer.endswith(rest[: ends[-1]]):
                _refuse(turn, "ends")
            answer = rest[: ends[-1]]
        return len(before), len(before) + len(answer)

    def _last_special(self, text: str) -> int | None:
        """Return where the last special token of a text ends."""
        ends = [match.end() for match in self._specials.finditer(text)]
        return ends[-1] if ends else None

    def pieces(self, text: str) -> list[tuple[int, str, int | None]]:
        """Split a rendered text at its special tokens.

        Returns:
          First character, text and id of each piece; the id is None for other text.
        """
        pieces: list[tuple[int, str, int | None]] = []
        begin = 0
        for match in self._specials.finditer(text):
            pieces += [(begin, text[begin : match.start()], None)] * (match.start() > begin)
            pieces.append((match.start(), match[0], self._special[match[0]]))
            begin = match.end()
        return pieces + [(begin, text[begin:], None)] * (begin < len(text))

    def prompt(self, messages: Sequence[Message], tokenizer: Tokenizer, **more: Any) -> list[int]:
        """Return the tokens of a conversation up to an answer, as they are in training.

        Raises:
          DataError: the template refuses the messages.
        """
        pieces = self.pieces(self.render(messages, prompts=True, **more))
        begins = tokenizer.begin_of_text == tokenizer.end_of_text
        tokens = [tokenizer.end_of_text] if begins else []
        for _, text, number in pieces:
            ids = tokenizer.encode(text.replace(_BROKEN, "")) if number is None else [number]
            tokens += ids
        return tokens

    def ends_of_turn(self) -> set[int]:
        """Return the special tokens that end an answer; none if it has no end of its own."""
        begin, end = self.conversation(_PROBE).spans[0]
        answer = self.render(_PROBE)[begin:end]
        return {self._special[name] for name in self._specials.findall(answer)[-1:]}

    def free_token(self, names: Sequence[str]) -> str | None:
        """Return the first of some special tokens that is in no conversation; None if all are."""
        used = self._specials.findall(self.render(_PROBE, prompts=True))
        return next((name for name in names if name in self._special and name not in used), None)


def template_tokens(name: str | None) -> list[str]:
    """Return the special tokens that one of our templates writes; none for other templates."""
    return list(dict.fromkeys(_CONTROL.findall(CHAT_TEMPLATES.get(name or "", ""))))


def plain(text: str, marks: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
    """Return a piece of a rendered text as it was in its message, and the marks of its letters."""
    if _BROKEN not in text:
        return text, marks
    is_kept = np.array([letter != _BROKEN for letter in text], dtype=np.bool_)
    return text.replace(_BROKEN, ""), marks[is_kept]


def _refuse(turn: int, where: str) -> NoReturn:
    raise DataError(
        f"its chat template does not tell where the answer in message {turn + 1} {where}: mark "
        "answers in it by {% generation %} ... {% endgeneration %}"
    )


@functools.lru_cache(maxsize=8)
def chat_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template of a tokenizer, which its documents share."""
    return ChatTemplate(tokenizer)


def _compiled(settings: ChatSettings, *, marks: Sequence[str] = ("", "")) -> Any:
    """Return a template, with marks around the text between its generation tags."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            begin, end = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in marks)
            return [begin, *body, end]

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def as_json(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = _DATE.strftime
    try:
        return environment.from_string(settings.template)
    except TemplateError as error:
        raise DataError(f"The chat template cannot be read: {error}.") from error
