"""Secrets: who gets their values, and that nothing else shows them."""

import copy
import pickle
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import (
    Config,
    ConfigError,
    build,
    check_and_bind,
    diff,
    diff_text,
    draw,
    dump_patch,
    fingerprint,
    outline,
    rejections,
    why_text,
)
from fidgpt.graph.codegen import python
from fidgpt.graph.outlines import flat
from fidgpt.graph.page import page
from fidgpt.graph.provenance import dump_provenance
from fidgpt.graph.secrets import redacted

VALUE, REFERENCE = "hunter2-of-the-lab", "${secret:LAB_KEY}"


class Service:
    """Takes a key, alone and in containers."""

    def __init__(self, key: str, more: Any = None, width: int = 1) -> None:
        if width < 0:
            raise ValueError(f"{key=} has no {width=}, and {key} is not one")
        self.key, self.more = key, more


@pytest.fixture(autouse=True)
def _variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_KEY", VALUE)


def graph_with_secrets(width: int = 1) -> fdl.Config[Service]:
    inner = fdl.Config(Service, key=f"https://me:{REFERENCE}@host", more=(REFERENCE, 1))
    return Config(Service, key=REFERENCE, more={"a": [inner, REFERENCE], "b": "c"}, width=width)


@pytest.mark.parametrize("make", [build, fdl.build])
def test_a_constructor_gets_the_value(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = graph_with_secrets()
    made = make(cfg)
    inner, beside = made.more["a"]
    assert made.key == beside == VALUE and made.more["b"] == "c"
    assert inner.key == f"https://me:{VALUE}@host" and inner.more == (VALUE, 1)
    assert cfg.key == REFERENCE and cfg.more["a"][0].more == (REFERENCE, 1)
    monkeypatch.setenv("LAB_KEY", "another-key-of-the-lab")  # which is read at every build
    assert make(cfg).key == "another-key-of-the-lab"
    copied: Any = pickle.loads(pickle.dumps(copy.deepcopy(made.key)))
    assert copied == VALUE and repr(copied) == repr(REFERENCE)


def test_nothing_that_is_made_of_the_graph_shows_it() -> None:
    cfg = graph_with_secrets()
    build(cfg)
    other = Config(Service, key="")
    texts = [
        *(outline(cfg), flat(cfg), python(cfg), page(cfg), page(cfg, other=other)),
        *(draw(cfg).source, diff_text(diff(other, cfg)), dump_patch((other, cfg))),
        *(dump_provenance(cfg), why_text(cfg, "key"), why_text(cfg, "more"), repr(cfg)),
        repr(build(cfg).key),
    ]
    assert not any(VALUE in one for one in texts)
    assert all("secret:LAB_KEY" in one for one in texts)


def test_a_fingerprint_is_that_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint(graph_with_secrets())
    monkeypatch.setenv("LAB_KEY", "another-key-of-the-lab")
    assert fingerprint(graph_with_secrets()) == first


def test_errors_show_the_reference() -> None:
    wrong = graph_with_secrets(width=-1)
    for find in (build, check_and_bind):
        with pytest.raises(ConfigError) as caught:
            find(wrong)
        assert VALUE not in str(caught.value)
        assert f"key='{REFERENCE}' has no width=-1, and {REFERENCE} is not" in str(caught.value)
        assert caught.value.mistakes[0].sources == ("key", "width")


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv("LAB_KEY")
    else:
        monkeypatch.setenv("LAB_KEY", value)
    cfg = fdl.Config(Service, key=REFERENCE)
    with pytest.raises(ConfigError, match="export LAB_KEY=... on the machine") as caught:
        build(cfg)
    assert str(caught.value).startswith(f"the root (Service): {REFERENCE} needs")
    assert len(rejections(cfg)) == 1 and REFERENCE in outline(cfg)  # it can still be shown


def test_the_longest_secret_is_replaced_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_LONG", f"{VALUE}-and-more")
    build(fdl.Config(Service, key=REFERENCE, more="${secret:LAB_LONG}"))
    assert redacted(f"a {VALUE}-and-more {VALUE}") == f"a ${{secret:LAB_LONG}} {REFERENCE}"


@pytest.mark.parametrize("wrong", ["${secret:}", "${secret:A,d}", "x${secret:A"])
def test_what_names_no_variable_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="does not name an environment variable: write"):
        build(fdl.Config(Service, key="", more=[REFERENCE, wrong]))
