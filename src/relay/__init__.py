"""relay: the most useful work out of AI hardware, for callers who cannot wait."""

from relay._backend import PureBackendWarning, backend
from relay.batch import Batch
from relay.batched import batched
from relay.current import CurrentBatch, current_batch
from relay.errors import (
    AcquireTimeout,
    BadOutput,
    CircuitOpen,
    Closed,
    DeadlineExceeded,
    Expired,
    LoadFailed,
    ModelError,
    NonFiniteOutput,
    Overloaded,
    Refused,
    RelayError,
    RequestCancelled,
    RunTimeout,
    StaleToken,
    TokenError,
    TokenRevoked,
    TooLarge,
)
from relay.limits import Limits
from relay.policy import (
    BATCH,
    INTERACTIVE,
    REALTIME,
    DynamicPriority,
    Facts,
    Policy,
    RoundRobin,
    StrictPriority,
    Weighted,
)
from relay.pool import Token, TokenPool
from relay.preprocess import preprocess
from relay.relay import Relay
from relay.retry import Retry
from relay.retry_budget import RetryBudget
from relay.stats import (
    HeldToken,
    Left,
    PoolSnapshot,
    RelaySnapshot,
    SharingSnapshot,
    Spread,
    TenantSnapshot,
    TierSnapshot,
)
from relay.ticket import Ticket, Timing

__version__ = "0.1.0"

__all__ = [
    "BATCH",
    "INTERACTIVE",
    "REALTIME",
    "AcquireTimeout",
    "BadOutput",
    "Batch",
    "CircuitOpen",
    "Closed",
    "CurrentBatch",
    "DeadlineExceeded",
    "DynamicPriority",
    "Expired",
    "Facts",
    "HeldToken",
    "Left",
    "Limits",
    "LoadFailed",
    "ModelError",
    "NonFiniteOutput",
    "Overloaded",
    "Policy",
    "PoolSnapshot",
    "PureBackendWarning",
    "Refused",
    "Relay",
    "RelayError",
    "RelaySnapshot",
    "RequestCancelled",
    "Retry",
    "RetryBudget",
    "RoundRobin",
    "RunTimeout",
    "SharingSnapshot",
    "Spread",
    "StaleToken",
    "StrictPriority",
    "TenantSnapshot",
    "Ticket",
    "TierSnapshot",
    "Timing",
    "Token",
    "TokenError",
    "TokenPool",
    "TokenRevoked",
    "TooLarge",
    "Weighted",
    "backend",
    "batched",
    "current_batch",
    "preprocess",
]
