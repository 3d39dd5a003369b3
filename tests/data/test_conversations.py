"""Conversations: rows of files, chat templates, masks and packing, beside those of transformers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from fidgpt import data
from fidgpt import model as lm
from fidgpt.data.documents import encode_document

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]"]
TALK = [
    {"role": "system", "content": "Be brief, <|im_end|> or </s> or not."},
    {"role": "user", "content": "Who <|im_start|>are you? "},
    {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nNobody: \u00e9\u2603 <|im_end|>."},
    {"role": "user", "content": "And [/INST] now?"},
    {"role": "assistant", "content": "  Still nobody."},
]
PLAIN = [
    {**message, "content": re.sub(r"[<\[].*?[>\]]", "", message["content"])} for message in TALK
]
END = "<|im_end|>"
ANSWERS = [message["content"] for message in TALK if message["role"] == "assistant"]

TAGGED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGGED_WITHOUT_END = TAGGED.replace(
    "<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>"
)
# Leaves out what was thought in earlier turns, and shows an empty thought in the last one.
FORGETFUL = """
{%- for m in messages %}{%- set said = m.content.split('</think>')[-1].lstrip('\n') %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and loop.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{{- said + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
# Knows no beginning of an answer, and its end of turn is the tokenizer's end of text.
INSTRUCT = """
{{- bos_token }}{%- for m in messages %}
{%- if m.role == 'user' %}{{- '[INST] ' + m.content + ' [/INST]' }}
{%- elif m.role == 'assistant' %}{{- ' ' + m.content | trim + eos_token }}{%- endif %}
{%- endfor %}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json of 400 tokens, of which seven are special and `<think>` is added."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s?\w+|\s+|[^\s\w]+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(ANSWERS) * 3], trainer)
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    path = tmp_path_factory.mktemp("tokenizer")
    backend.save(str(path / "tokenizer.json"))
    return path


def with_settings(folder: Path, path: Path, template: str | None, **settings: Any) -> Path:
    """Copy the tokenizer, with settings of Hugging Face's beside it."""
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    settings = {"eos_token": "<|im_end|>", "bos_token": None, "chat_template": template} | settings
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def encoded(path: Path, messages: Any, **options: Any) -> tuple[Any, data.EncodedDocument]:
    tokenizer = data.ChatTokenizer(data.TokenizerFile(path / "tokenizer.json")).build(())
    reader = data.Conversations(**options)
    document = reader.document({"messages": messages}, place="talk.jsonl, line 3")
    return tokenizer, document.encode(tokenizer)


def spoken(tokenizer: Any, document: data.EncodedDocument) -> list[str]:
    """The texts of the runs of tokens that count."""
    assert document.counted is not None
    values = tokenizer.token_values()
    for name, number in tokenizer.special_ids().items():
        values[number] = name.encode()
    edges = np.flatnonzero(np.diff(document.counted.astype(int), prepend=0, append=0))
    runs = [document.tokens[a:b] for a, b in edges.reshape(-1, 2)]
    return [b"".join(values[token] for token in run).decode() for run in runs]


@pytest.mark.parametrize("template", [TAGGED, FORGETFUL, INSTRUCT])
def test_tokens_are_those_of_transformers(folder: Path, tmp_path: Path, template: str) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>"} if template == INSTRUCT else {}
    path = with_settings(folder, tmp_path / "there", template, **settings)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    made = theirs.apply_chat_template(
        PLAIN, return_dict=True, return_assistant_tokens_mask=template == TAGGED
    )
    _, ours = encoded(path, PLAIN)
    assert ours.tokens.tolist() == made["input_ids"]
    if template == TAGGED:
        assert ours.counted is not None
        assert ours.counted.astype(int).tolist() == made["assistant_masks"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TAGGED, [f"{one}<|im_end|>" for one in ANSWERS]),
        (TAGGED_WITHOUT_END, [f"{one}<|im_end|>" for one in ANSWERS]),
        (data.CHAT_TEMPLATES["chatml"], [f"{one}<|im_end|>" for one in ANSWERS]),
        (
            FORGETFUL,
            [
                f"Nobody: \u00e9\u2603 <|im_end|>.{END}",
                f"<think>\n\n</think>\n\n  Still nobody.{END}",
            ],
        ),
        (INSTRUCT, [f"{ANSWERS[0]}</s>", " Still nobody.</s>"]),
    ],
)
def test_the_answers_and_their_ends_of_turn_count(
    folder: Path, tmp_path: Path, template: str, expected: list[str]
) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>"} if template == INSTRUCT else {}
    path = with_settings(folder, tmp_path / "there", template, **settings)
    tokenizer, document = encoded(path, TALK)
    # A space in front of a word is of its token.
    assert [one.lstrip(" ") for one in spoken(tokenizer, document)] == [
        one.lstrip(" ") for one in expected
    ]
    assert tokenizer.end_of_text not in document.tokens and document.counts_end is False
    last = encoded(path, TALK, train_on="last")[1]
    assert spoken(tokenizer, last) == spoken(tokenizer, document)[-1:]
    weighted = [{**m, "weight": int(m["content"] != ANSWERS[0])} for m in TALK]
    assert spoken(*encoded(path, weighted)) == spoken(tokenizer, last)
    everything = encoded(path, TALK, train_on="all")[1]
    assert everything.counted is not None and everything.counted.all()


def test_no_message_spells_a_special_token(folder: Path, tmp_path: Path) -> None:
    path = with_settings(folder, tmp_path / "there", data.CHAT_TEMPLATES["chatml"])
    talk = [{"role": r, "content": "".join(SPECIAL)} for r in ("user", "assistant")]
    tokenizer, document = encoded(path, talk)
    special = {tokenizer.special_ids()[name] for name in SPECIAL}
    names = [SPECIAL[token] for token in document.tokens if token in special]
    assert names == ["<|im_start|>", "<|im_end|>"] * 2
    assert tokenizer.decode(document.tokens.tolist()).count("".join(SPECIAL)) == 2
    assert tokenizer.end_of_text == tokenizer.special_ids()["<|endoftext|>"]


def test_a_saved_tokenizer_keeps_template_and_ends(folder: Path, tmp_path: Path) -> None:
    path = with_settings(folder, tmp_path / "there", INSTRUCT, bos_token="<s>", eos_token="</s>")
    tokenizer = data.ChatTokenizer(data.TokenizerFile(path / "tokenizer.json")).build(())
    assert tokenizer.special_ids()["<|endoftext|>"] == tokenizer.end_of_text
    tokenizer.save(tmp_path / "tokenizer.json")
    again = data.load_tokenizer(tmp_path / "tokenizer.json")
    for name in ("chat", "end_of_text", "begin_of_text"):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).chat_template == INSTRUCT
    named = data.ByteTokenizer(special_tokens=["<|im_start|>", "<|im_end|>"])
    written = data.ChatTokenizer(named, template="chatml").build(())
    written.save(tmp_path / "tokenizer.json")
    assert data.load_tokenizer(tmp_path / "tokenizer.json").chat == written.chat


