"""The handles of a server: what is kept, what survives a restart, and what the settings may change."""

import asyncio
import json
import sqlite3
import uuid
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_ray.errors import PrefixNotFoundError, StorageError
from lpc_ray.serving.refusal import Refusal
from lpc_ray.serving.registry import Registry
from lpc_ray.serving.tables import FILE, Entry, ObjectTable, SQLiteTable, open_table
from lpc_ray.storage import Store

OLD, NEW, OTHER = (Entry(letter * 32, "cartridge", 5, 100) for letter in "abc")
HANDLES = st.sampled_from(["a", "b", "c", "A-1", "x.y_z"])
ENTRIES = st.builds(
    Entry,
    digest=st.sampled_from([letter * 32 for letter in "def"]),
    kind=st.sampled_from(["cartridge", "reasoncache"]),
    num_tokens=st.integers(1, 4096),
    num_bytes=st.integers(1, 1 << 40),
)
CHANGES = st.one_of(
    st.tuples(st.just("move"), HANDLES, ENTRIES),
    st.tuples(st.just("remove"), HANDLES, st.none()),
    st.tuples(st.just("pin"), HANDLES, st.booleans()),
)


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    return Store(str(tmp_path) if request.param == "file" else f"memory://{uuid.uuid4().hex}")


def _registry(store):
    return Registry(open_table(store))


async def _change(registry, change, handle, value):
    match change:
        case "move":
            return await registry.move(handle, value)
        case "remove":
            return await registry.remove(handle)
        case "pin":
            return await registry.pin(handle, value)


def _apply(model, change, handle, value):
    """What a dictionary would do; returns what the registry should."""
    if change == "move":
        previous = model.get(handle)
        model[handle] = replace(value, pinned=previous.pinned) if previous else value
        return previous
    if handle not in model:
        return PrefixNotFoundError
    if change == "remove":
        return model.pop(handle)
    model[handle] = replace(model[handle], pinned=value)
    return model[handle]


@settings(max_examples=40, deadline=None)
@given(st.lists(CHANGES, max_size=8), st.booleans())
def test_a_registry_holds_what_a_dictionary_would_and_survives_a_restart(tmp_path_factory, changes, is_local):
    store = Store(str(tmp_path_factory.mktemp("registry")) if is_local else f"memory://{uuid.uuid4().hex}")
    registry, model = _registry(store), {}
    for change in changes:
        wanted = _apply(model, *change)
        if wanted is PrefixNotFoundError:
            with pytest.raises(PrefixNotFoundError):
                asyncio.run(_change(registry, *change))
        else:
            assert asyncio.run(_change(registry, *change)) == wanted
        again = _registry(store)
        for one in (registry, again):
            assert dict(one.entries()) == model and one.handles() == sorted(model)
            assert one.pinned() == {entry.digest for entry in model.values() if entry.pinned}
            for digest in {letter * 32 for letter in "def"}:
                assert one.names(digest) == sorted(name for name, entry in model.items() if entry.digest == digest)


def test_a_handle_that_reads_as_a_digest_is_never_loaded(store):
    registry = _registry(store)
    with pytest.raises(Refusal, match="reads as a digest") as caught:
        asyncio.run(registry.move("0" * 32, NEW))
    assert caught.value.status == 400 and not registry.entries()


def test_a_registry_that_cannot_write_stays_as_it_was(tmp_path):
    registry = _registry(Store(str(tmp_path)))
    asyncio.run(registry.move("a", OLD))
    other = sqlite3.connect(tmp_path / FILE)
    other.execute("DROP TABLE handles")
    other.commit()
    for change in (registry.move("b", NEW), registry.remove("a"), registry.pin("a", True)):
        with pytest.raises(StorageError, match=FILE):
            asyncio.run(change)
    assert dict(registry.entries()) == {"a": OLD}


def test_changes_made_at_once_are_all_kept(store):
    registry = _registry(store)

    async def all_at_once():
        await asyncio.gather(*(registry.move(f"h{number}", NEW) for number in range(40)))
        await asyncio.gather(*(registry.remove(f"h{number}") for number in range(0, 40, 2)))

    asyncio.run(all_at_once())
    assert set(_registry(store).entries()) == {f"h{number}" for number in range(1, 40, 2)}


@pytest.mark.parametrize("content", [b"not a database", b"\0" * 4096])
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    (tmp_path / FILE).write_bytes(content if content[0] else b"SQLite format 3\0" + content)
    with pytest.raises(StorageError, match=FILE):
        SQLiteTable(tmp_path / FILE).entries()


@pytest.mark.parametrize("value", [{"colour": 1}, [], {**asdict(OLD), "more": 1}])
def test_an_object_that_is_no_entry_is_refused(value):
    store = Store(f"memory://{uuid.uuid4().hex}")
    store.write_bytes("handles/a.json", json.dumps(value).encode())
    with pytest.raises(StorageError, match="handles/a.json: got no entry"):
        ObjectTable(store).entries()


def test_what_the_settings_name_is_served(store):
    registry = _registry(store)
    wanted, lines = registry.to_load({"demo": OLD.digest})
    assert wanted == {"demo": OLD.digest} and lines == []
    asyncio.run(registry.move_all({"demo": OLD}))
    asyncio.run(registry.configured({"demo": OLD.digest}))
    assert _registry(store).to_load({"demo": OLD.digest}) == ({}, [])
    assert _registry(store).to_load({"demo": NEW.digest}) == ({"demo": NEW.digest}, [])  # the run was made again


def test_what_an_admin_deleted_or_moved_stays_so_and_a_line_says_it(store):
    registry = _registry(store)
    named = {"demo": OLD.digest, "plan": OLD.digest}
    asyncio.run(registry.move_all({"demo": OLD, "plan": OLD}))
    asyncio.run(registry.configured(named))
    asyncio.run(registry.remove("demo"))
    asyncio.run(registry.move("plan", OTHER))
    wanted, lines = _registry(store).to_load(named)
    assert wanted == {}
    assert lines == [
        f"prefix demo: not served: it was deleted since the settings named {OLD.digest}",
        f"prefix plan: serves {OTHER.digest}, moved since the settings named {OLD.digest}",
    ]
    assert _registry(store).to_load({"demo": NEW.digest, "plan": NEW.digest})[0] == {
        "demo": NEW.digest,
        "plan": NEW.digest,
    }


def test_a_handle_that_an_admin_moved_to_what_the_settings_name_needs_nothing(store):
    registry = _registry(store)
    asyncio.run(registry.move("demo", OLD))
    assert registry.to_load({"demo": OLD.digest}) == ({}, [])
