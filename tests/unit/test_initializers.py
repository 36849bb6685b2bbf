"""Initializers against direct forwards."""

import pytest
import torch

from lpc_ray.errors import ConfigError, DataError
from lpc_ray.initializers import first_k, forward_cache, initialize, random_vectors, sci, strided_rope
from lpc_ray.prefix import attach
from tests.tiny import tiny_model

MATERIAL = torch.randint(3, 97, (60,), generator=torch.Generator().manual_seed(5)).tolist()
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize("rope", ROPES)
def test_strided_rope_keys_equal_a_forward_at_the_new_positions_of_a_one_layer_model(rope):
    model = attach(tiny_model("llama", num_hidden_layers=1, rope_parameters=ROPES[rope]))
    got = strided_rope(model, MATERIAL, 12)
    indices = [int(index) for index in torch.linspace(0, 59, 12, dtype=torch.float64).floor()]
    keys, values = forward_cache(model, [MATERIAL[index] for index in indices])
    torch.testing.assert_close(got.keys, keys, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got.values, values, atol=1e-5, rtol=1e-4)


def test_strided_rope_of_the_whole_material_is_the_material_itself():
    model = attach(tiny_model())
    got, (keys, values) = strided_rope(model, MATERIAL, 60), forward_cache(model, MATERIAL)
    torch.testing.assert_close(got.keys, keys, atol=1e-5, rtol=1e-4)
    assert torch.equal(got.values, values)


def test_strided_rope_refuses_frequencies_that_depend_on_the_length():
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = attach(tiny_model("llama", rope_parameters=parameters))
    with pytest.raises(ConfigError, match="dynamic"):
        strided_rope(model, MATERIAL, 12)


def test_first_k_is_the_cache_of_the_first_tokens():
    model = attach(tiny_model())
    got, (keys, _) = first_k(model, MATERIAL, 9), forward_cache(model, MATERIAL[:9])
    assert torch.equal(got.keys, keys)


def test_sci_equals_one_forward_over_its_recorded_sequence_and_its_seed_reproduces_the_starts():
    model = attach(tiny_model())
    got, again, other = (sci(model, MATERIAL, 21, seed, 8) for seed in (7, 7, 8))
    starts = got.record["starts"]
    assert len(starts) == 3 and got.record["last_chunk_tokens"] == 5
    assert starts == again.record["starts"] != other.record["starts"]
    sequence = [token for start in starts for token in MATERIAL[start : start + 8]][:21]
    assert torch.equal(got.keys, forward_cache(model, sequence)[0])


def test_sci_repeats_a_corpus_shorter_than_its_chunk():
    got = sci(attach(tiny_model()), MATERIAL[:3], 10, 0, 8)
    assert got.keys.shape == (3, 10, 2, 8)


def test_random_vectors_match_the_deviation_of_each_layer():
    model = attach(tiny_model())
    got = random_vectors(model, MATERIAL, 50, 0)
    keys, values = forward_cache(model, MATERIAL[:50])
    for drawn, real in ((got.keys, keys), (got.values, values)):
        ratio = drawn.std(dim=(1, 2, 3)) / real.std(dim=(1, 2, 3))
        assert ((ratio > 0.85) & (ratio < 1.15)).all()


@pytest.mark.parametrize("name", ["first_k", "strided_rope"])
def test_material_shorter_than_the_prefix_is_refused(name):
    with pytest.raises(DataError, match="61"):
        initialize(name, attach(tiny_model()), MATERIAL, 61, 0)
