"""What initializers start from: settings that are missing, too short or of another length are refused before any work."""

import pytest

from lpc_ray.artifacts.handles import set_handle
from lpc_ray.config.recipe import Recipe
from lpc_ray.errors import ConfigError, DataError, PrefixNotFoundError
from lpc_ray.prefix.starts import read_starts
from lpc_ray.records import Document
from lpc_ray.run.arms import arms
from lpc_ray.storage import Store

DIGEST = "d" * 32


def _recipe(initializer, **initializers) -> Recipe:
    return Recipe.model_validate(
        {
            "source": {"paths": ["doc.md"]},
            "verification": {"cases": "cases.jsonl"},
            "induction": {"families": {"raw": {}}},
            "sweep": [{"induction": "raw", "objective": "ntp", "initializer": initializer, "num_tokens": 4}],
            "initializers": initializers,
        }
    )


def _arm_id(recipe: Recipe) -> str:
    starts = read_starts(recipe, list(range(9)), lambda text: list(text.encode()))
    [arm] = arms(recipe, [Document("doc.md", "text", "digest")], 9, starts.digests)
    return arm.id


def _earlier(tmp_path, num_tokens=4):
    store = Store(str(tmp_path))
    store.write_json(f"artifacts/{DIGEST}/lpc.json", {"num_tokens": num_tokens})
    set_handle(store, "earlier", DIGEST)
    return {"store": str(tmp_path), "handle": "earlier"}


@pytest.mark.parametrize("initializer", ["text", "pretrained"])
def test_an_initializer_in_use_without_its_settings_is_refused(initializer):
    with pytest.raises(ConfigError, match=f"recipe.initializers.{initializer}: missing"):
        read_starts(_recipe(initializer), [1, 2], list)
    with pytest.raises(ConfigError, match=f"recipe.initializers.{initializer}: missing"):
        read_starts(_recipe("first_k", training_free=[initializer]), [1, 2], list)


def test_settings_that_no_arm_uses_are_not_read():
    starts = read_starts(_recipe("first_k", text={"path": "nowhere.txt"}), [1, 2], list)
    assert starts.extras == {} and starts.digests == {}


def test_arm_ids_follow_the_text_and_the_earlier_lpc_and_not_where_they_lie(tmp_path):
    first, copy, other = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    first.write_text("one text")
    copy.write_text("one text")
    other.write_text("other text")
    ids = [_arm_id(_recipe("text", text={"path": str(path)})) for path in (first, copy, other)]
    assert ids[0] == ids[1] != ids[2]
    earlier = _earlier(tmp_path)
    by_handle = _arm_id(_recipe("pretrained", pretrained=earlier))
    assert by_handle == _arm_id(_recipe("pretrained", pretrained={**earlier, "handle": DIGEST}))
    ridge = [_arm_id(_recipe("attention_matching", attention_matching={"ridge": value})) for value in (0.1, 0.2)]
    assert ridge[0] != ridge[1]
    assert _arm_id(_recipe("first_k")) == _arm_id(_recipe("first_k", attention_matching={"ridge": 0.2}))


def test_too_little_to_start_from_is_refused_with_the_rule(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("abc")
    starts = read_starts(_recipe("text", text={"path": str(path)}), list(range(9)), list)
    with pytest.raises(
        DataError, match=r"arm x: got a text of 3 tokens in .*short.txt, wanted at least num_tokens = 4"
    ):
        starts.check("text", 4, "arm x")
    with pytest.raises(DataError, match="got a source of 9 tokens, wanted at least num_tokens = 10"):
        starts.check("first_k", 10, "arm x")
    starts.check("text", 3, "arm x")
    for longer in ("sci", "random_tokens", "random_vectors"):  # which draw again, or draw from elsewhere
        starts.check(longer, 10, "arm x")


def test_an_earlier_lpc_must_exist_be_one_and_have_the_length(tmp_path):
    earlier = _earlier(tmp_path, num_tokens=5)
    starts = read_starts(_recipe("pretrained", pretrained=earlier), list(range(9)), list)
    with pytest.raises(ConfigError, match="earlier LPC of 5 tokens, wanted exactly num_tokens = 4"):
        starts.check("pretrained", 4, "arm x")
    with pytest.raises(PrefixNotFoundError, match="'nobody': neither"):
        read_starts(_recipe("pretrained", pretrained={**earlier, "handle": "nobody"}), [], list)
    Store(str(tmp_path)).write_json(f"artifacts/{DIGEST}/lpc.json", [])
    with pytest.raises(ConfigError, match="no LPC manifest"):
        read_starts(_recipe("pretrained", pretrained=earlier), [], list)
    Store(str(tmp_path)).remove(f"artifacts/{DIGEST}/lpc.json")
    with pytest.raises(PrefixNotFoundError, match="does not exist"):
        read_starts(_recipe("pretrained", pretrained=earlier), [], list)
