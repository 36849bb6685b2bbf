"""Initializers against direct forwards, float64 references and their own rules."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from lpc_ray.artifacts.handles import ARTIFACTS, set_handle
from lpc_ray.artifacts.store import publish
from lpc_ray.config.recipe import PrefixRecipe, Recipe
from lpc_ray.errors import ArtifactError, ConfigError, DataError
from lpc_ray.model.embedded import EMBEDDED_MODEL, resolve_model
from lpc_ray.prefix.attention import attach, forward_cache
from lpc_ray.prefix.initializers import (
    attention_matching,
    first_k,
    initializer_names,
    load_initializer,
    random_tokens,
    random_vectors,
    sci,
    strided_rope,
    text,
)
from lpc_ray.prefix.initializers.base import Start
from lpc_ray.prefix.matching import attention_scores, queries_behind
from lpc_ray.prefix.rope import inverse_frequencies, rerotate
from lpc_ray.prefix.starts import read_starts
from lpc_ray.storage import Store
from tests.tiny import tiny_identity, tiny_model

SOURCE = torch.randint(3, 97, (60,), generator=torch.Generator().manual_seed(5)).tolist()
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


def _published_frequencies(rope: dict, dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and the factor on cosines and sines, in float64, from the methods' own papers and releases."""
    pairs = torch.arange(0, dim, 2, dtype=torch.float64)
    base = rope["rope_theta"] ** (-pairs / dim)
    match rope["rope_type"]:
        case "default":
            return base, 1.0
        case "linear":
            return base / rope["factor"], 1.0
        case "llama3":
            turns = rope["original_max_position_embeddings"] * base / (2 * math.pi)
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            blend = ((turns - low) / (high - low)).clamp(0, 1)
            return (1 - blend) * base / rope["factor"] + blend * base, 1.0
        case "yarn":  # arXiv 2309.00071 with the release's alpha = 1, beta = 32
            original, theta = rope["original_max_position_embeddings"], rope["rope_theta"]

            def dimension(turns: float) -> float:
                return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

            low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), dim - 1)
            ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
            return ramp * base / rope["factor"] + (1 - ramp) * base, 0.1 * math.log(rope["factor"]) + 1
    raise AssertionError(rope)


@pytest.mark.parametrize("rope", ROPES)
def test_strided_rope_keys_equal_a_float64_reference(rope):
    model = attach(tiny_model("llama", num_hidden_layers=1, rope_parameters=ROPES[rope]))
    got = strided_rope.initialize(Start(model, SOURCE, 12))
    kept = [SOURCE[int(index)] for index in torch.linspace(0, 59, 12, dtype=torch.float64).floor()]
    layer = model.base_model.layers[0]
    embedded = model.get_input_embeddings().weight[kept].double()
    variance = embedded.pow(2).mean(-1, keepdim=True) + layer.input_layernorm.variance_epsilon
    states = layer.input_layernorm.weight.double() * embedded / variance.sqrt()
    unrotated = (states @ layer.self_attn.k_proj.weight.double().T).reshape(12, 2, 8)
    frequencies, factor = _published_frequencies(ROPES[rope], 8)
    angles = torch.arange(12, dtype=torch.float64)[:, None] * frequencies
    cos, sin = factor * angles.cos()[:, None], factor * angles.sin()[:, None]
    first, second = unrotated.split(4, dim=-1)
    wanted = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    torch.testing.assert_close(got.keys[0].double(), wanted, atol=1e-5, rtol=1e-4)
    values = (states @ layer.self_attn.v_proj.weight.double().T).reshape(12, 2, 8)
    torch.testing.assert_close(got.values[0].double(), values, atol=1e-5, rtol=1e-4)


def test_strided_rope_of_the_whole_source_is_the_source_itself():
    model = attach(tiny_model())
    got, (keys, values) = strided_rope.initialize(Start(model, SOURCE, 60)), forward_cache(model, SOURCE)
    torch.testing.assert_close(got.keys, keys, atol=1e-5, rtol=1e-4)
    assert torch.equal(got.values, values)


@pytest.mark.parametrize("initializer", [strided_rope, attention_matching])
def test_a_model_with_a_rope_per_layer_type_is_refused_by_name(initializer):
    with pytest.raises(ConfigError, match="gemma3_text has no RoPE of one kind"):
        initializer.initialize(Start(attach(tiny_model("gemma3_text", max_position_embeddings=512)), SOURCE, 12))


@pytest.mark.parametrize("initializer", [strided_rope, attention_matching])
@pytest.mark.parametrize(
    ("model_type", "layer"),
    [("cohere", 0), ("glm4", 0), ("helium", 0), ("ernie4_5", 0), ("smollm3", 3), ("exaone4", 3)],  # interleaved; NoPE
)
def test_a_model_whose_keys_turn_otherwise_in_any_layer_is_refused_by_name(initializer, model_type, layer):
    model = attach(tiny_model(model_type, initializer_range=0.2, num_hidden_layers=4, max_position_embeddings=512))
    with pytest.raises(ConfigError, match=f"keys of layer {layer}, .*{model_type} rotates in another way"):
        initializer.initialize(Start(model, SOURCE, 12))


