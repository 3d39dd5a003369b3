"""Tokenizers: every text comes back exactly, and every file is understood or refused."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from forked import run_program
from tokenizers import decoders, models, pre_tokenizers

from fidgpt import data


@pytest.fixture(scope="module")
def bpe(modules: list[str]) -> data.Tokenizer:
    return data.BPETokenizer(vocab_size=600).build(modules)


@pytest.fixture(params=["bpe", "bytes"])
def tokenizer(request: pytest.FixtureRequest, bpe: data.Tokenizer) -> data.Tokenizer:
    return bpe if request.param == "bpe" else data.ByteTokenizer()


def random_texts(count: int) -> list[str]:
    """Unicode text from every plane, with much white space, control characters and code."""
    source = random.Random(0)
    alphabets = [
        [chr(n) for n in range(0x20)],
        list(" \t\n\r\v\f\x85\xa0\u2028\u3000") * 3,
        [chr(n) for n in range(0x20, 0x250)],
        list("e\u0301n\u0303\u0939\u093f\u200d\U0001f468\U0001f469\U0001f3fd\ufeff\ufffd"),
        ["    def f(x):\n", "\treturn 12345\r\n", "'s", "<|endoftext|>", "naïve", "日本語"],
        [chr(n) for n in range(0x10FFFF) if n % 997 == 0 and not 0xD800 <= n < 0xE000],
    ]
    return [
        "".join(source.choice(source.choice(alphabets)) for _ in range(source.randrange(60)))
        for _ in range(count)
    ]


@pytest.mark.slow
def test_any_unicode_text_comes_back_exactly(tokenizer: data.Tokenizer) -> None:
    texts, sizes = random_texts(400), np.array(tokenizer.token_bytes())
    for text, batched in zip(texts, tokenizer.encode_batch(texts), strict=True):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids == batched.tolist()
        assert tokenizer.end_of_text not in ids
        assert sizes[ids].sum() == len(text.encode())
    assert len(sizes) == tokenizer.vocab_size
    assert sizes[tokenizer.end_of_text] == 0


def test_streamed_text_is_the_decoded_text(tokenizer: data.Tokenizer) -> None:
    for text in ["日本語 👩🏽‍🚀 naïve", *random_texts(100)]:
        decoder = data.StreamDecoder(tokenizer)
        pieces = [decoder.push(token) for token in tokenizer.encode(text)]
        assert "\ufffd" not in "".join(pieces) or "\ufffd" in text
        assert "".join(pieces) + decoder.finish() == text


def test_the_tokenizers_library_reads_what_is_saved(bpe, modules, tmp_path):
    path = tmp_path / "tokenizer.json"
    for tokenizer in (bpe, data.ByteTokenizer()):
        tokenizer.save(path)
        library = tokenizers.Tokenizer.from_file(str(path))
        for text in modules[:10]:
            ids = tokenizer.encode(text)
            assert library.encode(text).ids == ids
            assert library.decode(ids) == text
        assert library.token_to_id("<|endoftext|>") == tokenizer.end_of_text


def test_saving_and_loading_keeps_everything(tokenizer: data.Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "a.json")
    loaded = data.load_tokenizer(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert loaded.token_values() == tokenizer.token_values()
    assert loaded.end_of_text == tokenizer.end_of_text
    texts = random_texts(50)
    assert [loaded.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]


@pytest.mark.slow
def test_training_is_the_same_in_another_process(modules: list[str], tmp_path: Path) -> None:
    """Hash seeds differ between processes, and threads race: neither may reach the merges."""
    (tmp_path / "sample.json").write_text(json.dumps(modules))
    script = f"""
