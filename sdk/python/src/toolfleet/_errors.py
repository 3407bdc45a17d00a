"""Errors, by the code of the problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._common import Result


class ToolfleetError(Exception):
    """An error of this package. ``code`` is one that programs can compare."""

    code: str = "internal"


class CallFailed(ToolfleetError):
    """A call ended with another status than ok; ``result`` is how."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.status = result.status
        self.code = result.error["code"] if result.error else result.status
        message = result.error["message"] if result.error else result.text
        super().__init__(f"call {result.call_id}: {result.status}: {self.code}: {message}")


class APIError(ToolfleetError):
    """The server refused a request, or failed: an application/problem+json."""

    def __init__(self, problem: dict[str, Any], retry_after: float | None = None) -> None:
        self.problem = problem
        self.status: int = problem.get("status", 0)
        self.code = problem.get("code", "internal")
        self.detail: str = problem.get("detail", "")
        self.errors: list[dict[str, Any]] = problem.get("errors") or []
        self.retry_after = retry_after
        fields = "".join(f"; {e.get('location', '')}: {e.get('message', '')}" for e in self.errors)
        super().__init__(f"{self.code}: {self.detail}{fields}")


class Unauthorized(APIError):
    """No token, or an unknown or expired one."""


class Forbidden(APIError):
    """The principal may not do this."""


class PolicyDenied(Forbidden):
    """A policy denies the call."""


class NotFound(APIError):
    """There is no such session, call, file or other thing."""


class Exists(APIError):
    """There is one of that name already."""


class Busy(APIError):
    """The session has an open turn, or the fleet has too much to do."""


class QuotaExceeded(Busy):
    """The tenant has used up what it may use."""


class Invalid(APIError):
    """The request does not fit; ``errors`` names each field."""


class Unreachable(APIError):
    """The server, or its fleet, does not answer."""


BY_CODE: dict[str, type[APIError]] = {
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "policy_denied": PolicyDenied,
    "not_found": NotFound,
    "exists": Exists,
    "busy": Busy,
    "quota_exceeded": QuotaExceeded,
    "invalid": Invalid,
    "unreachable": Unreachable,
}


def of_problem(problem: dict[str, Any], retry_after: float | None = None) -> APIError:
    """The error of a problem."""
    return BY_CODE.get(problem.get("code", ""), APIError)(problem, retry_after)
