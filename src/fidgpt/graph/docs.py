"""Summaries of callables and of their parameters, from docstrings."""

import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

from docstring_parser import ParseError, parse

from fidgpt.graph.hints import cached

# What ends a sentence.
_END = re.compile(r"(?<=[.!?])(?<!\bal\.)(?<!\be\.g\.)(?<!\bi\.e\.)\s+(?=[A-Z0-9\"'(`])")
_SECTION = re.compile(r"(Args|Raises|Returns|Yields):\s")
_ROLE = re.compile(r":(?:\w+:)+`~?([^`<]*?)(?: ?<[^`]*>)?`")  # Sphinx: :class:`~torch.Tensor`
_ASIDE = re.compile(r"\n\s*\n\s*(?:\.\. |[*-] )|\n\s*\.\. ")  # a formula, a list, a note


@dataclasses.dataclass(frozen=True)
class Docs:
    """The documentation of a callable.

    Attributes:
      summary: the first sentence; empty where there is none.
      parameters: a text for each parameter that is described.
    """

    summary: str
    parameters: dict[str, str]


@cached
def doc_of(function: Any) -> Docs:
    """The docs of a function, a class, a `functools.partial` or an object that can be called.

    A parameter that a class does not describe is described by its constructor, or by the class
    that it inherits from.
    """
    if isinstance(function, functools.partial):
        return doc_of(function.func)
    texts = list(_docstrings(function))
    parameters = {name: doc for text in reversed(texts) for name, doc in _parameters(text).items()}
    return Docs(first_sentence(texts[0]) if texts else "", parameters)


def description(function: Any) -> str:
    """The docstring of a function before its sections, a line for each paragraph."""
    paragraphs = inspect.cleandoc(getattr(function, "__doc__", None) or "").split("\n\n")
    kept = itertools.takewhile(lambda text: not _SECTION.match(text), paragraphs)
    return "\n".join(map(_plain, kept))


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    return _plain(_END.split(inspect.cleandoc(text).partition("\n\n")[0])[0])


def _docstrings(function: Any) -> Iterator[str]:
    """The docstrings to ask, the nearest first."""
    if not inspect.isclass(function):
        own = function if inspect.isroutine(function) else type(function)
        documented = [inspect.unwrap(own)]
    else:
        bases = [base for base in function.__mro__ if base not in (object, *_CONTAINERS)]
        documented = [obj for base in bases for obj in (base, vars(base).get("__init__"))]
    for item in documented:
        text = getattr(item, "__doc__", None)
        if isinstance(text, str) and text.strip() and not _is_generated(item, text):
            yield text


# Their docs are of calls, not of parameters.
_CONTAINERS = (dict, list, tuple, set, int, float, str)


def _is_generated(owner: Any, text: str) -> bool:
    """A dataclass without a docstring gets its signature for one."""
    return dataclasses.is_dataclass(owner) and text.startswith(f"{getattr(owner, '__name__', '')}(")


def _parameters(text: str) -> dict[str, str]:
    """The texts of an `Args:` section, or of `Attributes:`, where dataclasses name their fields."""
    try:
        described = [param for param in reversed(parse(text).params) if param.description]
    except ParseError:
        return {}
    own = [param for param in described if param.args[0] != "attribute"] or described
    return {p.arg_name.lstrip("*"): _plain(_ASIDE.split(p.description or "")[0]) for p in own}


def _plain(text: str) -> str:
    """A text on one line, without the marks of Sphinx."""
    return " ".join(_ROLE.sub(r"\1", text).replace("``", "`").replace("`_", "`").split())
