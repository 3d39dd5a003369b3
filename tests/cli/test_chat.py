"""The command `chat` on a run of one step: in the terminal, behind HTTP, and in a browser."""

import io
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from absl import flags
from absl.testing import flagsaver
from graph.browser import find_browser

from fidgpt.cli import chat
from fidgpt.cli.answers import Assistant

from .conftest import Command

pytestmark = [pytest.mark.slow(10), pytest.mark.xdist_group("chat")]

ASKED = [{"role": "user", "content": "What follows 7?"}]
GREEDY = {"temperature": 0.0, "max_tokens": 6}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model sees 128 tokens of the ChatML template."""
    directory = tmp_path_factory.mktemp("chat") / "run"
    words = ["config:debug", "fiddler:use_chat_template(chatml)", "set:seq_len=128"]
    words += ["set:num_steps=1", "set:samples=None"]
    changes = [f"--config={word}" for word in words]
    line = [sys.executable, "-m", "fidgpt.cli.train", *changes, f"--run_dir={directory}"]
    subprocess.run(line, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def assistant(talker: Path) -> Iterator[Assistant]:
    with flagsaver.flagsaver():
        flags.FLAGS.mark_as_parsed()
        yield Assistant(talker, float32=True, settings={})
    flags.FLAGS.unparse_flags()


@pytest.fixture(scope="module")
def address(assistant: Assistant) -> Iterator[str]:
    """Of a server with a page that drives itself at `/driven`."""
    uvicorn = pytest.importorskip("uvicorn")
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

    from fidgpt.cli import serve

    async def driven(request: Any) -> Any:
        return HTMLResponse(serve.PAGE.read_text(encoding="utf-8") + DRIVER)

    async def wait(request: Any) -> Any:  # the browser's clock stands still meanwhile
        return Response(str(await _sleep(0.1)))

    hosts = ["127.0.0.1"]
    application = serve.Server(assistant, name="run", token="secret", hosts=hosts).app
    application.router.routes.extend([Route("/driven", driven), Route("/wait", wait)])
    config = uvicorn.Config(application, port=0, log_level="warning")
    server, listening = uvicorn.Server(config), config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    import httpx

    headers = {"Authorization": "Bearer secret"}
    with httpx.Client(base_url=f"{address}/v1", headers=headers, timeout=100) as client:
        yield client


def test_a_conversation_in_the_terminal(
    command: Command, talker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["Hi", "/history", "/temperature 0", "/temperature warm", "/system Be short.", "Hi"]
    lines += ["/history", "/reset", "/history", "/what", "x" * 200, "/quit", "never read"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    status, out, err = command(chat.main, str(talker), "--num_tokens=3", "--float32")
    assert (status, err) == (0, "")
    assert "user: Hi\nassistant: " in out
    assert "temperature=0.0\ntemperature=warm must be a number from 0 on.\nA new conv" in out
    assert out.count("system: Be short.") == 2  # it stays after /reset
    assert "There is no /what.\n/system TEXT" in out
    assert "tokens, and the model sees 128, with the answer: begin a new one" in out
    assert "never read" not in out
    assert "without --serve" in command(chat.main, str(talker), "--port=1").err


def test_an_empty_answer_and_settings_beside_the_weights(
    command: Command, talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(talker, tmp_path / "run")
    # Of Gemma 3, whose temperature is the default of transformers; and each token ends an answer.
    settings = {"do_sample": True, "top_k": 64, "top_p": 0.95, "eos_token_id": list(range(259))}
    (directory / "generation_config.json").write_text(json.dumps(settings))
    lines = ["Hi", "/history", "/temperature", "Hi"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    status, out, err = command(chat.main, str(directory), "--float32")
    assert (status, err) == (0, "")
    assert out == "\n\ntemperature=1.0\n\n"  # a template takes no empty answer: none is kept


def test_a_model_without_a_template_says_so(command: Command, run: str) -> None:
    status, _, err = command(chat.main, run)
    assert status == 2
    assert "The tokenizer has no chat template.\nChoose one of chatml, llama3, nanochat" in err


def test_a_prompt_is_as_in_training_and_its_next_turn_reads_only_the_rest(
    assistant: Assistant,
) -> None:
    tokens = assistant.conversation(ASKED)
    text = "<|im_start|>user\nWhat follows 7?<|im_end|>\n<|im_start|>assistant\n"
    ids = {"<|im_start|>": 257, "<|im_end|>": 258}
    assert tokens[0] == 256  # the end of text, behind which each document begins
    assert len(tokens) == 1 + len(text) - sum(map(len, ids)) - len("<|im_start|>") + 3
    assert [token for token in tokens if token > 256] == [257, 258, 257]
    before = assistant.num_read
    answer = assistant.answer(tokens, num_tokens=5, temperature=0.0)
    said = "".join(assistant.write(answer))
    assert assistant.num_read - before == len(tokens)
    asked = [*ASKED, {"role": "assistant", "content": "7"}, ASKED[0]]
    again = assistant.conversation(asked)
    list(assistant.write(assistant.answer(again, num_tokens=2)))
    assert assistant.num_read - before == len(again)  # the first prompt was not read again
    assert isinstance(said, str)


def test_answers_of_many_callers_are_those_of_one(client: Any) -> None:
    def ask(number: int) -> Any:
        asked = [{"role": "user", "content": "x" * number}]
        content = {"messages": asked, "temperature": 0, "max_tokens": 4 + number}
        return client.post("/chat/completions", json=content).json()

    alone = [ask(number) for number in range(1, 7)]
    with ThreadPoolExecutor(6) as callers:
        together = list(callers.map(ask, range(1, 7)))
    for one, other in zip(alone, together, strict=True):
        assert one["choices"] == other["choices"]
        assert one["usage"] == other["usage"]
        assert one["usage"]["completion_tokens"] <= 10


def test_streamed_text_is_the_whole_text(address: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{address}/v1", api_key="secret") as caller:
        assert [model.id for model in caller.models.list()] == ["run"]
        chats, greedy = caller.chat.completions, {"model": "run", "messages": ASKED, **GREEDY}
        whole = chats.create(**greedy, n=2)
        assert [choice.index for choice in whole.choices] == [0, 1]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *parts, last = chats.create(**greedy, **options)
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text == whole.choices[0].message.content
        assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
        sampled = {"model": "run", "max_tokens": 3, "seed": 1}
        texts = caller.completions.create(prompt=["def ", "class "], **sampled)
        assert len(texts.choices) == 2
        streamed = caller.completions.create(prompt="def ", stream=True, **sampled)
        assert "".join(part.choices[0].text for part in streamed) == texts.choices[0].text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"messages": "Hi"}, "needs a list of messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "has roles out of order"),
        ({"messages": []}, "needs a list of messages"),
        ({"messages": ASKED, "max_tokens": "4"}, "max_tokens='4' must be a whole number"),
        ({"messages": ASKED, "max_tokens": 0}, "max_tokens=0 must be a whole number from 1 on."),
        ({"messages": ASKED, "logprobs": True}, "logprobs: not supported"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "the model sees 128"),
    ],
)
def test_what_cannot_be_answered_is_refused(client: Any, content: Any, message: str) -> None:
    response = client.post("/chat/completions", json=content)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_others_have_no_answer(client: Any) -> None:
    response = client.get("/models", headers={"Authorization": "Bearer other"})
    assert response.status_code == 401
    assert client.get("/models", headers={"Host": "example.org"}).status_code == 400


DRIVER = """
<script>setTimeout(async () => {
  for (const text of ["What follows 7?", "<b>8</b>", "x".repeat(300)]) {
    get("text").value = text;
    get("form").requestSubmit();
    while (stopping) await fetch("/wait");
  }
  document.title = "driven";
}, 100);</script>
"""


def test_the_page_in_a_browser(address: str, tmp_path: Path) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options += ["--virtual-time-budget=20000", f"--user-data-dir={tmp_path}"]
    line = [find_browser(), *options, f"{address}/driven#secret"]
    page = subprocess.run(line, capture_output=True, text=True, timeout=200, check=True).stdout
    assert "<title>driven</title>" in page
    shown = page.partition("<main")[2].partition("</main>")[0]
    assert shown.count('<div class="user">') == 3
    assert shown.count('<div class="assistant">') in (1, 2)  # one may be empty
    assert "&lt;b&gt;8&lt;/b&gt;" in shown
    assert '<div class="error">The conversation has' in shown
