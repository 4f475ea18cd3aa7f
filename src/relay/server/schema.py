"""What comes in over HTTP: the request, its limits, and the one shape of every error.

Stateless; any thread may call it. The invariant: what gets past `inputs_of` is a list of at least one text or id list
that the relay can hash, log and compare without surprises; everything else is an `ApiError` that says which field is
wrong.
"""

from __future__ import annotations

import re
from math import ceil
from typing import Annotated, Literal

import msgspec
import numpy as np

from relay.errors import RelayError

MAX_DEPTH = 100
MAX_INPUTS = 2048

InputId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Input = str | list[int]


class EmbeddingRequest(msgspec.Struct):
    """The body of ``POST /v1/embeddings``; unknown fields are let pass."""

    input: str | list[str | InputId | list[InputId]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class ApiError(Exception):
    """An error as the client sees it.

    Args:
        status: The HTTP status.
        message: What was asked, the limit, the way out.
        type: The OpenAI word for the kind of error.
        param: The field at fault.
        code: A short word for programs.
        retry_after: Seconds after which another try may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self._error = {"message": message, "type": type, "param": param, "code": code}
        self._retry_after = retry_after

    @property
    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode({"error": self._error})

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers beyond the usual ones."""
        if self._retry_after is None:
            return []
        # Whole seconds by the standard; the OpenAI clients read the finer one first.
        return [
            (b"retry-after", b"%d" % max(1, ceil(self._retry_after))),
            (b"retry-after-ms", b"%d" % ceil(self._retry_after * 1000)),
        ]


def api_error(error: BaseException) -> ApiError:
    """What the client is told of an error that ended its request."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, RelayError):
        # The text is the model's own and may hold anything; the log has it.
        return ApiError(
            500, f"the model failed on this request ({type(error).__name__}); see the server's log", type="server_error"
        )
    status = error.http_status
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    code = error.reason or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
    return ApiError(status, str(error), type=kind, code=code, retry_after=error.retry_after)


_decoder = msgspec.json.Decoder(EmbeddingRequest)
_surrogate = re.compile(rb"\\u[dD][89a-fA-F]")
_structure = b'"[]{}'
_rest = bytes(set(range(256)) - set(_structure))


def decode(body: bytes) -> EmbeddingRequest:
    """Reads a request.

    Raises:
        ApiError: 400; it is no JSON, too deeply nested, or not of the right shape.
    """
    if _depth(body) > MAX_DEPTH:
        raise ApiError(400, f"the body is nested more than {MAX_DEPTH} levels deep; an embedding request needs 3")
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        named = re.search(r"\$\.(\w+)|field `(\w+)`", text)
        raise ApiError(400, text, param=(named[1] or named[2]) if named else None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "; a lone surrogate such as \\ud800 is no text" if _surrogate.search(body) else ""
        raise ApiError(400, f"the body is not valid JSON: {error}{hint}") from None


def _depth(body: bytes) -> int:
    """How deep arrays and objects are nested; up to the limit the number may be too high, which does no harm."""
    brackets = body.count(b"[") + body.count(b"{")
    if brackets <= MAX_DEPTH:
        return brackets
    # Escapes go first, left to right as a parser reads them; then all but quotes and brackets; then the strings.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _rest)
    codes = np.frombuffer(re.sub(rb'"[^"]*"?', b"", bare), np.uint8)
    if not codes.size:
        return 0
    steps = np.where((codes == ord("[")) | (codes == ord("{")), 1, -1)
    return int(steps.cumsum().max())


def inputs_of(request: EmbeddingRequest, model: str, dimensions: int) -> list[Input]:
    """The texts and id lists of a request, checked.

    Args:
        request: The request.
        model: The name this server answers to.
        dimensions: Of the model's vectors.

    Raises:
        ApiError: The request asks for what there is not, or holds nothing.
    """
    if request.model is not None and request.model != model:
        raise ApiError(
            404,
            f"the model {request.model[:100]!r} does not exist here; this server has {model!r}",
            param="model",
            code="model_not_found",
        )
    if request.dimensions is not None and request.dimensions != dimensions:
        raise ApiError(
            400,
            f"{model} gives {dimensions} dimensions, not {request.dimensions}; leave the field out",
            param="dimensions",
        )
    given = request.input
    if isinstance(given, str):
        inputs: list[Input] = [given]
    elif given and all(type(one) is int for one in given):
        inputs = [given]  # type: ignore[list-item]
    else:
        inputs = given  # type: ignore[assignment]
        if len({type(one) for one in given}) > 1:
            raise ApiError(400, "input mixes texts and ids; send either texts or lists of ids", param="input")
    if not inputs:
        raise ApiError(400, "input is an empty list; send at least one text", param="input")
    if len(inputs) > MAX_INPUTS:
        raise ApiError(400, f"input holds {len(inputs)} texts; at most {MAX_INPUTS} fit in a request", param="input")
    for index, one in enumerate(inputs):
        if not one and not isinstance(one, str):  # an empty text has an embedding, that of its special tokens
            raise ApiError(400, f"input[{index}] is an empty list of ids; leave it out", param="input")
    return inputs
