"""Relays and pools as Prometheus sees them: names, values, how many series there are, and who keeps whom alive."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterable
from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra prometheus")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import relay
from relay.integrations.prometheus import MAX_LABEL, MAX_TENANTS, MAX_TIERS, POOL, RELAY, Collector, Seen

if TYPE_CHECKING:
    from both import Lab

pytest_plugins = ["both"]

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(*collectors: Any) -> Series:
    """All series, as a server reads them."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    text = generate_latest(registry).decode()
    found: Series = {}
    for family in parse_text(text):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(series: Series, metric: str, **labels: str) -> float:
    return series[metric, frozenset(labels.items())]


def of(series: Series, metric: str) -> dict[str, float]:
    """The values of a metric, by its label beyond the name."""
    found = {}
    for (name, labels), number in series.items():
        if name == metric:
            (own,) = (text for label, text in labels if label != "name")
            found[own] = number
    return found


class Shown:
    """Stands for a pool that has a snapshot to show."""

    def __init__(self, name: str = "pool", **changed: Any) -> None:
        self.name = name
        self.now: dict[str, Any] = {
            "name": name, "backend": "pure", "capacity": 8, "max_capacity": 64, "held": 5, "free": 3, "tokens": 4,
            "waiting": 2, "granted": 1000, "timed_out": 11, "cancelled": 12, "refused": 13,
            "refused_by": {"queue_full": 6, "predicted_late": 7}, "revoked": 14, "leaked": 15, "epoch": 3, "qps": 7.5,
            "mean_wait": 0.25, "p50_wait": 0.125, "p95_wait": 0.5, "p99_wait": 0.75,
            "tiers": {0: SimpleNamespace(held=2, waiting=0, reserved=1)},
            "tenants": {"a": tenant(3, 1, 4)}, **changed,
        }  # fmt: skip

    def snapshot(self) -> Any:
        return relay.PoolSnapshot(**self.now)


def tenant(held: int, waiting: int, cap: int | None = None) -> Any:
    return SimpleNamespace(held=held, waiting=waiting, cap=cap)


def collector(*pools: Any) -> Collector:
    return Collector(pools=pools)


# What is told.


def test_all_of_a_pool() -> None:
    pool = Shown("gpu")
    series = scrape(collector(pool))
    expected = {
        "relay_pool_capacity_units": 8, "relay_pool_max_capacity_units": 64, "relay_pool_held_units": 5,
        "relay_pool_free_units": 3, "relay_pool_tokens": 4, "relay_pool_waiting": 2, "relay_pool_epoch": 3,
        "relay_pool_granted_total": 1000, "relay_pool_timed_out_total": 11, "relay_pool_cancelled_total": 12,
        "relay_pool_revoked_total": 14, "relay_pool_leaked_total": 15, "relay_pool_wait_mean_seconds": 0.25,
    }  # fmt: skip
    assert {name: value(series, name, name="gpu") for name in expected} == expected
    assert of(series, "relay_pool_info") == {"pure": 1}
    assert of(series, "relay_pool_refused_total") == {"queue_full": 6, "predicted_late": 7}
    assert of(series, "relay_pool_wait_seconds") == {"0.5": 0.125, "0.95": 0.5, "0.99": 0.75}
    assert of(series, "relay_pool_tier_held_units") == {"0": 2}
    assert of(series, "relay_pool_tier_waiting") == {"0": 0}
    assert of(series, "relay_pool_tier_reserved_units") == {"0": 1}
    assert of(series, "relay_pool_tenant_held_units") == {"a": 3}
    assert of(series, "relay_pool_tenant_waiting") == {"a": 1}
    assert of(series, "relay_pool_tenant_cap_units") == {"a": 4}
    assert len(series) == len(expected) + 12


def test_openmetrics_takes_it(lab: Lab) -> None:
    """Its parser refuses much that the older format lets pass."""
    registry = CollectorRegistry()
    pool, r = Shown(), lab.start(lab.model())
    registry.register(Collector([r], [pool]))  # type: ignore[list-item]
    text = generate_openmetrics(registry).decode()
    assert [family.name for family in parse_openmetrics(text)] == [kind.name for kind in (*RELAY, *POOL)]


LEFT_OUT = {
    "name",
    "refused",  # the sum over its reasons
    "qps",  # rate(relay_pool_granted_total[1m])
    "mean_batch_size",  # rate(relay_items_total[1m]) / rate(relay_batches_total[1m])
}