import json
from fidgpt.data.tokenizers import BPETokenizer
sample = json.load(open("{tmp_path}/sample.json"))
BPETokenizer(vocab_size=700).build(sample).save("{tmp_path}/other.json")
"""
    run_program(script, folder=tmp_path)
    data.BPETokenizer(vocab_size=700).build(modules).save(tmp_path / "mine.json")
    assert (tmp_path / "mine.json").read_bytes() == (tmp_path / "other.json").read_bytes()


def test_a_small_sample_gives_a_small_vocabulary(bpe: data.Tokenizer) -> None:
    tokenizer = data.BPETokenizer(vocab_size=4096).build(["a tiny text, a tiny text"])
    assert 257 < tokenizer.vocab_size < 300
    assert tokenizer.decode(tokenizer.encode("something else é")) == "something else é"
    assert len(bpe.encode(":\n            ")) <= 2  # indentation is not spelled space by space


def test_a_vocabulary_larger_than_the_table_is_refused() -> None:
    data.check_vocab_size(data.ByteTokenizer(), vocab_size=257)
    with pytest.raises(data.DataError, match=r"257 tokens(.|\n)*vocab_size=256(.|\n)*at least 257"):
        data.check_vocab_size(data.ByteTokenizer(), vocab_size=256)


def renamed(bpe: data.Tokenizer, path: Path, *, end: str) -> Path:
    """The same tokenizer with another name for the end of text, as other programs write it."""
    bpe.save(path)
    path.write_text(path.read_text().replace("<|endoftext|>", end))
    return path


def test_an_unusual_end_of_text_is_named_once_and_kept(bpe: data.Tokenizer, tmp_path: Path) -> None:
    path = renamed(bpe, tmp_path / "theirs.json", end="<stop>")
    with pytest.raises(data.DataError, match=r"special tokens are <stop>(.|\n)*end_of_text="):
        data.TokenizerFile(path).build([])
    with pytest.raises(data.DataError, match="no token '<halt>'"):
        data.TokenizerFile(path, end_of_text="<halt>").build([])
    loaded = data.TokenizerFile(path, end_of_text="<stop>").build([])
    assert loaded.end_of_text == bpe.end_of_text
    (tmp_path / "run").mkdir()
    loaded.save(tmp_path / "run" / "tokenizer.json")
    assert data.load_tokenizer(tmp_path / "run" / "tokenizer.json").end_of_text == bpe.end_of_text


@pytest.mark.parametrize("eos", ["<stop>", {"content": "<stop>", "lstrip": False}])
def test_the_end_of_text_of_a_downloaded_model_is_found(bpe, tmp_path, eos):
    path = renamed(bpe, tmp_path / "tokenizer.json", end="<stop>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    assert data.load_tokenizer(path).end_of_text == bpe.end_of_text


def test_other_files_are_refused(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.decoder = decoders.WordPiece()
    for content, message in [
        (words.to_str().encode(), "decoder 'WordPiece'"),
        (b"[1]", "no 'model'"),
        (b'{"model": {"type": "?"}, "decoder": {"type":"ByteLevel"}}', "Cannot read"),
        (None, "No such file"),
    ]:
        path = tmp_path / f"{message.split()[0]}.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(data.DataError, match=message) as caught:
            data.load_tokenizer(path)
        assert str(path) in str(caught.value)
        assert "BPETokenizer(vocab_size" in str(caught.value)


def changed(bpe: data.Tokenizer, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The file of a tokenizer, with something else in it."""
    bpe.save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def added(content: str, **options: Any) -> Callable[[dict[str, Any]], object]:
    token = {"id": 600, "content": content, "single_word": False, "special": False} | options
    return lambda file: file["added_tokens"].append(
        {"lstrip": False, "rstrip": False, "normalized": False} | token
    )


def removing(file: dict[str, Any]) -> None:
    file["pre_tokenizer"]["pretokenizers"].insert(
        0, {"type": "Split", "pattern": {"String": "zqxj"}, "behavior": "Removed", "invert": False}
    )


def replacing(file: dict[str, Any], pattern: str = "zqxj") -> None:
    file.update(normalizer={"type": "Replace", "pattern": {"String": pattern}, "content": ""})


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "lower": (lambda file: file.update(normalizer={"type": "Lowercase"}), "normalizer Lowercase"),
    "replace": (replacing, "normalizer Replace changes texts"),
    "compatible": (lambda file: file.update(normalizer={"type": "NFKC"}), "normalizer NFKC"),
    "prefix": (
        lambda file: file["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
        "with add_prefix_space",
    ),
    "removed": (removing, "pre-tokenizer Split, which removes"),
    "added": (added("<tool>", rstrip=True), "added token '<tool>', which strips"),
    "alphabet": (
        lambda file: (
            file["model"].update(merges=[]),
            file["model"]["vocab"].pop("T"),
            file["model"]["vocab"].pop("Z"),
        ),
        r"no token for 2 bytes such as 0x54, 0x5a",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_change_texts_are_refused_by_what_changes_them(name, bpe, tmp_path: Path):
    change, message = CHANGES[name]
    with pytest.raises(data.DataError, match=f"loses text: its .*{message}"):
        data.load_tokenizer(changed(bpe, tmp_path / "tokenizer.json", change))


def test_dropout_of_merges_is_off(bpe: data.Tokenizer, tmp_path: Path) -> None:
    def drop(file: dict[str, Any]) -> None:
        file["model"]["dropout"] = 0.5

    loaded = data.load_tokenizer(changed(bpe, tmp_path / "tokenizer.json", drop))
    text = "def __init__(self) -> None:\n" * 20
    assert loaded.encode(text) == bpe.encode(text)


def test_bytes_are_those_of_the_source_where_characters_are_composed(
    bpe: data.Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(
        bpe, tmp_path / "tokenizer.json", lambda file: file.update(normalizer={"type": "NFC"})
    )
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"cafe\u0301 {number} " * 20, encoding="utf-8")
    corpus = data.Corpus(
        source=data.TextFiles(folder),
        tokenizer=data.TokenizerFile(path),
        validation_fraction=0.2,
        cache_dir=tmp_path / "cache",
    )
    prepared = corpus.prepare(show_progress=False)
    split = prepared.validation
    tokens = split.read(np.array([0]), length=split.num_tokens).tokens
    written = prepared.tokenizer.token_bytes()
    assert sum(written[token] for token in tokens[0].tolist()) < split.num_bytes
    assert prepared.token_bytes[tokens].sum().item() == pytest.approx(split.num_bytes)
    assert "changes characters" in capsys.readouterr().err
