"""Exported tokenizers give transformers the same ids, and nothing beyond them is written."""

import json
from pathlib import Path

import pytest
import torch
from small_models import filled

from fidgpt.data import BPETokenizer, ByteTokenizer, Tokenizer, TokenizerFile
from fidgpt.data.tokenizers import byte_letters
from fidgpt.interop import from_hf, save_hf
from fidgpt.interop.hugging_face import tokenizer_files
from fidgpt.interop.hugging_face.settings import families

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]
TEXT = "def f(x1234):\n\t\treturn 'Übung ' + str(x)  # 12345 don't  \n\n   e\u0301nd"
QWEN = {
    **{"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 24, "vocab_size": 300},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1},
    **{"max_position_embeddings": 64, "rope_theta": 1e4, "rms_norm_eps": 1e-6},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return BPETokenizer(vocab_size=400).build([TEXT * 50, Path(__file__).read_text()])


@pytest.mark.parametrize("model_type", families())
def test_ids_are_the_same_or_the_class_that_gives_them_is_named(
    model_type: str, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    family = families()[model_type]
    tokenizer_files.write_tokenizer(tokenizer, tmp_path, seq_len=64, family=family)
    warning = capsys.readouterr().err
    loader = (
        PreTrainedTokenizerFast if "PreTrainedTokenizerFast.from_p" in warning else AutoTokenizer
    )
    theirs = loader.from_pretrained(tmp_path)
    assert theirs(TEXT, add_special_tokens=False)["input_ids"] == tokenizer.encode(TEXT)
    begun = [tokenizer.end_of_text, *tokenizer.encode(TEXT)]  # as documents begin in training
    is_same = AutoTokenizer.from_pretrained(tmp_path)(TEXT)["input_ids"] == begun
    assert is_same != bool(warning)


def test_a_tokenizer_that_splits_as_transformers_does_is_no_reason_to_warn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import Qwen2Tokenizer

    letters = {letter: number for number, letter in enumerate(byte_letters())}
    vocabulary = {**letters, "<|endoftext|>": 256, "ab": 257}
    Qwen2Tokenizer(vocab=vocabulary, merges=[("a", "b")]).save_pretrained(tmp_path)
    loaded = TokenizerFile(tmp_path / "tokenizer.json").build(())
    tokenizer_files.write_tokenizer(loaded, tmp_path, seq_len=64, family=families()["qwen2"])
    assert not capsys.readouterr().err


def test_rows_without_a_token_are_not_drawn(hub, build, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = filled(build(from_hf(str(hub(**QWEN)))))
    (tmp_path / "config.json").unlink()
    with torch.no_grad():
        model.unembedding.weight[257:] *= 100
    save_hf(model, tmp_path, seq_len=64, tokenizer=ByteTokenizer())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.config.vocab_size == 300
    tokens = torch.arange(5)[None]
    assert theirs(tokens).logits.argmax(-1)[0, -1] > 256
    for draws in (False, True):
        written = theirs.generate(tokens, max_new_tokens=8, do_sample=draws, eos_token_id=None)
        assert written[0, 5:].max() <= 256
