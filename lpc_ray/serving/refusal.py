"""What the server answers when it does not serve: an HTTP status and OpenAI's error shape."""

import logging
from typing import Any

from lpc_ray.errors import ArtifactError, ConfigError, DataError, LPCError, PrefixNotFoundError, StorageError

logger = logging.getLogger("ray.serve")
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class Refusal(LPCError):
    """A request that is not served. status: HTTP; code: a stable word for programs; param: the field at fault.

    retry_after: seconds after which the same request may succeed (429 and 503).
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None, retry_after: int | None = None):
        super().__init__(status, code, message, param, retry_after)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after is not None else {}
        return {**headers, "WWW-Authenticate": "Bearer"} if self.status == 401 else headers


def refusal_of(error: LPCError) -> Refusal:
    """The answer that stands for an error of the library."""
    match error:
        case Refusal():
            return error
        case PrefixNotFoundError():
            return Refusal(404, "prefix_not_found", str(error))
        case ArtifactError():
            return Refusal(422, "unfit_artifact", str(error))
        case DataError() | ConfigError():
            return Refusal(400, "invalid_request", str(error))
        case StorageError():
            return Refusal(503, "storage_unavailable", str(error), retry_after=5)
        case _:
            return Refusal(500, "internal_error", str(error))


def client_refusal_of(error: LPCError) -> Refusal:
    """`refusal_of`, for a client that is to learn nothing of stores, paths and other machines; the log has it."""
    refusal = refusal_of(error)
    if isinstance(error, StorageError | ArtifactError):
        logger.error("a request was refused: %s", error)
        return Refusal(refusal.status, refusal.code, "the prefix could not be loaded", "model", refusal.retry_after)
    return refusal
