"""Trees of calls that are wrong or mean harm: every mistake is named, and nothing is imported."""

import importlib
import sys
from typing import Any

import pytest
from graph import parts

from fidgpt.graph import ConfigError
from fidgpt.graph.errors import ConfigErrors
from fidgpt.interop import read_targets

HERE = parts.__name__
PAIR = f"_target_: {HERE}.pair\n"
REFUSED = [
    "subprocess.run",
    "os.system",
    "builtins.eval",
    "torch.load",
    "torch.hub.load",
    "hydra.utils.instantiate",
    "fidgpt.interop.read_targets",
    "fidgpt.interop.save_gpt2",
    "fidgpt.cli.train.run",
    "fidgpt.graph.load",
    "graph.partsx.double",
    "subprocess:run",
    "run",
    "",
    "..os.system",
    "a-b.c",
]


def mistakes(text: str) -> list[str]:
    """The messages for a text, in which `T:name` stands for a toy part."""
    with pytest.raises(ConfigError) as error:
        read_targets(text.replace("T:", f"_target_: {HERE}."), allowed=(HERE,))
    found = error.value
    return found.messages if isinstance(found, ConfigErrors) else [str(found)]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_is_refused_before_anything_is_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(importlib, "import_module", lambda *args: asked.append(args))
    modules = set(sys.modules)
    for text in (
        f"_target_: {name!r}",
        f"_component_: {name!r}",
        f"{PAIR}first: {{_target_: not.allowed, x: 1}}\nsecond: [{{_target_: {name!r}}}]",
        f"{PAIR}first: {{_target_: hydra.utils.get_object, path: {name!r}}}",
        f"a: {name!r}\nb: {{_target_: '${{a}}'}}",
    ):
        assert any("is refused" in one or "not a dotted name" in one for one in mistakes(text))
    assert not asked and set(sys.modules) == modules


@pytest.mark.parametrize(
    "name",
    [
        f"{HERE}.no_such",
        f"{HERE}.fdl",
        f"{HERE}.fdl.Config",
        f"{HERE}.Part.__init__.__globals__",
        f"{HERE}.Width",
        "fidgpt.tags.HiddenDim",
        "fidgpt.model.Atention",
        "fidgpt.model.attention.F",
        "torch.nn.os",
        "torch.nn.functional.gelu",
        "torch.nn.Linea",
    ],
)
def test_a_name_of_nothing_that_can_be_configured_is_refused(name: str) -> None:
    assert mistakes(f"_target_: {name}")[0].startswith("the top: ")


def test_every_mistake_is_named_in_one_go() -> None:
    found = mistakes("""
        T:Part
        widht: 3
        width: wide
        child: {T:Prt}
        other:
          - {T:double, number: "${no.such}"}
          - {T:double, number: '???'}
          - {T:double, _partal_: true, _args_: [1], number: 2}
          - {T:annotated, choice: c, square: {T:double, number: 1}, numbers: [1, 2, 3]}
    """)
    wanted = [
        "other[0].number: there is no 'no'.",
        "other[1].number: ??? marks a missing value",
        "other[2]: _partal_ means nothing. Did you mean _partial_?",
        "child: there is no",
        "has no parameter 'widht'. Did you mean width?",
        "width: 'wide' is not an int.",
        "other[2].number: it is set twice",
        "other[3].choice: 'c' is not",
        "other[3].square: must be Square or None",
        "other[3].numbers: must be tuple[int, int]",
    ]
    assert [one for one in wanted if not any(one in message for message in found)] == []
    assert len(found) == len(wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "not a mapping"),
        ("defaults: [model: big]\nx: 1", "names other files"),
        ("{T:double, _component_: x.y}", "both _target_ and _component_"),
        ("_target_: [1]", "must be a dotted name"),
        ("{T:double, _args_: 5}", "_args_ must be a list"),
        ("{T:double, _args_: [1, 2]}", "has no parameter 1"),
        ("{T:double, _partial_: 1}", "_partial_ must be true or false"),
        ("{T:double, _convert_: some}", "_convert_ must be none"),
        ("{T:double, _recursive_: false}", "_recursive_ must be true"),
        ("{T:double, 3: 4}", "the name of an argument"),
        ("{T:double, number: '${oc.env:HOME}'}", "the resolver 'oc.env'"),
        ("{T:double, number: '${number}'}", "leads back to itself"),
        ("{T:double, number: '${....x}'}", "beyond the top"),
        ("{T:double, number: '${a'}", "not a reference to a path"),
        ("{T:double, number: '${a.${b}}'}", "not a reference to a path"),
        ("{T:double, number: !include x}", "the tag '!include' is refused"),
        ("{_target_: hydra.utils.get_class, path: 3}", "takes the dotted name"),
        ("{T:pair, first: 'x ${second}', second: [1]}", "puts a list into a text"),
        ("{T:pair, first: '${second.a.b}', second: {a: 1}}", "is a plain value"),
        ("{T:pair, first: {T:pair, first: '${first}'}}", "contains itself"),
        ("{T:pair, first: ['${second}'], second: ['${first}']}", "contains itself"),
        ("{T:pair, first: " + "[" * 3000 + "]" * 3000 + "}", "too deeply"),
    ],
)
def test_words_that_make_no_sense_are_refused(text: str, message: str) -> None:
    assert any(message in one for one in mistakes(text))


def test_lists_that_repeat_each_other_without_end_are_refused() -> None:
    rows = ["&a0 [1, 1]", *(f"&a{i + 1} [*a{i}, *a{i}]" for i in range(40))]
    assert "items together" in mistakes(f"{{T:pair, first: [{', '.join(rows)}]}}")[0]


def test_texts_that_repeat_each_other_without_end_are_refused() -> None:
    rows = ["a0: x", *(f"a{i + 1}: '${{a{i}}}${{a{i}}}'" for i in range(60))]
    assert "more than 10,000 characters" in mistakes("\n".join(rows))[0]


def test_long_chains_of_references_are_refused_and_shorter_ones_followed() -> None:
    def chain(length: int) -> str:
        rows = [f"a{i}: 'x${{a{i - 1}}}'" for i in range(length, 0, -1)]
        return "\n".join([*rows, "a0: 7"])

    assert read_targets(chain(45))["a45"] == "x" * 45 + "7"
    assert "too deeply" in mistakes(chain(500))[0]
