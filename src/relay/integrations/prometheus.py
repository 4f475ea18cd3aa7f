"""Prometheus: what relays and pools tell about themselves, as a collector for prometheus_client.

Any thread may scrape. Relays and pools are held weakly: one that is dropped is no longer told of. The invariant: the
series that a relay or a pool ever comes to are few, whatever its callers give as tenant or priority.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from relay import Relay, TokenPool

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MAX_TENANTS = 100
MAX_TIERS = 32
MAX_LABEL = 100
OTHER = "other"
"""The label of all tenants, or tiers, beyond the most that are told apart."""

Values = Iterable[tuple[tuple[str, ...], float]]
"""Of one metric, each with the values of its labels beyond ``name``."""
Read = Callable[[Any, "Seen"], Values]
"""Makes the values out of a snapshot."""


class Kind(NamedTuple):
    """One metric.

    Attributes:
        name: Its name; a counter's is given without ``_total``.
        text: What it says.
        read: Makes its values.
        labels: Its labels beyond ``name``.
        counter: Whether it only grows.
    """

    name: str
    text: str
    read: Read
    labels: tuple[str, ...] = ()
    counter: bool = False


class Labels:
    """The values of one label: the first few keep their own for good, the others share one.

    For good, because whatever was told once stays in Prometheus: to tell of the busiest only, always other ones, would
    be no bound.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._own: dict[str, None] = {}

    def of(self, value: object) -> str:
        """The label for a value."""
        label = _text(str(value))
        if label in self._own:
            return label
        with self._lock:
            if len(self._own) >= self._most:
                return OTHER
            self._own[label] = None
            return label

    def sums(self, parts: Mapping[Any, Any], field: str) -> Values:
        """A field of all parts, by label. A label seen before is told of with 0 while no part has it."""
        with self._lock:
            sums = dict.fromkeys(self._own, 0)
        for key, part in parts.items():
            label = self.of(key)
            sums[label] = sums.get(label, 0) + getattr(part, field)
        return (((label,), value) for label, value in sums.items())


class Seen:
    """The labels that one pool has come to."""

    def __init__(self) -> None:
        self.tiers = Labels(MAX_TIERS)
        self.tenants = Labels(MAX_TENANTS)


_Watched = dict[str, tuple[weakref.ref[Any], Seen]]


def _field(name: str) -> Read:
    read = attrgetter(name)
    return lambda now, seen: (((), read(now)),)


def _tiers(field: str) -> Read:
    return lambda now, seen: seen.tiers.sums(now.tiers, field)


def _tenants(field: str) -> Read:
    # Those that the settings name come before those that callers name.
    return lambda now, seen: seen.tenants.sums(
        dict(sorted(now.tenants.items(), key=lambda one: one[1].cap is None)), field
    )


def _caps(now: Any, seen: Seen) -> Values:
    caps = {seen.tenants.of(tenant): part.cap for tenant, part in now.tenants.items() if part.cap is not None}
    return (((label,), cap) for label, cap in caps.items() if label != OTHER)


def _quantiles(p50: float, p95: float, p99: float) -> Values:
    return ((("0.5",), p50), (("0.95",), p95), (("0.99",), p99))


def _waits(now: Any, seen: Seen) -> Values:
    return _quantiles(now.p50_wait, now.p95_wait, now.p99_wait)


def _spread(name: str) -> Read:
    read = attrgetter(name)

    def values(now: Any, seen: Seen) -> Values:
        spread = read(now)
        return _quantiles(spread.p50, spread.p95, spread.p99)

    return values


def _closed(now: Any, seen: Seen) -> Values:
    return (((what,), count) for what, count in now.closed_by.items())


def _error(now: Any, seen: Seen) -> Values:
    return () if now.prediction_error is None else (((), now.prediction_error),)


def _reasons(now: Any, seen: Seen) -> Values:
    return (((reason,), count) for reason, count in now.refused_by.items())


def _backend(now: Any, seen: Seen) -> Values:
    return (((now.backend,), 1),)


