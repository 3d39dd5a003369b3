"""A trained model behind HTTP: OpenAI's interface, and a page to talk to it."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fidgpt.cli.answers import Answer, AnswerThread, Assistant
from fidgpt.data.errors import DataError, import_extra

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
PAGE = Path(__file__).with_name("chat.html")
# What would change an answer, and is not built. Other fields that are not read change none.
_UNSUPPORTED = (
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "echo",
    "suffix",
    "best_of",
)
_COUNTS = ("n", "max_tokens", "max_completion_tokens")
_SETTINGS = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), float),
    "top_k": int,
}


class Server:
    """OpenAI's interface of an assistant, as an ASGI application.

    Args:
      assistant: answers.
      name: of the model.
      token: secret that callers name; None for none.
      batch_size: number of answers to write at once.
      hosts: names that callers may call this machine by.
    """

    def __init__(
        self,
        assistant: Assistant,
        *,
        name: str,
        token: str | None = None,
        batch_size: int = 16,
        hosts: Sequence[str] = ("*",),
    ) -> None:
        self._assistant = assistant
        self._name = name
        self._token = token
        self._thread = AnswerThread(assistant, batch_size=batch_size)
        self._thread.start()
        self._num_requests = 0
        self.app = self._application(hosts)

    def _application(self, hosts: Sequence[str]) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import FileResponse
        from starlette.routing import Route

        async def page(request: Any) -> Any:
            return FileResponse(PAGE)

        # A page of another site could name this machine as its own (DNS rebinding).
        trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
        routes = [
            Route("/", page),
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._respond, methods=["POST"]),
            Route("/v1/completions", self._respond, methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[trusted])

    async def _models(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        if not self._is_allowed(request):
            return _error("The token is missing or wrong.", 401)
        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "fidgpt"}
        return JSONResponse({"object": "list", "data": [model]})

    def _is_allowed(self, request: Any) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self._token is None or secrets.compare_digest(given.encode(), self._token.encode())

    async def _respond(self, request: Any) -> Any:
        from starlette.responses import JSONResponse, StreamingResponse

        if not self._is_allowed(request):
            return _error("The token is missing or wrong.", 401)
        is_chat = "chat" in request.url.path
        try:
            body = await request.json()
            answers = self._answers(body, is_chat=is_chat)
        except (ValueError, TypeError) as error:
            return _error(str(error), 400)
        self._num_requests += 1
        kind = "chat.completion" if is_chat else "text_completion"
        head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{self._num_requests}",
            "object": kind,
            "created": int(time.time()),
            "model": self._name,
        }
        pieces = self._written(answers)
        if body.get("stream"):
            head["object"] = "chat.completion.chunk" if is_chat else kind
            has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            events = _events(head, answers, pieces, is_chat=is_chat, has_usage=has_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        texts = [""] * len(answers)
        try:
            async for index, piece in pieces:
                texts[index] += piece
                if await request.is_disconnected():
                    break
        except ValueError as error:
            return _error(str(error), 500)
        finally:
            await pieces.aclose()
        choices = [
            {"index": index, "finish_reason": answer.reason, "logprobs": None}
            | ({"message": _message(text)} if is_chat else {"text": text})
            for index, (answer, text) in enumerate(zip(answers, texts, strict=True))
        ]
        return JSONResponse({**head, "choices": choices, "usage": _usage(answers)})

    def _answers(self, body: Any, *, is_chat: bool) -> list[Answer]:
        """Return the answers that a request asks for.

        Raises:
          ValueError, TypeError: it is none that can be answered.
        """
        if not isinstance(body, Mapping):
            raise ValueError("The request must be a JSON object.")
        for name in _COUNTS:
            count = body.get(name, 1)
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(f"{name}={count!r} must be a whole number from 1 on.")
        unsupported = [name for name in _UNSUPPORTED if body.get(name)]
        if (body.get("response_format") or {}).get("type", "text") != "text":
            unsupported.append("response_format")
        if unsupported:
            raise ValueError(f"{', '.join(unsupported)}: not supported; leave it out.")
        if is_chat:
            if not (isinstance(body.get("messages"), list) and body["messages"]):
                raise ValueError("The request needs a list of messages.")
            prompts = [self._assistant.conversation(body["messages"], tools=body.get("tools"))]
        else:
            texts = body.get("prompt", "")
            is_one = isinstance(texts, str) or all(isinstance(token, int) for token in texts)
            texts = [texts] if is_one else texts
            prompts = [self._assistant.text(x) if isinstance(x, str) else x for x in texts]
        stop = body.get("stop") or []
        settings: dict[str, Any] = {
            name: read(body[name]) for name, read in _SETTINGS.items() if body.get(name) is not None
        }
        seed = secrets.randbits(62) if body.get("seed") is None else int(body["seed"])
        count = body.get("n") or 1
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        return [
            self._assistant.answer(
                prompt,
                num_tokens=most,
                stop=[stop] if isinstance(stop, str) else stop,
                seed=seed + number,
                **settings,
            )
            for prompt in prompts
            for number in range(count)
        ]

    async def _written(self, answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, str]]:
        """Yield pieces of answers, with the index of each; stop them if the reader leaves."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()
        for index, answer in enumerate(answers):

            def deliver(piece: str | Exception | None, index: int = index) -> None:
                loop.call_soon_threadsafe(pieces.put_nowait, (index, piece))

            answer.deliver = deliver
            self._thread.submit(answer)
        num_ended = 0
        try:
            while num_ended < len(answers):
                index, piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise ValueError(str(piece)) from piece
                if piece is None:
                    num_ended += 1
                else:
                    yield index, piece
        finally:
            for answer in answers:
                answer.reason = answer.reason or "stop"