@pytest.mark.parametrize(("kinds", "snapshot"), [(RELAY, relay.RelaySnapshot), (POOL, relay.PoolSnapshot)])
def test_every_number_of_a_snapshot_is_told_or_left_out_on_purpose(kinds: Iterable[Any], snapshot: type) -> None:
    read: set[str] = set()

    class Reader:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            if name in ("tiers", "tenants", "refused_by", "closed_by"):
                return {}
            if name == "sharing":
                return relay.SharingSnapshot()
            return relay.Spread() if name.endswith("_time") or name == "batch_size" else 0

    for kind in kinds:
        list(kind.read(Reader(), Seen()))
    assert read | LEFT_OUT >= {field.name for field in fields(snapshot)}
    assert read <= {field.name for field in fields(snapshot)}


def test_names_follow_the_rules() -> None:
    for kind in (*POOL, *RELAY):
        assert re.fullmatch(r"relay(_pool)?(_[a-z]+)+", kind.name)
        assert kind.name.startswith("relay_pool_") is (kind in POOL)
        assert not kind.name.endswith("_total")  # a counter gets it, another metric must not have it
        assert kind.text.endswith(".") and "name" not in kind.labels


def test_a_pool(lab: Lab) -> None:
    pool = lab.TokenPool(2, name="gpu", reserved={lab.REALTIME: 1}, clock=lab.clock())
    watch = Collector(pools=[pool])
    with pool.lease(0), pytest.raises(lab.AcquireTimeout), pool.lease(2), pool.lease(2, timeout=0):
        pass
    with pool.lease(0):
        series = scrape(watch)
        for name, number in {
            "capacity_units": 2, "held_units": 1, "free_units": 1, "tokens": 1, "waiting": 0,
            "granted_total": 3, "timed_out_total": 1,
        }.items():  # fmt: skip
            assert value(series, f"relay_pool_{name}", name="gpu") == number, name
        assert of(series, "relay_pool_info") == {lab.backend: 1}
        assert of(series, "relay_pool_tier_held_units")["0"] == 1
        assert of(series, "relay_pool_tier_reserved_units")["0"] == 1
    assert of(scrape(watch), "relay_pool_tier_held_units")["0"] == 0
    pool.close()


def test_a_relay(lab: Lab) -> None:
    model = lab.model()
    r = lab.start(model, name="embedder", max_queue=16)
    watch = Collector(relays=[r])
    assert [r(i) for i in range(3)] == [0, 1, 2]
    model.fail_next(RuntimeError("no"))
    with pytest.raises(RuntimeError):
        r(3)
    lab.idle(r)
    series = scrape(watch)
    now = r.snapshot()
    for name, number in {
        "capacity_requests": 16, "admitted_requests": 0, "queued_requests": 0, "waiting": 0, "open_tickets": 0,
        "batches_total": 4, "failed_batches_total": 1, "items_total": now.items, "failed_total": 1,
        "cancelled_total": 0, "expired_total": 0, "refused_total": 0, "merged_total": 0, "undeliverable_total": 0,
        "busy_seconds_total": now.busy, "run_mean_seconds": now.mean_run,
    }.items():  # fmt: skip
        assert value(series, f"relay_{name}", name="embedder") == pytest.approx(number), name
    assert of(series, "relay_info") == {lab.backend: 1}
    names = {f"{kind.name}{'_total' * kind.counter}" for kind in RELAY}
    assert {name for name, _ in series} == names - {"relay_prediction_error_ratio"}  # nothing is predicted yet
    assert value(series, "relay_run_seconds", name="embedder", quantile="0.5") == now.run_time.p50


# How many series.


def test_h4_many_tenants_fold_into_other() -> None:
    pool = Shown(tenants={f"t{i}": tenant(1, 2) for i in range(50_000)})
    series = scrape(collector(pool))
    held, waiting = of(series, "relay_pool_tenant_held_units"), of(series, "relay_pool_tenant_waiting")
    assert len(held) == len(waiting) == MAX_TENANTS + 1
    assert (held["t0"], held["other"]) == (1, 50_000 - MAX_TENANTS)
    assert (sum(held.values()), sum(waiting.values())) == (50_000, 100_000)


def test_h4_tenants_that_come_and_go_do_not_add_up() -> None:
    pool, names, series = Shown(), set(), {}
    watch = collector(pool)
    for round_ in range(30):
        pool.now["tenants"] = {f"{round_}-{i}": tenant(1, 0) for i in range(10)}
        pool.now["tiers"] = {(round_ * 5 + i) % 256: SimpleNamespace(held=1, waiting=0, reserved=0) for i in range(10)}
        series = scrape(watch)
        names |= set(series)
    assert len(names) <= 1000
    held = of(series, "relay_pool_tenant_held_units")
    assert (len(held), held["0-0"], held["other"]) == (MAX_TENANTS + 1, 0, 10)  # those that went stay, with 0
    assert len(of(series, "relay_pool_tier_held_units")) == MAX_TIERS + 1


