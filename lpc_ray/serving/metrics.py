"""Prometheus figures of the three tiers and of each handle; replicas send samples, the ingress shows them all."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lpc_ray.serving.residency import HostTier

MOST_HANDLES = 10_000
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class _Handles:
    """The handles that have series; those of the least recently used go once there are more than MOST_HANDLES."""

    def __init__(self, *series: Counter | Histogram):
        self._series, self._recent = series, OrderedDict[str, None]()

    def use(self, handle: str) -> None:
        self._recent[handle] = None
        self._recent.move_to_end(handle)
        if len(self._recent) > MOST_HANDLES:
            oldest, _ = self._recent.popitem(last=False)
            for series in self._series:
                series.remove_by_labels({"handle": oldest})


class RequestMetrics:
    """What the ingress counts, in a registry of its own; handle "" is the bare model, or none that the tenant may name.

    A composed request counts for each of its handles.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["handle", "tenant"]
        self._requests = Counter("lpc_requests", "Requests ended", [*labels, "status"], registry=self.registry)
        self._ttft = Histogram(
            "lpc_ttft_seconds", "Seconds to the first event of a stream", labels, registry=self.registry,
            buckets=TTFT_BUCKETS,
        )  # fmt: skip
        self._handles = _Handles(self._requests, self._ttft)

    def ended(self, handles: Sequence[str], tenant: str, status: int) -> None:
        for handle in handles or ("",):
            self._handles.use(handle)
            self._requests.labels(handle, tenant, str(status)).inc()

    def first_event(self, handles: Sequence[str], tenant: str, seconds: float) -> None:
        for handle in handles or ("",):
            self._handles.use(handle)
            self._ttft.labels(handle, tenant).observe(seconds)


class TokenMetrics:
    """What a replica counts of each tenant's requests, whether or not their clients stayed to the end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry, labels = registry, ["handle", "tenant"]
        self._prompt = Counter("lpc_prompt_tokens", "Clients' own prompt tokens", labels, registry=registry)
        self._prefix = Counter("lpc_prefix_tokens", "Tokens served from prefixes", labels, registry=registry)
        self._completion = Counter("lpc_completion_tokens", "Generated tokens", labels, registry=registry)
        self._handles = _Handles(self._prompt, self._prefix, self._completion)

    def count(self, handle: str, tenant: str, prompt: int, prefix: int, completion: int) -> None:
        """handle: the first of a composed request's."""
        self._handles.use(handle)
        self._prompt.labels(handle, tenant).inc(prompt)
        self._prefix.labels(handle, tenant).inc(prefix)
        self._completion.labels(handle, tenant).inc(completion)


class TierMetrics(Collector):
    """The host tier's counts, and the device tier's as the connector reports them, under one set of names.

    device: hits, misses (requests whose prefix was written into blocks), evictions (misses of a prefix that had been there),
    loaded_bytes, load_seconds.
    """

    def __init__(self, host: HostTier, device: dict[str, float]):
        self._host, self._device = host, device

    def collect(self) -> Iterator[Metric]:
        counts = self._host.counts
        yield _counter("lpc_tier_hits", "Requests that found their prefix", counts.hits, self._device["hits"])
        yield _counter("lpc_tier_misses", "Requests that did not", counts.misses, self._device["misses"])
        yield _counter("lpc_tier_loaded_bytes", "Bytes brought in", counts.loaded_bytes, self._device["loaded_bytes"])
        yield _counter("lpc_tier_load_seconds", "Seconds of loading", counts.load_seconds, self._device["load_seconds"])
        evicted = "Prefixes evicted, from the device as found at their next request"
        yield _counter("lpc_tier_evictions", evicted, counts.evictions, self._device["evictions"])
        failures = CounterMetricFamily("lpc_tier_load_failures", "Loads that failed", labels=["tier"])
        failures.add_metric(["host"], counts.failures)
        yield failures
        resident = GaugeMetricFamily("lpc_tier_bytes", "Bytes resident", labels=["tier"])
        resident.add_metric(["host"], self._host.resident_bytes)
        yield resident
        limit = GaugeMetricFamily("lpc_tier_limit_bytes", "Bytes that may be resident", labels=["tier"])
        limit.add_metric(["host"], self._host.limit_bytes)
        yield limit


def _counter(name: str, help_text: str, host: float, device: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help_text, labels=["tier"])
    family.add_metric(["host"], host)
    family.add_metric(["device"], device)
    return family


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]):
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def merged(own: CollectorRegistry, by_replica: dict[str, list[Metric]]) -> bytes:
    """One page in Prometheus' text format; every sample of a replica gets the label `replica`."""
    families: dict[str, Metric] = {}
    for replica, metrics in sorted(by_replica.items()):
        for metric in metrics:
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            for sample in metric.samples:
                family.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Collected([*own.collect(), *families.values()]))
    return generate_latest(registry)