POOL = (
    Kind("relay_pool_info", "Which side of the core runs; always 1.", _backend, ("backend",)),
    Kind("relay_pool_capacity_units", "Units there are.", _field("capacity")),
    Kind("relay_pool_max_capacity_units", "The most that it can be resized to.", _field("max_capacity")),
    Kind("relay_pool_held_units", "Units held now.", _field("held")),
    Kind("relay_pool_free_units", "Units free now, reserved ones included.", _field("free")),
    Kind("relay_pool_tokens", "Tokens held now, of whatever cost.", _field("tokens")),
    Kind("relay_pool_waiting", "Callers in line now.", _field("waiting")),
    Kind("relay_pool_epoch", "The present epoch.", _field("epoch")),
    Kind("relay_pool_granted", "Tokens given out.", _field("granted"), counter=True),
    Kind("relay_pool_timed_out", "Acquires whose timeout ran out.", _field("timed_out"), counter=True),
    Kind("relay_pool_cancelled", "Acquires that were cancelled.", _field("cancelled"), counter=True),
    Kind("relay_pool_refused", "Acquires that were refused, by reason.", _reasons, ("reason",), counter=True),
    Kind("relay_pool_revoked", "Leases taken back from their holders.", _field("revoked"), counter=True),
    Kind("relay_pool_leaked", "Tokens that nobody released.", _field("leaked"), counter=True),
    Kind("relay_pool_wait_mean_seconds", "Time in line: mean.", _field("mean_wait")),
    Kind("relay_pool_wait_seconds", "Time in line: quantiles.", _waits, ("quantile",)),
    Kind("relay_pool_tier_held_units", "Units held now, by tier.", _tiers("held"), ("tier",)),
    Kind("relay_pool_tier_waiting", "Callers in line now, by tier.", _tiers("waiting"), ("tier",)),
    Kind("relay_pool_tier_reserved_units", "Units kept for a tier.", _tiers("reserved"), ("tier",)),
    Kind("relay_pool_tenant_held_units", "Units held now, by tenant.", _tenants("held"), ("tenant",)),
    Kind("relay_pool_tenant_waiting", "Callers in line now, by tenant.", _tenants("waiting"), ("tenant",)),
    Kind("relay_pool_tenant_cap_units", "The most that a tenant may hold.", _caps, ("tenant",)),
)

RELAY = (
    Kind("relay_info", "Which side of the core runs; always 1.", _backend, ("backend",)),
    Kind("relay_capacity_requests", "Requests admitted at once at most.", _field("capacity")),
    Kind("relay_admitted_requests", "Places taken now, by requests queued or running.", _field("admitted")),
    Kind("relay_queued_requests", "Requests ready to run now.", _field("queued")),
    Kind("relay_waiting", "Callers waiting for a place now.", _field("waiting")),
    Kind("relay_open_tickets", "Tickets not answered yet, merged ones included.", _field("open")),
    Kind("relay_batches", "Model calls.", _field("batches"), counter=True),
    Kind("relay_failed_batches", "Model calls that raised.", _field("failed_batches"), counter=True),
    Kind("relay_busy_seconds", "Time spent in model calls.", _field("busy"), counter=True),
    Kind("relay_run_mean_seconds", "Time of a model call, recent ones counting more.", _field("mean_run")),
    Kind("relay_items", "Requests run; a merged one counts once.", _field("items"), counter=True),
    Kind("relay_failed", "Requests that ended in an error.", _field("failed"), counter=True),
    Kind("relay_cancelled", "Requests that were cancelled.", _field("cancelled"), counter=True),
    Kind("relay_expired", "Requests whose deadline passed.", _field("expired"), counter=True),
    Kind("relay_refused", "Requests that were refused.", _field("refused"), counter=True),
    Kind("relay_merged", "Requests that shared another's run.", _field("merged"), counter=True),
    Kind("relay_hits", "Requests answered by an answer that was kept.", _field("sharing.hits"), counter=True),
    Kind("relay_misses", "Requests that could have shared an answer, and ran.", _field("sharing.misses"), counter=True),
    Kind("relay_saved_seconds", "Model time that sharing has saved.", _field("sharing.saved"), counter=True),
    Kind("relay_cache_entries", "Answers kept now.", _field("sharing.entries")),
    Kind("relay_cache_bytes", "What they cost.", _field("sharing.nbytes")),
    Kind("relay_cache_evictions", "Answers let go for want of room.", _field("sharing.evictions"), counter=True),
    Kind("relay_cache_expired", "Answers let go as too old.", _field("sharing.expired"), counter=True),
    Kind("relay_undeliverable", "Answers whose event loop had closed.", _field("undeliverable"), counter=True),
    Kind("relay_displaced", "Requests that made room for more urgent ones.", _field("displaced"), counter=True),
    Kind("relay_run_timeouts", "Requests whose model call took too long.", _field("run_timeouts"), counter=True),
    Kind("relay_non_finite", "Requests whose row had NaN or infinity.", _field("non_finite"), counter=True),
    Kind("relay_splits", "Model calls with a part of a batch that had failed.", _field("splits"), counter=True),
    Kind("relay_closed_batches", "Batches by what closed them.", _closed, ("closed_by",), counter=True),
    Kind("relay_prepare_seconds", "Time to prepare: quantiles.", _spread("prepare_time"), ("quantile",)),
    Kind("relay_queue_seconds", "Time in the queue: quantiles.", _spread("queue_time"), ("quantile",)),
    Kind("relay_batch_seconds", "Time to assemble: quantiles.", _spread("batch_time"), ("quantile",)),
    Kind("relay_run_seconds", "Time of a model call: quantiles.", _spread("run_time"), ("quantile",)),
    Kind("relay_total_seconds", "Time to the answer: quantiles.", _spread("total_time"), ("quantile",)),
    Kind("relay_batch_size", "Members of a model call: quantiles.", _spread("batch_size"), ("quantile",)),
    Kind("relay_padding_waste_ratio", "Share of padding in all batches.", _field("padding_waste")),
    Kind("relay_utilisation_ratio", "Share of time that the lanes were busy lately.", _field("utilisation")),
    Kind("relay_prediction_error_ratio", "How far predicted run times were off lately.", _error),
    Kind("relay_batch_limit", "Members of a batch at most now.", _field("limit")),
    Kind("relay_lanes", "Batches that may run at once.", _field("lanes")),
    Kind("relay_ids_hits", "Texts whose input ids were known.", _field("ids_hits"), counter=True),
    Kind("relay_ids_misses", "Texts whose input ids were not known.", _field("ids_misses"), counter=True),
    Kind("relay_ids_evictions", "Texts whose ids were dropped for others.", _field("ids_evictions"), counter=True),
    Kind("relay_ids_bytes", "Memory taken by input ids that are known.", _field("ids_bytes")),
)