def test_tenants_of_the_settings_come_first() -> None:
    tenants = {f"t{i}": tenant(1, 0) for i in range(200)}
    tenants["known"] = tenant(2, 0, cap=5)
    pool = Shown(tenants=tenants)
    series = scrape(collector(pool))
    assert of(series, "relay_pool_tenant_held_units")["known"] == 2
    assert of(series, "relay_pool_tenant_cap_units") == {"known": 5}


def test_a_tenant_named_other_and_caps_of_the_others() -> None:
    tenants = {f"t{i}": tenant(1, 0, cap=2) for i in range(MAX_TENANTS)}
    pool = Shown(tenants={**tenants, "other": tenant(4, 0, cap=9), "more": tenant(8, 0, cap=9)})
    series = scrape(collector(pool))
    assert of(series, "relay_pool_tenant_held_units")["other"] == 12
    assert "other" not in of(series, "relay_pool_tenant_cap_units")  # the others have no cap together


def test_h3_names_that_are_odd() -> None:
    odd = {"\ud800": tenant(1, 0, 1), "?": tenant(2, 0, 1), 'a"b\\c\nd\0': tenant(3, 0), "\U0001f600": tenant(4, 0)}
    long = "x" * 1000
    pool = Shown("\udc00" + long, tenants={**odd, long + "1": tenant(5, 0), long + "2": tenant(6, 0)})
    series = scrape(collector(pool))
    held = of(series, "relay_pool_tenant_held_units")
    assert held == {"?": 3, 'a"b\\c\nd\0': 3, "\U0001f600": 4, "x" * MAX_LABEL: 11}
    assert value(series, "relay_pool_tokens", name=("?" + long)[:MAX_LABEL]) == 4


# Who is watched.


def test_dropped_ones_are_neither_kept_nor_told_of(lab: Lab) -> None:
    pool, r = lab.TokenPool(1, name="gpu"), lab.Relay(lab.model(), name="embedder")
    watch = Collector([r], [pool])
    assert {name for name, labels in scrape(watch)} >= {"relay_pool_tokens", "relay_batches_total"}
    metrics = watch.collect()
    next(metrics)  # somebody has begun to read
    pool.close()
    r.close()
    del pool, r
    gc.collect()
    list(metrics)
    assert scrape(watch) == {}
    watch.add(pools=[again := lab.TokenPool(3, name="gpu")])  # the name is free
    assert value(scrape(watch), "relay_pool_capacity_units", name="gpu") == 3
    again.close()


def test_names_must_differ(lab: Lab) -> None:
    one, two, other = lab.TokenPool(1), lab.TokenPool(1), lab.TokenPool(2, name="other")
    with pytest.raises(ValueError, match="pool named 'pool' already.*another name="):
        Collector(pools=[one, two])
    watch = Collector(pools=[one])
    watch.add(pools=[other])
    watch.add(pools=[one])  # again, which changes nothing
    with pytest.raises(ValueError, match="another name="):
        watch.add(pools=[two])
    watch.add(relays=[r := lab.start(lab.model(), name="pool")])  # that is another metric
    series = scrape(watch)
    assert value(series, "relay_pool_capacity_units", name="other") == 2
    assert value(series, "relay_capacity_requests", name="pool") == r.limits.max_queue
    for pool in (one, two, other):
        pool.close()


def test_added_again_it_keeps_its_labels() -> None:
    pool = Shown()
    watch = collector(pool)
    scrape(watch)
    pool.now["tenants"] = {}
    watch.add(pools=[pool])  # type: ignore[list-item]
    assert of(scrape(watch), "relay_pool_tenant_held_units") == {"a": 0}


def test_a_registry_takes_one(lab: Lab) -> None:
    registry = CollectorRegistry()
    registry.register(Collector())
    with pytest.raises(ValueError, match="relay_pool_tokens"):
        registry.register(Collector(pools=[lab.TokenPool(1)]))
    assert [family.name for family in registry.collect()] == [kind.name for kind in (*RELAY, *POOL)]


def test_scrapes_from_many_threads() -> None:
    pool = Shown(tenants={f"t{i}": tenant(1, 0) for i in range(500)})
    watch = collector(pool)
    start = threading.Barrier(4)
    results: list[Series] = []

    def read() -> None:
        start.wait(30)
        results.append(scrape(watch))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 4
    assert all(len(of(series, "relay_pool_tenant_held_units")) == MAX_TENANTS + 1 for series in results)
    assert all(sum(of(series, "relay_pool_tenant_held_units").values()) == 500 for series in results)


def test_without_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(ImportError, match=r"relay-inference\[prometheus\]"):
        Collector()
