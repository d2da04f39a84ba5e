"""The counts of a server, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """The counters of one server.

    Attributes:
        registry: Of all of them.
        requests: Answers, by path and status.
        seconds: From a request to the end of its answer, by path.
        batch: Sentences that were translated together.
        waiting: Sentences that wait for their turn.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("dikkat_requests", "Answers", ("path", "status"), registry=registry)
        self.seconds = Histogram(
            "dikkat_request_seconds", "From a request to its answer's end", ("path",), registry=registry
        )
        sizes = [2**power for power in range(9)]
        self.batch = Histogram("dikkat_batch_sentences", "Translated together", buckets=sizes, registry=registry)
        self.waiting = Gauge("dikkat_waiting_sentences", "That wait for their turn", registry=registry)