class Collector:
    """Tells Prometheus of relays and pools: ``REGISTRY.register(Collector(relays=[r], pools=[gpu]))``.

    Every series has the label ``name``. A registry takes one collector: give it later relays and pools with `add`.

    Args:
        relays: Relays.
        pools: Pools.

    Raises:
        ImportError: The package of the extra ``prometheus`` is missing.
        ValueError: Two of them have one name.
    """

    def __init__(self, relays: Iterable[Relay[Any, Any]] = (), pools: Iterable[TokenPool] = ()) -> None:
        try:
            from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        except ImportError as error:
            raise ImportError(
                "a Collector needs prometheus_client: pip install 'relay-inference[prometheus]'"
            ) from error
        self._counter, self._gauge = CounterMetricFamily, GaugeMetricFamily
        self._relays: _Watched = {}
        self._pools: _Watched = {}
        self.add(relays, pools)

    def add(self, relays: Iterable[Relay[Any, Any]] = (), pools: Iterable[TokenPool] = ()) -> None:
        """Tell of more relays and pools. Arguments and errors as for the class."""
        for watched, kind, parts in (self._relays, "relay", relays), (self._pools, "pool", pools):
            for name in [name for name, (reference, _) in watched.items() if reference() is None]:
                del watched[name]
            for part in parts:
                label = _text(part.name)
                there, seen = watched.get(label, (None, Seen()))
                if there is not None and there() not in (None, part):
                    raise ValueError(
                        f"there is a {kind} named {label!r} already, whose series would be the same; "
                        "give one of them another name="
                    )
                watched[label] = weakref.ref(part), seen

    def describe(self) -> list[Metric]:
        """The metrics without values: so that a registry refuses a second collector when it is registered."""
        return [*self._metrics(RELAY, ()), *self._metrics(POOL, ())]

    def collect(self) -> Iterator[Metric]:
        """The metrics and their values; each relay and pool is looked at once."""
        for kinds, watched in (RELAY, self._relays), (POOL, self._pools):
            parts = [(name, reference(), seen) for name, (reference, seen) in list(watched.items())]
            looks = [(name, part.snapshot(), seen) for name, part, seen in parts if part is not None]
            del parts  # whoever reads the metrics slowly keeps none of them alive
            yield from self._metrics(kinds, looks)

    def _metrics(self, kinds: Iterable[Kind], looks: Iterable[tuple[str, Any, Seen]]) -> Iterator[Metric]:
        for kind in kinds:
            family = self._counter if kind.counter else self._gauge
            metric = family(kind.name, kind.text, labels=["name", *kind.labels])
            for name, now, seen in looks:
                for labels, value in kind.read(now, seen):
                    metric.add_metric([name, *labels], value)
            yield metric


def _text(value: str) -> str:
    """A label's value: of bounded length, and one that can be encoded."""
    return value[:MAX_LABEL].encode("utf-8", "replace").decode()