@pytest.mark.parametrize(
    ("bos", "adds", "expected"),
    [(None, False, None), ("<s>", True, "<s>"), ("<s>", False, None), ("</s>", False, "</s>")],
)
def test_texts_begin_as_the_tokenizer_says(
    folder: Path, tmp_path: Path, bos: str | None, adds: bool, expected: str | None
) -> None:
    """Llama 3 has a token of its own, Qwen none, and GPT-2 the end of text."""
    settings = {"eos_token": "</s>", "bos_token": bos, "add_bos_token": adds}
    path = with_settings(folder, tmp_path / "there", None, **settings)
    tokenizer = data.load_tokenizer(path / "tokenizer.json")
    special = tokenizer.special_ids()
    assert tokenizer.begin_of_text == (None if expected is None else special[expected])
    begin = [special["<s>"]] if expected == "<s>" else []
    assert encode_document("Nobody", tokenizer).tokens.tolist() == [
        *begin,
        *tokenizer.encode("Nobody"),
    ]
    marked = data.MarkedText("Nobody", [(0, 6)]).encode(tokenizer)
    assert marked.counted is not None
    assert marked.counted.tolist() == [False] * len(begin) + [True] * (
        len(marked.tokens) - len(begin)
    )
    layout = lm.packed_documents(
        end_of_text=tokenizer.end_of_text, begin_of_text=tokenizer.begin_of_text
    )
    end = special["</s>"]
    ctx = layout(torch.tensor([[end, 9, 8, end, 7, end]]))
    rows = [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 0, 1]]
    assert ctx.positions.tolist() == [rows[expected != "</s>"]]


