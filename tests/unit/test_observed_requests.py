"""Observed requests, from what the server's own registry writes."""

import pytest
from prometheus_client import generate_latest

from lpc_ray.errors import DataError
from lpc_ray.serving.metrics import RequestMetrics
from lpc_ray.serving.observed import observed_requests


def test_answered_requests_are_summed_over_tenants_and_counted_for_each_handle_of_a_composed_one(tmp_path):
    metrics = RequestMetrics()
    for handles, tenant, status, times in (
        (["handbook"], "a", 200, 3),
        (["handbook"], "b", 200, 4),
        (["handbook"], "a", 400, 9),
        (["handbook", "faq"], "a", 200, 2),
        ([], "a", 200, 5),
    ):
        for _ in range(times):
            metrics.ended(handles, tenant, status)
    (tmp_path / "metrics.txt").write_bytes(generate_latest(metrics.registry))
    assert observed_requests(tmp_path / "metrics.txt") == {"handbook": 9, "faq": 2}


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_an_answer_saved_on_another_system_counts_the_same(tmp_path, end):
    metrics = RequestMetrics()
    for _ in range(3):
        metrics.ended(["handbook"], "a", 200)
    saved = generate_latest(metrics.registry).decode().replace("\n", end)
    (tmp_path / "metrics.txt").write_bytes(saved.encode("utf-8-sig"))
    assert observed_requests(tmp_path / "metrics.txt") == {"handbook": 3}


@pytest.mark.parametrize(
    ("text", "message"), [("a{ 1", "got no Prometheus text"), ("up 1\n", "got no lpc_requests_total")]
)
def test_a_file_that_is_no_answer_of_the_server_is_refused(tmp_path, text, message):
    (tmp_path / "metrics.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        observed_requests(tmp_path / "metrics.txt")
    with pytest.raises(DataError, match="No such file"):
        observed_requests(tmp_path / "none.txt")
