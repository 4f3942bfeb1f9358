"""Every error this project raises on purpose.

    OnlineSAOError                      500  internal_error
    ├── InvalidRequestError             400  invalid_request_error   what was sent cannot be served as it is
    │   ├── InvalidScoreError           400  invalid_score
    │   ├── ContextLengthError          400  context_length_exceeded
    │   ├── UnsupportedFeatureError     400  unsupported_feature
    │   └── PayloadTooLargeError        413  payload_too_large
    ├── AuthenticationError             401  invalid_api_key
    ├── ForbiddenError                  403  forbidden               (Host or Origin not allowed)
    ├── NotFoundError                   404  not_found
    │   ├── ModelNotFoundError          404  model_not_found
    │   ├── VersionNotLoadedError       404  version_not_loaded
    │   ├── CompletionNotFoundError     404  completion_not_found
    │   └── FeedbackNotFoundError       404  feedback_not_found
    ├── ConflictError                   409  conflict
    │   └── IdempotencyConflictError    409  idempotency_conflict    (sent with x-should-retry: false)
    ├── OverloadedError                 429  server_overloaded       (sent with Retry-After)
    ├── NotReadyError                   503  not_ready               (engine still loading, database unreachable)
    │   ├── EngineError                 503  engine_error            the engine failed this request
    │   │   └── ReplicaLostError        503  engine_error            … because the process of the engine that had it ended
    │   └── StorageError                503  storage_unavailable     the database cannot be written (read-only, unreachable, too busy)
    │       └── StorageFullError        507  storage_full            the disk is full
    ├── ConfigurationError              500  configuration_error     the operator's settings cannot work; says what to change
    │   └── LeaseHeldError              500  lease_held              another live process is what this one wants to be
    ├── LifecycleError                  500  illegal_transition      a state change the transition tables forbid
    ├── PolicyStoreError                500  policy_store_error      a published version is missing or does not match its checksum
    ├── LeaseLostError                  500  lease_lost              another process took over what this one was holding
    └── RanksLostError                  500  ranks_lost              the processes of one learner are no longer together: only a new start helps

Each class carries its HTTP status and OpenAI-style ``code`` and ``type``, so that the API layer maps any of them without a table of its own.
A message says what was wrong, what was expected and, where it helps, what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class OnlineSAOError(Exception):
    """Root of the tree. ``param`` names the request field at fault, if one is; ``headers`` are sent with the HTTP answer."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = headers or {}


class InvalidRequestError(OnlineSAOError):
    status = 400
    code = "invalid_request_error"
    type = "invalid_request_error"


class InvalidScoreError(InvalidRequestError):
    code = "invalid_score"


class ContextLengthError(InvalidRequestError):
    code = "context_length_exceeded"


class UnsupportedFeatureError(InvalidRequestError):
    code = "unsupported_feature"


class PayloadTooLargeError(InvalidRequestError):
    status = 413
    code = "payload_too_large"


class AuthenticationError(OnlineSAOError):
    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class ForbiddenError(OnlineSAOError):
    status = 403
    code = "forbidden"
    type = "permission_error"


class NotFoundError(OnlineSAOError):
    status = 404
    code = "not_found"
    type = "invalid_request_error"


class ModelNotFoundError(NotFoundError):
    code = "model_not_found"


class VersionNotLoadedError(NotFoundError):
    code = "version_not_loaded"


class CompletionNotFoundError(NotFoundError):
    code = "completion_not_found"


class FeedbackNotFoundError(NotFoundError):
    code = "feedback_not_found"


class ConflictError(OnlineSAOError):
    status = 409
    code = "conflict"
    type = "invalid_request_error"


class IdempotencyConflictError(ConflictError):
    code = "idempotency_conflict"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, headers={"x-should-retry": "false"})


class OverloadedError(OnlineSAOError):
    """``retry_after`` is in seconds."""

    status = 429
    code = "server_overloaded"
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after)})


class NotReadyError(OnlineSAOError):
    status = 503
    code = "not_ready"

    def __init__(self, message: str, *, retry_after: int = 2) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after)})


class EngineError(NotReadyError):
    code = "engine_error"


class ReplicaLostError(EngineError):
    pass


class StorageError(NotReadyError):
    """Nothing of the request was kept; what was acknowledged before is."""

    code = "storage_unavailable"


class StorageFullError(StorageError):
    status = 507
    code = "storage_full"


class ConfigurationError(OnlineSAOError):
    code = "configuration_error"


class LeaseHeldError(ConfigurationError):
    code = "lease_held"


class LifecycleError(OnlineSAOError):
    code = "illegal_transition"


class PolicyStoreError(OnlineSAOError):
    code = "policy_store_error"


class LeaseLostError(OnlineSAOError):
    code = "lease_lost"


class RanksLostError(OnlineSAOError):
    code = "ranks_lost"