FORMS: dict[str, dict[str, Any]] = {
    "messages": {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    },
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b", "tool_calls": None},
        ]
    },
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "odd": {
        "id": 7,
        "conversations": [
            {"from": "human", "text": "a", "value": None},
            {"from": "bard", "text": "b", "value": None},
        ],
    },
    "alpaca": {"instruction": "a", "input": "", "output": "b"},
    "prompt": {"prompt": "a", "completion": "b"},
    "question": {"question": "a", "answer": "b"},
    "lists": {
        "prompt": [{"role": "user", "content": "a"}],
        "completion": [{"role": "assistant", "content": "b"}],
    },
}


@pytest.mark.parametrize(
    ("form", "suffix"),
    [*((form, ".jsonl") for form in FORMS), ("alpaca", ".json"), ("messages", ".parquet")],
)
def test_rows_of_every_form_are_the_same_messages(tmp_path: Path, form: str, suffix: str) -> None:
    path, row = tmp_path / f"talk{suffix}", FORMS[form]
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row if suffix == ".jsonl" else [row], indent=None))
    (document,) = data.TextFiles(path, rows=data.Conversations()).documents()
    expected = FORMS["messages"]["messages"]
    assert isinstance(document, data.Conversation) and document.messages == expected


def test_alpacas_input_and_a_system_are_read() -> None:
    row = {"instruction": "Add.", "input": "1, 2", "output": "3", "system": "Count."}
    texts = [message["content"] for message in data.messages_of(row)]
    assert texts == ["Count.", "Add.\n\n1, 2", "3"]


A, U = {"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "a"}, r"holds no conversation, but the fields text: it needs a list messages"),
        (
            {"messages": [A, U]},
            "has roles out of order: message 1 is one of the assistant, the first",
        ),
        ({"messages": [U]}, "has no answer of an assistant"),
        ({"messages": [U, {**A, "content": " "}]}, "has an empty answer in message 2"),
        ({"messages": [U, {"role": "judge", "content": "b"}]}, "has the role 'judge' in message 2"),
        (
            {"messages": [U, {**A, "content": [{"type": "image"}]}]},
            "has more than text in message 2",
        ),
    ],
)
def test_rows_that_are_no_conversation_are_named(
    tmp_path: Path, row: dict[str, Any], expected: str
) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(f"\n{json.dumps(row)}\n")
    source = data.TextFiles(path, rows=data.Conversations())
    with pytest.raises(data.DataError, match=rf"talk\.jsonl, line 2 {expected}"):
        list(source.documents())


def test_broken_rows_are_dropped_if_asked_and_counted(tmp_path: Path) -> None:
    rows = [{"messages": one} for one in ([U, A], [A, U], [U, U, A], [U, {**A, "content": ""}])]
    rows += [{"messages": []}, {"text": "a"}]
    with pytest.raises(data.DataError, match=r"line 2 .*; broken=drop leaves all such rows out"):
        corpus(tmp_path, rows, max_tokens=48).prepare()
    split = corpus(tmp_path, rows, max_tokens=48, broken="drop").prepare().train
    assert split.num_documents == 1
    assert split.events == {
        "dropped: has roles out of order": 2,
        "dropped: has an empty answer": 1,
        "dropped: holds no conversation": 2,
    }


