"""How often each prefix was asked for: read from a saved answer of the server's /metrics."""

from collections import Counter
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from lpc_ray.errors import DataError
from lpc_ray.sources.text import read_text

SERIES = "lpc_requests_total"


def observed_requests(path: str | Path) -> dict[str, int]:
    """Handle → requests that ended with status 200, over all tenants; a composed request counts for each of its handles.

    Raises: DataError for a file that is missing, is no Prometheus text, or does not hold the server's counter.
    """
    try:
        text = read_text(Path(path), "served metrics")
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"served metrics {path}: got no Prometheus text ({error})") from error
    series = [sample for sample in samples if sample.name == SERIES]
    if not series:
        raise DataError(f"served metrics {path}: got no {SERIES}, wanted what the server's /metrics answers")
    found: Counter[str] = Counter()
    for sample in series:
        handle = sample.labels.get("handle")
        if handle and sample.labels.get("status") == "200":
            found[handle] += int(sample.value)
    return dict(found)
