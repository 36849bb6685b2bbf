"""Induction on local Ray: two actors share the chunks of a corpus between them, and a rerun does only what is missing."""

import hashlib
from collections import Counter

import numpy as np
import pytest
import ray

from lpc_ray.adapters.ray.engine_pool import EnginePool
from lpc_ray.adapters.ray.induction import TraceWork, cut_batches, induce
from lpc_ray.config.job import InductionResources
from lpc_ray.errors import ConfigError, StorageError
from lpc_ray.induction import build_family
from lpc_ray.induction.base import plan_units
from lpc_ray.model.chat import PromptFormat
from lpc_ray.model.embedded import EMBEDDED_MODEL
from lpc_ray.model.tokenizer import TextTokenizer
from lpc_ray.records import TOP_K, Document
from lpc_ray.storage import Store
from lpc_ray.traces.inducer import Inducer, InductionTask
from lpc_ray.traces.store import TraceStore, Written

SETTINGS = {"num_chunks": 4, "conversations_per_chunk": 3, "min_chunk_tokens": 20, "max_chunk_tokens": 40}
RESOURCES = InductionResources(actors=2, cpus=0.5, units_per_batch=3)


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def pool(cluster):
    """A scripted teacher behind the pool's own interface; slow, so that both actors get to work."""

    class ScriptedReplica:
        def __init__(self):
            self.chunks = []

        def generate(self, asks):
            import time

            from lpc_ray.records import Reply

            time.sleep(2)
            self.chunks.append(sorted({ask.messages[0]["content"] for ask in asks}))
            ids, top = (100, 200, 2), np.zeros((3, TOP_K))
            empty = np.zeros(3, np.float32)
            reply = Reply("One two.", ids, "stop", 10, empty, top.astype(np.int32), top.astype(np.float32))
            return [reply for _ in asks]

        def seen(self):
            return self.chunks

    actor = ray.remote(ScriptedReplica).options(name="scripted-0", num_cpus=0, max_concurrency=8).remote()
    yield EnginePool("scripted", 1), actor
    ray.kill(actor)


def test_two_actors_work_disjoint_chunks_whose_union_is_complete(tmp_path, pool):
    engine_pool, replica = pool
    text = " ".join(f"Locker {number} belongs to {hashlib.md5(bytes([number])).hexdigest()}." for number in range(40))
    tokenizer = TextTokenizer(EMBEDDED_MODEL)
    document = Document("d.md", text, "d" * 32)
    units = plan_units(build_family("ss", SETTINGS), "ss", [document], tokenizer.spans, "", 0)
    task, store = InductionTask("ss", SETTINGS, 0, EMBEDDED_MODEL, None, PromptFormat(""), 2048), Store(str(tmp_path))

    batches = list(induce([TraceWork("t", task, store, units)], engine_pool, RESOURCES))
    assert sum(batch.units for batch in batches) == len(units) == 12
    assert len({batch.actor for batch in batches}) == 2
    per_call = [chunk for call in ray.get(replica.seen.remote()) for chunk in call]
    # Each chunk was asked about in two calls of one actor (questions, then answers), and in no other.
    assert set(Counter(per_call).values()) == {2} and len(set(per_call)) == 4
    rows = TraceStore(store).rows()
    assert {row.unit for row in rows} == {unit.id for unit in units}
    assert len(rows) == len({row.id for row in rows}) == 12


def test_batches_hold_whole_chunks_and_every_unit_once():
    tokenizer = TextTokenizer(EMBEDDED_MODEL)
    text = " ".join(f"word{number}" for number in range(300))
    units = plan_units(build_family("ss", SETTINGS), "ss", [Document("d", text, "d")], tokenizer.spans, "", 0)
    for size in (1, 2, 3, 4, 7, 100):
        batches = cut_batches(units, size)
        assert [unit.id for batch in batches for unit in batch] == [unit.id for unit in units]
        assert all(len(batch) <= size for batch in batches)
        if size >= 3:
            homes = [{unit.chunk.digest for unit in batch} for batch in batches]
            assert sum(map(len, homes)) == len(set().union(*homes)), "a chunk was cut although it fits a batch"


def test_what_an_actor_refuses_reaches_the_user_as_it_is(tmp_path, pool):
    engine_pool, _ = pool
    settings = {**SETTINGS, "thinking_probability": 1.0}
    document = Document("d.md", "Nothing much. " * 40, "e" * 32)
    units = plan_units(build_family("ss", settings), "ss", [document], TextTokenizer(EMBEDDED_MODEL).spans, "", 0)
    task = InductionTask("ss", settings, 0, EMBEDDED_MODEL, None, PromptFormat(""), 2048)
    with pytest.raises(ConfigError, match="no switch enable_thinking"):
        list(induce([TraceWork("t", task, Store(str(tmp_path)), units[:3])], engine_pool, RESOURCES))
    assert not list(tmp_path.iterdir())


def test_actors_that_see_another_store_than_the_job_do_nothing(cluster):
    """`memory://` is a folder of each process's own, as a local path is of each node's own."""
    document = Document("d.md", "Nothing much. " * 400, "e" * 32)
    units = plan_units(build_family("raw", {}), "raw", [document], TextTokenizer(EMBEDDED_MODEL).spans, "", 0)
    task, store = InductionTask("raw", {}, 0, EMBEDDED_MODEL, None, PromptFormat(""), 2048), Store("memory://induction")
    with pytest.raises(StorageError, match=r"memory://induction: node [\d.]+ sees another folder .* object store"):
        list(induce([TraceWork("t", task, store, units)], None, RESOURCES))
    assert store.names() == []


def test_batches_report_what_they_wrote(tmp_path, cluster):
    document = Document("d.md", "Nothing much. " * 400, "e" * 32)
    units = plan_units(build_family("raw", {}), "raw", [document], TextTokenizer(EMBEDDED_MODEL).spans, "", 0)
    task, store = InductionTask("raw", {}, 0, EMBEDDED_MODEL, None, PromptFormat(""), 2048), Store(str(tmp_path))
    TraceStore(store).append(Inducer(task).rows(units[:1], lambda asks: []))
    batches = list(induce([TraceWork("t", task, store, units)], None, RESOURCES))
    reported = {unit: Written(rows, batch.node) for batch in batches for unit, rows in batch.rows.items()}
    assert reported.keys() == {unit.id for unit in units[1:]} and sum(batch.units for batch in batches) == len(units)
    TraceStore(store).check_holds([unit.id for unit in units], reported)
    [*parts] = tmp_path.glob("part-*")
    parts[-1].unlink()
    with pytest.raises(StorageError, match="missing"):
        TraceStore(store).check_holds([unit.id for unit in units], reported)