def test_tools_that_a_template_does_not_list_are_named(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"messages": messages}, {"messages": messages, "tools": [{"name": "get"}]}]
    with pytest.raises(data.DataError, match="line 2.*lists no tools"):
        corpus(tmp_path, rows, max_tokens=48).prepare()


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ raise_exception('no systems') }}", "the chat template refuses it: no systems"),
        ("{{ messages | length }}", r"where the answer in message 3 begins: mark answers"),
        ("<|start|>{{ messages[0].content }}", r"writes <\|start\|>, which are no special tokens"),
        ("{{ ().__class__.__base__ }}", "access to attribute '__class__'"),
        (
            "{% filter upper %}{% generation %}{{ messages[2].content }}{% endgeneration %}"
            "{% endfilter %}",
            "mark 1 answers of 2",
        ),
    ],
)
def test_templates_that_do_not_do_are_named(
    folder: Path, tmp_path: Path, template: str, expected: str
) -> None:
    path = with_settings(folder, tmp_path / "there", template)
    with pytest.raises(data.DataError, match=expected):
        encoded(path, TALK)


def test_a_tokenizer_without_a_template_needs_one(folder: Path, tmp_path: Path) -> None:
    path = with_settings(folder, tmp_path / "there", None)
    with pytest.raises(
        data.DataError, match=r"has no chat template.\nChoose one of chatml, llama3"
    ):
        encoded(path, TALK)
    spec = data.ChatTokenizer(data.ByteTokenizer(), template="llama3")
    with pytest.raises(data.DataError, match=r"(?s)<\|start_header_id\|>, .*BPETokenizer\(special"):
        spec.build(())


def corpus(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> data.Corpus:
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = ["<|im_start|>", "<|im_end|>"]
    tokenizer = data.ChatTokenizer(data.ByteTokenizer(special_tokens=names), template="chatml")
    source = data.TextFiles(path, rows=data.Conversations(**options))
    return data.Corpus(
        source, tokenizer=tokenizer, validation_fraction=0.0, cache_dir=tmp_path / "cache"
    )


@pytest.mark.parametrize("shard_tokens", [10, 10**6])
def test_what_is_too_long_is_shortened_or_dropped_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shard_tokens: int
) -> None:
    rows = [{"prompt": "a", "completion": "b" * n} for n in (3, 30, 4)]
    rows += [{"prompt": "a" * 99, "completion": "b"}]
    whole = corpus(tmp_path, rows, max_tokens=48)
    whole.shard_tokens = shard_tokens
    stream = data.TokenStream(whole, seq_len=48, batch_size=4, seed=0, packing=data.best_fit)
    stream.prepare()
    said = capsys.readouterr().err
    assert "3 documents of" in said
    assert "1 shortened to 48 tokens" in said
    assert "1 dropped: no answer within the first 48 tokens" in said
    split = whole.prepare().train
    bounds = np.concatenate([*split.document_bounds(at_once=9)])
    assert sorted(np.diff(np.unique(bounds)).tolist()) == [26, 27, 48]
    assert split.num_counted == 4 + 5 + (48 - 1 - 20)
    assert corpus(tmp_path, rows, max_tokens=48, too_long="drop").prepare().train.events == {
        "dropped: longer than 48 tokens": 2
    }
    with pytest.raises(data.DataError, match=r"line 2 has 53 tokens, more than max_tokens=48"):
        corpus(tmp_path, rows, max_tokens=48, too_long="refuse").prepare()


@pytest.mark.slow
def test_transformers_scores_a_text_with_the_same_tokens(folder: Path, tmp_path: Path) -> None:
    path = with_settings(folder, tmp_path / "there", None, bos_token="<s>", add_bos_token=True)
    backend = json.loads((path / "tokenizer.json").read_text())
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    ours = data.load_tokenizer(path / "tokenizer.json")
    assert backend["post_processor"] is None
    ids = encode_document("Still nobody.", ours).tokens.tolist()
    assert ids == [
        theirs.bos_token_id,
        *theirs("Still nobody.", add_special_tokens=False).input_ids,
    ]