async def _events(
    head: Mapping[str, Any],
    answers: Sequence[Answer],
    pieces: AsyncGenerator[tuple[int, str]],
    *,
    is_chat: bool,
    has_usage: bool,
) -> AsyncIterator[str]:
    """Yield server-sent events of a streamed answer."""

    def event(choices: Sequence[Any], **more: Any) -> str:
        return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n"

    def choice(index: int, piece: str, reason: str | None = None) -> Any:
        content = {"delta": {"content": piece} if piece else {}} if is_chat else {"text": piece}
        return {"index": index, "finish_reason": reason, "logprobs": None, **content}

    try:
        if is_chat:
            for index in range(len(answers)):
                yield event([choice(index, "") | {"delta": _message("")}])
        async for index, piece in pieces:
            if piece:
                yield event([choice(index, piece)])
        for index, answer in enumerate(answers):
            yield event([choice(index, "", answer.reason)])
        if has_usage:
            yield event([], usage=_usage(answers))
        yield "data: [DONE]\n\n"
    except ValueError as error:
        yield f"data: {json.dumps({'error': {'message': str(error), 'code': 500}})}\n\n"


def _message(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _usage(answers: Sequence[Answer]) -> dict[str, int]:
    prompt = sum(answer.num_prompt for answer in answers)
    written = sum(answer.num_written for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }


def _error(message: str, status: int) -> Any:
    from starlette.responses import JSONResponse

    content = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": content}, status_code=status)


def serve(
    assistant: Assistant,
    *,
    name: str,
    host: str,
    port: int,
    token: str | None,
    batch_size: int,
) -> None:
    """Serve until interrupted. Where others can call, they need a token.

    Args:
      assistant: answers.
      name: of the model.
      host: address to bind to.
      port: 0 for a free one.
      token: secret that callers name; drawn if others can call.
      batch_size: number of answers to write at once.

    Raises:
      DataError: the packages are missing, or the address is taken.
    """
    uvicorn = import_extra("uvicorn", extra="serve", purpose="--serve")
    is_local = host in _LOOPBACK
    if token is None and not is_local:
        token = secrets.token_urlsafe(24)
    hosts = ["127.0.0.1", "localhost", "[::1]"] if is_local else ["*"]
    server = Server(assistant, name=name, token=token, batch_size=batch_size, hosts=hosts)
    config = uvicorn.Config(server.app, host=host, port=port, log_level="warning")
    try:
        listening = config.bind_socket()
    except SystemExit as error:  # it has printed why
        raise DataError(f"--port={port} of {host} cannot be used: choose another one.") from error
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}"
    print(f"{address}/{f'#{token}' if token else ''}  a page to talk to {name}")
    print(f"{address}/v1  OpenAI's interface{f'; api_key={token}' if token else ''}", flush=True)
    uvicorn.Server(config).run(sockets=[listening])
