"""What a run's manifests say of where a prefix comes from."""

from pathlib import Path

import pytest
import torch

from lpc_ray.artifacts.store import publish, stored_manifest
from lpc_ray.config.job import load
from lpc_ray.records import Outcome, PrefixRef
from lpc_ray.run.folder import RunFolder
from lpc_ray.run.origin import Origin, origin_of
from lpc_ray.run.plan import make_plan
from lpc_ray.run.scores import keep_score
from lpc_ray.storage import Store
from lpc_ray.verification.outcomes import Answerer, OutcomeStore
from tests.tiny import tiny_identity, tiny_model

ROOT = Path(__file__).resolve().parents[2]
PROMPT = {"system": "", "thinking": False}
START = {"initializer": "first_k", "seed": 3}


def _origin(*overrides) -> Origin:
    return origin_of(make_plan(load(ROOT / "jobs/configs/pi_scale.cpu.yaml", list(overrides))))


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_traces_that_existed_make_a_reasoncache_and_induced_ones_a_cartridge():
    assert _origin().kinds == {"curated": "reasoncache", "ss": "cartridge", "raw": "cartridge"}


def test_induced_from_skills_alone_a_prefix_is_a_skill(tmp_path):
    text = "---\nname: tides\ndescription: tables\n---\n" + "The boat leaves from pier two at noon. " * 60
    (tmp_path / "skills" / "tides").mkdir(parents=True)
    for file in (tmp_path / "SKILL.md", tmp_path / "skills" / "tides" / "SKILL.md"):
        file.write_text(text)
    (tmp_path / "notes.md").write_text("Notes on boats. " * 60)
    small = "recipe.induction.families.ss.min_chunk_tokens=64"
    for source in ("SKILL.md", "skills"):
        kinds = _origin(f"recipe.source.paths=[{tmp_path / source}]", small).kinds
        assert kinds == {"curated": "reasoncache", "ss": "skill", "raw": "skill"}
    mixed = _origin(f"recipe.source.paths=[{tmp_path / 'SKILL.md'}, {tmp_path / 'notes.md'}]", small)
    assert mixed.kinds["ss"] == "cartridge"


def test_source_and_recipe_are_named_by_what_they_hold(tmp_path):
    copy = tmp_path / "another name.md"
    copy.write_bytes((ROOT / "data/demo/handbook.md").read_bytes())
    base, moved, longer = _origin(), _origin(f"recipe.source.paths=[{copy}]"), _origin("recipe.training.steps=9")
    assert base.source == moved.source == longer.source and len({base.recipe, moved.recipe, longer.recipe}) == 3
    copy.write_text(copy.read_text() + "\nAnd more.")
    assert _origin(f"recipe.source.paths=[{copy}]").source != base.source
    assert _origin("cluster.training.threads=1", f"store.url={tmp_path}") == base


def test_before_its_first_step_a_prefix_is_its_starts_whichever_arm_publishes_it():
    origin = Origin("r", "s", {"ss": "cartridge", "curated": "reasoncache"}, PROMPT)
    trained = {"induction": "ss", "objective": "kl", "arm": "a"}
    first = origin.description(START, 0, "ss", trained, {"training_seconds": 0.0})
    second = origin.description(START, 0, "curated", {**trained, "arm": "b"}, {"trace_generation_seconds": 9.0})
    assert first == second == origin.untrained(START)
    assert first == {
        "kind": "kv_prefix",
        "provenance": {"recipe": "r", "source": "s", "prompt": PROMPT, "optimizer_steps": 0, **START},
    }


def test_a_trained_prefix_names_its_recipe_source_start_traces_and_costs():
    origin = Origin("r", "s", {"ss": "cartridge", "curated": "reasoncache"}, PROMPT)
    found = origin.description(START, 8, "curated", {"traces": "t", "objective": "ntp"}, {"training_seconds": 2.5})
    assert found == {
        "kind": "reasoncache",
        "provenance": {
            "recipe": "r",
            "source": "s",
            "prompt": PROMPT,
            "optimizer_steps": 8,
            "traces": "t",
            "objective": "ntp",
            **START,
        },
        "costs": {"training_seconds": 2.5},
    }


def test_a_prefixs_scores_are_kept_in_its_manifest_and_a_prompts_nowhere(tmp_path):
    run = RunFolder(Store(str(tmp_path)))
    digest = publish(
        run.artifacts, torch.ones(3, 3, 2, 8), torch.ones(3, 3, 2, 8), tiny_identity(tiny_model()), 1
    ).digest
    outcomes = OutcomeStore(run.outcomes("p"), "p")
    prefix = Answerer(digest, prefix=PrefixRef(digest=digest, folder="f", num_tokens=3))
    for verdict, number in (("pass", 1), ("fail", 2), ("verifier_error", 3)):
        passed = int(verdict == "pass")
        found = [
            *(outcomes.get(digest, "tune") or ()),
            Outcome(f"c{number}", verdict, "", passed, 1, "", 1, 1, 0.1, "p"),
        ]
        outcomes.put(digest, "tune", found)
        outcomes.put("no_context", "tune", found)
    for answerer in (prefix, Answerer("no_context")):
        for split in ("tune", "held_out"):
            keep_score(run, answerer, split, outcomes)
    assert stored_manifest(run.artifacts, digest).verification == {"protocol": "p", "tune": {"passed": 1, "total": 2}}
