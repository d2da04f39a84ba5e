"""The metrics of a server, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """The metrics of a server.

    Attributes:
        registry: The registry of the metrics.
        requests: Responses, by path and status.
        seconds: Time from a request to the end of its response, by path.
        batch: Sentences per batch.
        waiting: Waiting sentences.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("dikkat_requests", "Responses", ("path", "status"), registry=registry)
        self.seconds = Histogram("dikkat_request_seconds", "Time per request", ("path",), registry=registry)
        sizes = [2**power for power in range(9)]
        self.batch = Histogram("dikkat_batch_sentences", "Sentences per batch", buckets=sizes, registry=registry)
        self.waiting = Gauge("dikkat_waiting_sentences", "Waiting sentences", registry=registry)
