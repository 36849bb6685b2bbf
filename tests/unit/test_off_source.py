"""Both sides of a prefix: off-source damage, the publish gate, and what the artifact records of them."""

import json
import math
from dataclasses import replace

import pytest
import torch

from lpc_ray.adapters.server.source import ArtifactSource
from lpc_ray.artifacts.store import publish, read_manifest, record_verification
from lpc_ray.config.recipe import GateRecipe
from lpc_ray.errors import ArtifactError, DataError
from lpc_ray.prefix.attention import attach, forward_cache
from lpc_ray.storage import Store
from lpc_ray.verification.drift import kl_drift, text_row
from lpc_ray.verification.gate import judge, require_passed
from lpc_ray.verification.off_source import Damage, OffSourceBenchmark, damage
from lpc_ray.verification.off_source import load as load_off_source
from lpc_ray.verification.outcomes import Answerer, OutcomeStore, Verifier
from tests import tiny
from tests.replies import Scripted
from tests.tiny import tiny_model

IDENTITY = replace(tiny.IDENTITY, num_layers=2, num_kv_heads=1, head_dim=4)


@pytest.fixture
def off_source(tmp_path) -> OffSourceBenchmark:
    rows = [
        {"id": "g1", "question": "Capital of France?", "answers": ["Paris"]},
        {"id": "u1", "question": "Q?", "answers": []},
    ]
    path = tmp_path / "off_source.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_off_source(path)


def test_damage_is_told_against_the_bare_model(tmp_path, off_source):
    verifier = Verifier(off_source, OutcomeStore(Store(str(tmp_path / "run")), "p"), None, 8)
    bare = verifier.verify(Answerer("bare"), "held_out", Scripted("Paris", "I do not know"))
    with_prefix = verifier.verify(Answerer("with_prefix"), "held_out", Scripted("The map room", "It is 12"))
    found = damage(off_source, bare, with_prefix, 0.5, 40)
    assert (found.accuracy_bare, found.accuracy, found.accuracy_change) == (1, 0, -1)
    assert (found.abstention_bare, found.abstention) == (1, 0)
    assert found.words() == (
        "KL drift 0.50 nats per token, unrelated questions answered 0% (bare model 100%), "
        "unanswerable ones declined 0% (bare model 100%)"
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"id": "a", "question": "q", "answers": ["x"]}', "questions with answers and questions without"),
        ('{"id": "a", "question": "q"}', "line 1: wanted an object with id, question and answers"),
        ('{"id": "a", "question": " ", "answers": []}', "line 1: wanted texts that are not empty"),
        (
            '{"id": "a", "question": "q", "answers": []}\n{"id": "a", "question": "q", "answers": ["x"]}',
            "line 2: got id 'a' again",
        ),
        (
            '{"id": "a", "question": "The q?", "answers": []}\n{"id": "b", "question": "q", "answers": ["x"]}',
            "line 2: got question 'q' again .first on line 1",
        ),
    ],
)
def test_a_malformed_off_source_file_is_refused(tmp_path, lines, message):
    path = tmp_path / "off.jsonl"
    path.write_text(lines)
    with pytest.raises(DataError, match=message):
        load_off_source(path)


