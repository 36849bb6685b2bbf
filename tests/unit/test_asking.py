"""The runner of generators: one call answers what all of them ask, and each is charged for its own."""

from lpc_ray.asking import drive
from lpc_ray.records import Ask
from tests.replies import reply


def _counting(name: str, sizes: list[int]):
    """Asks `sizes[0]` things, then `sizes[1]`, ...; returns the texts of all replies."""
    texts = []
    for size in sizes:
        replies = yield [Ask(messages=({"role": "user", "content": f"{name} {number}"},)) for number in range(size)]
        texts += [one.text for one in replies]
    return texts


def test_pending_asks_share_calls_and_replies_go_back_to_their_generator():
    calls = []

    def generate(asks):
        calls.append([ask.messages[0]["content"] for ask in asks])
        return [reply(f"to {name}", prompt_tokens=2) for name in calls[-1]]

    first, silent, second = drive([_counting("a", [2, 1]), _counting("b", []), _counting("c", [1])], generate)
    assert calls == [["a 0", "a 1", "c 0"], ["a 0"]]
    assert first.result == ["to a 0", "to a 1", "to a 0"] and second.result == ["to c 0"]
    assert (first.last_reply, first.prompt_tokens, first.generated_tokens) == ("to a 0", 6, 9)
    assert (silent.result, silent.last_reply, silent.prompt_tokens, silent.generated_tokens) == ([], "", 0, 0)
    assert first.seconds > second.seconds > silent.seconds >= 0


def test_generators_that_ask_nothing_need_no_model():
    [found] = drive([_counting("a", [])], lambda asks: 1 / 0)
    assert found.result == []