@pytest.mark.parametrize("model_type", ["cohere", "glm4", "smollm3"])
def test_bfloat16_lets_no_model_through_whose_keys_turn_otherwise(model_type):
    model = attach(
        tiny_model(model_type, initializer_range=0.2, num_hidden_layers=4, max_position_embeddings=512).bfloat16()
    )
    with pytest.raises(ConfigError, match=f"{model_type} rotates in another way"):
        strided_rope.initialize(Start(model, SOURCE, 12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_rope_turns_the_default_models_keys_in_either_dtype(dtype):
    folder = resolve_model(EMBEDDED_MODEL)
    model = attach(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype))
    got, (keys, values) = strided_rope.initialize(Start(model, SOURCE, 60)), forward_cache(model, SOURCE)
    torch.testing.assert_close(got.keys, keys, atol=1e-5, rtol=1e-4)
    assert torch.equal(got.values, values) and not any(module._forward_pre_hooks for module in model.modules())


def test_first_k_is_the_cache_of_the_first_tokens():
    model = attach(tiny_model())
    got, (keys, _) = first_k.initialize(Start(model, SOURCE, 9)), forward_cache(model, SOURCE[:9])
    assert torch.equal(got.keys, keys)


def test_text_is_the_cache_of_the_given_text_and_not_of_the_source():
    model, other = attach(tiny_model()), text.Text("other.txt", SOURCE[20:])
    got = text.initialize(Start(model, [], 9, extra=other))
    assert torch.equal(got.keys, forward_cache(model, SOURCE[20:29])[0])
    assert got.record == {"initializer": "text", "text": "other.txt"}
    with pytest.raises(DataError, match="got a source of 40 tokens, wanted at least P = 41"):
        text.initialize(Start(model, [], 41, extra=other))


def _sci(model, source_ids, num_tokens, seed):
    return sci.initialize(Start(model, source_ids, num_tokens, seed, prefix=PrefixRecipe(sci_chunk_tokens=8)))


def test_sci_equals_one_forward_over_its_recorded_sequence_and_its_seed_reproduces_the_starts():
    model = attach(tiny_model())
    got, again, other = (_sci(model, SOURCE, 21, seed) for seed in (7, 7, 8))
    starts = got.record["starts"]
    assert len(starts) == 3 and got.record["last_chunk_tokens"] == 5
    assert starts == again.record["starts"] != other.record["starts"]
    sequence = [token for start in starts for token in SOURCE[start : start + 8]][:21]
    assert torch.equal(got.keys, forward_cache(model, sequence)[0])


def test_sci_repeats_a_corpus_shorter_than_its_chunk():
    got = _sci(attach(tiny_model()), SOURCE[:3], 10, 0)
    assert got.keys.shape == (3, 10, 2, 8)


def test_random_tokens_are_a_real_cache_of_tokens_that_only_the_seed_chooses():
    model = attach(tiny_model())
    got, again, other = (random_tokens.initialize(Start(model, [], 6, seed)) for seed in (0, 0, 1))
    assert torch.equal(got.keys, again.keys) and not torch.equal(got.keys, other.keys)
    first_position = torch.stack([forward_cache(model, [token])[0][0, 0] for token in range(97)])
    distance = (first_position - got.keys[0, 0]).abs().amax(dim=(1, 2))
    assert distance.min() < 1e-6


def test_random_vectors_match_the_deviation_of_each_layer():
    model = attach(tiny_model())
    got = random_vectors.initialize(Start(model, SOURCE, 50))
    keys, values = forward_cache(model, SOURCE[:50])
    for drawn, real in ((got.keys, keys), (got.values, values)):
        ratio = drawn.std(dim=(1, 2, 3)) / real.std(dim=(1, 2, 3))
        assert ((ratio > 0.85) & (ratio < 1.15)).all()


MATCHING = attention_matching.Settings(query_tokens=96, query_chunk_tokens=16)


def _matched(model, num_tokens, seed=0):
    return attention_matching.initialize(Start(model, SOURCE, num_tokens, seed, settings=MATCHING))


def _output_errors(model, start, held_out: list[int]) -> torch.Tensor:
    """Per layer, the relative error of the attention output over the prefix alone, against that over the whole cache.

    The queries stand behind the whole document, so the prefix's keys are turned to where it ends.
    """
    keys, values = forward_cache(model, SOURCE)
    seen = queries_behind(model, keys, values, held_out)
    moved = len(SOURCE) - start.keys.shape[1]
    turned = rerotate(start.keys, torch.full((start.keys.shape[1],), moved), inverse_frequencies(model, "test"))
    errors = []
    for layer in range(keys.shape[0]):
        wanted = attention_scores(keys[layer].transpose(0, 1), seen[layer]).softmax(-1) @ values[layer].transpose(0, 1)
        got = attention_scores(turned[layer].transpose(0, 1), seen[layer]).softmax(-1) @ start.values[layer].transpose(
            0, 1
        )
        errors.append((got - wanted).norm() / wanted.norm())
    return torch.stack(errors)


@pytest.mark.parametrize(("model_type", "seed"), [("llama", 0), ("qwen3", 1), ("gemma2", 2)])
def test_attention_matching_lowers_the_output_error_of_first_k_on_held_out_queries_in_every_layer(model_type, seed):
    model = attach(tiny_model(model_type, initializer_range=0.3))
    held_out = torch.randint(3, 97, (40,), generator=torch.Generator().manual_seed(99)).tolist()
    matched = _output_errors(model, _matched(model, 15, seed), held_out)
    plain = _output_errors(model, first_k.initialize(Start(model, SOURCE, 15)), held_out)
    assert (matched < 0.8 * plain).all(), (matched, plain)


def test_attention_matching_of_the_whole_document_is_its_cache():
    model = attach(tiny_model())
    got, (keys, values) = _matched(model, 60, 0), forward_cache(model, SOURCE)
    assert torch.equal(got.keys, keys) and torch.equal(got.values, values)


def test_attention_matching_keeps_the_first_token_and_each_keys_distance_to_the_prompt():
    model = attach(tiny_model())
    got, (keys, _) = _matched(model, 15, 0), forward_cache(model, SOURCE)
    turned = rerotate(got.keys, torch.full((15,), 45), inverse_frequencies(model, "test"))
    torch.testing.assert_close(turned[:, 0], keys[:, 0], atol=1e-5, rtol=1e-4)
    distance = (turned[:, :, None] - keys[:, None]).abs().amax(dim=-1)  # [L, P, N, H]
    assert distance.amin(dim=2).max() < 1e-4


def test_attention_matching_refuses_a_document_that_leaves_no_room_for_its_queries():
    settings = attention_matching.Settings(query_tokens=200)
    with pytest.raises(DataError, match="at most 56: the context less 200 queries"):
        attention_matching.initialize(Start(attach(tiny_model()), SOURCE, 12, settings=settings))


@pytest.mark.parametrize("name", ["first_k", "strided_rope", "attention_matching"])
def test_source_shorter_than_the_prefix_is_refused(name):
    model = attach(tiny_model())
    with pytest.raises(DataError, match=f"{name}: got a source of 60 tokens, wanted at least P = 61"):
        load_initializer(name).initialize(Start(model, SOURCE, 61))


def _recipe(initializer: str, **initializers) -> Recipe:
    return Recipe.model_validate(
        {
            "source": {"paths": ["doc.md"]},
            "verification": {"cases": "cases.jsonl"},
            "sweep": [{"induction": "raw", "objective": "ntp", "initializer": initializer}],
            "initializers": initializers,
        }
    )


def test_a_prefix_starts_from_an_earlier_one_of_the_same_model_and_length(tmp_path):
    model, store = attach(tiny_model()), Store(str(tmp_path))
    identity = tiny_identity(model)
    earlier = first_k.initialize(Start(model, SOURCE, 9))
    manifest = publish(store / ARTIFACTS, earlier.keys, earlier.values, identity, 1)
    set_handle(store, "earlier", manifest.digest)
    recipe = _recipe("pretrained", pretrained={"store": str(tmp_path), "handle": "earlier"})
    starts = read_starts(recipe, SOURCE, list)
    assert starts.digests == {"pretrained": manifest.digest}
    got = starts.initialize("pretrained", model, identity, 9, 0, recipe.prefix, tmp_path / "cache")
    assert torch.equal(got.keys, earlier.keys) and torch.equal(got.values, earlier.values)
    assert got.record["pretrained_from"] == manifest.digest
    with pytest.raises(ArtifactError, match="of 9 tokens, wanted exactly P = 10"):
        starts.initialize("pretrained", model, identity, 10, 0, recipe.prefix, tmp_path / "cache")
    other = tiny_identity(model, config_hash="other")
    with pytest.raises(ArtifactError, match="config_hash"):
        starts.initialize("pretrained", model, other, 9, 0, recipe.prefix, tmp_path / "cache")


def test_every_file_of_the_folder_is_an_initializer_and_an_unknown_name_gets_the_nearest():
    assert initializer_names() == [
        "attention_matching",
        "first_k",
        "pretrained",
        "random_tokens",
        "random_vectors",
        "sci",
        "strided_rope",
        "text",
    ]
    with pytest.raises(
        ConfigError, match=r"recipe\.sweep\.0\.initializer\.0: got 'frst_k', wanted .*did you mean 'first_k'"
    ):
        read_starts(_recipe("frst_k"), SOURCE, list)
    with pytest.raises(ConfigError, match=r"unknown key recipe\.initializers\.txt .*did you mean 'text'"):
        read_starts(_recipe("first_k", txt={"path": "a.txt"}), SOURCE, list)
    with pytest.raises(
        ConfigError, match=r"recipe\.initializers\.attention_matching: ridge: got 0, wanted greater than 0"
    ):
        read_starts(_recipe("first_k", attention_matching={"ridge": 0}), SOURCE, list)