def test_drift_is_the_kl_of_transformers_own_logits_with_the_text_in_the_prompt():
    """A first_k prefix is its text: the oracle computes both distributions in plain forwards."""
    document, prompt, answer = [5, 9, 31, 44, 8, 61], [3, 17, 80], [22, 40, 7, 2]
    oracle = tiny_model("llama")
    with torch.inference_mode():
        bare = oracle(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        with_document = (
            oracle(torch.tensor([document + prompt + answer])).logits[0, -len(answer) - 1 : -1].log_softmax(-1)
        )
    wanted = torch.nn.functional.kl_div(with_document, bare, log_target=True, reduction="none").sum(-1).mean()
    model = attach(tiny_model("llama"))
    keys, values = forward_cache(model, document)
    drift, tokens = kl_drift(model, keys, values, [text_row(prompt, answer)])
    assert tokens == 4 and drift == pytest.approx(float(wanted), abs=1e-6) and drift > 1e-3


def test_gate_verdicts_name_what_stood_in_the_way(tmp_path, off_source):
    verifier = Verifier(off_source, OutcomeStore(Store(str(tmp_path / "run")), "p"), None, 8)
    bare = verifier.verify(Answerer("bare"), "held_out", Scripted("Paris", "I do not know"))
    found = damage(off_source, bare, bare, 0.25, 40)
    gate = GateRecipe(min_held_out=0.5, max_kl_drift=0.3, max_accuracy_drop=0.1, min_abstention=0.5)
    assert judge(gate, 0.5, found).passed
    assert judge(gate, 0.4, found).reasons == ("got held_out 0.4, wanted at least 0.5",)
    assert judge(GateRecipe(max_kl_drift=0.2), None, found).reasons == ("got kl_drift 0.25, wanted at most 0.2",)
    assert judge(gate, None, None).reasons[0] == "held_out was not measured, wanted at least 0.5"
    assert len(judge(gate, None, None).reasons) == 4


SHARES = [(passed, total) for total in (3, 7, 10, 24, 66) for passed in range(total + 1)]


def shares(accuracy: float, bare: float, drift: float = 0.0) -> Damage:
    return Damage(drift, 40, accuracy, bare, None, None)


@pytest.mark.parametrize("drop", [0.1, 0.2, 0.3, 0.7])
def test_a_drop_of_exactly_the_bound_passes_and_one_case_more_does_not(drop):
    """As floats 0.9 - 0.8 is less than 0.1, 1.0 - 0.9 too, and 0.8 - 0.7 and 0.4 - 0.3 are more."""
    gate, cases = GateRecipe(max_accuracy_drop=drop), round(10 * drop)
    for bare in range(cases, 11):
        assert judge(gate, None, shares((bare - cases) / 10, bare / 10)).passed
        if bare > cases:
            assert not judge(gate, None, shares((bare - cases - 1) / 10, bare / 10)).passed


def test_a_share_meets_the_bound_that_is_written_like_it():
    for passed, total in SHARES:
        assert judge(GateRecipe(min_held_out=passed / total), passed / total, None).passed
        if passed:
            assert not judge(GateRecipe(min_held_out=passed / total), (passed - 1) / total, None).passed
    assert judge(GateRecipe(max_accuracy_drop=-0.1), None, shares(0.4, 0.3)).passed


def test_a_refusal_tells_figure_and_bound_apart_and_no_drift_passes_that_is_no_number():
    verdict = judge(GateRecipe(min_held_out=0.1), 9_999 / 100_000, None)
    assert verdict.reasons == ("got held_out 0.09999, wanted at least 0.1",)
    assert judge(GateRecipe(min_held_out=0.1), 99_999 / 10**6, None).reasons[0].startswith("got held_out 0.099999,")
    for drift, reason in ((math.nan, "kl_drift was not measured"), (math.inf, "got kl_drift inf")):
        assert judge(GateRecipe(max_kl_drift=1), None, shares(1, 1, drift)).reasons[0].startswith(reason)


def test_the_gates_verdict_is_written_into_the_artifact_and_can_be_required(tmp_path):
    store = Store(str(tmp_path))
    manifest = publish(store, torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 4), IDENTITY, 1)
    with pytest.raises(ArtifactError, match="was never put to a gate"):
        require_passed(manifest, "here")
    record_verification(
        store, manifest.digest, "p", gate={"passed": False, "reasons": ["got kl_drift 2, wanted at most 1"]}
    )
    strict, open_to_all = (ArtifactSource(store, IDENTITY, require_gate) for require_gate in (True, False))
    with pytest.raises(ArtifactError, match="require_gate: prefix .* has not passed the publish gate: got kl_drift 2"):
        strict.manifest(manifest.digest)
    assert open_to_all.manifest(manifest.digest).digest == manifest.digest
    with pytest.raises(ArtifactError, match="got kl_drift 2, wanted at most 1"):
        require_passed(read_manifest(tmp_path / manifest.digest), "here")
    record_verification(store, manifest.digest, "p", gate={"passed": True, "reasons": []})
    found = read_manifest(tmp_path / manifest.digest)
    require_passed(found, "here")
    assert found.digest == manifest.digest == strict.manifest(manifest.digest).digest
