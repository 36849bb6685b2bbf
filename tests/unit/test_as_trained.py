"""vLLM's own rendering of a chat request, put as the prefix was trained; no engine runs."""

import asyncio
from datetime import date
from pathlib import Path

import pytest
import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer

import lpc_ray
from lpc_ray.adapters.vllm.as_trained import as_trained
from lpc_ray.artifacts.store import publish
from lpc_ray.errors import ArtifactError
from lpc_ray.model.chat import ChatRenderer, PromptFormat
from lpc_ray.records import PrefixRef
from lpc_ray.storage import Store
from tests.chats import TEMPLATES, save_chat_model, user
from tests.tiny import IDENTITY

THINKING_AND_DATE = "{{- 'Today is ' + strftime_now('%A %d %b %Y') + '\\n' }}" + TEMPLATES["qwen3"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_chat_model(tmp_path_factory.mktemp("model") / "m", THINKING_AND_DATE)


@pytest.fixture(scope="module")
def renderer(model):
    config = AsyncEngineArgs(model=model, max_model_len=512, enforce_eager=True).create_engine_config()
    return OnlineRenderer(
        config.model_config,
        renderer_from_config(config),
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
    )


@pytest.fixture
def prefix(tmp_path):
    def made(**provenance) -> PrefixRef:
        store = Store(str(tmp_path))
        keys = torch.randn(3, 4, 2, 8)
        digest = publish(store, keys, keys.clone(), IDENTITY, 1, provenance=provenance).digest
        return PrefixRef(digest, store.path(digest), 4)

    return made


def _rendered(renderer, prefixes, **fields) -> list[int]:
    request = ChatCompletionRequest(messages=[user("What is it?")], model="m", **fields)
    _, [inputs] = asyncio.run(as_trained(renderer, [request], prefixes).render_chat(request))
    return list(inputs["prompt_token_ids"])


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("day", [None, "2031-03-07"])
def test_a_served_request_is_put_as_its_prefix_was_trained(model, renderer, prefix, thinking, day):
    prompt = {
        "system": None,
        **({"thinking": thinking} if thinking is not None else {}),
        **({"date": day} if day else {}),
    }
    wanted = PromptFormat(thinking=thinking, **({"date": date.fromisoformat(day)} if day else {}))
    got = _rendered(renderer, [prefix(prompt=prompt)])
    assert got == ChatRenderer(model, None, wanted)([user("What is it?")], True)


def test_what_a_client_says_of_thinking_goes_before_the_recipe(model, renderer, prefix):
    trained = prefix(prompt={"thinking": False, "date": "2031-03-07"})
    wanted = PromptFormat(thinking=True, date=date(2031, 3, 7))
    got = _rendered(renderer, [trained], chat_template_kwargs={"enable_thinking": True})
    assert got == ChatRenderer(model, None, wanted)([user("What is it?")], True)


def test_a_composition_is_put_as_its_first_prefix_with_a_recipe(model, renderer, prefix):
    trained = prefix(prompt={"thinking": False, "date": "2031-03-07"})
    wanted = PromptFormat(thinking=False, date=date(2031, 3, 7))
    got = _rendered(renderer, [prefix(), trained, prefix(prompt={"date": "1999-01-01"})])
    assert got == ChatRenderer(model, None, wanted)([user("What is it?")], True)


def test_a_request_without_a_recipe_is_left_to_vllm(renderer, prefix):
    request = ChatCompletionRequest(messages=[user("x")], model="m")
    assert as_trained(renderer, [request], []) is renderer and as_trained(renderer, [request], [prefix()]) is renderer
    assert request.chat_template_kwargs is None


@pytest.mark.parametrize("told", ["yes", 3, {"date": "soon"}, {"date": 3}, []])
def test_a_manifest_that_says_what_no_recipe_can_is_refused(renderer, prefix, told):
    with pytest.raises(ArtifactError, match=r"provenance\.prompt"):
        as_trained(renderer, [], [prefix(prompt=told)])


def test_whatever_has_vllm_render_a_chat_has_it_put_as_trained():
    folder = Path(lpc_ray.__file__).parent
    sources = {file.name: file.read_text(encoding="utf-8") for file in folder.rglob("*.py")}
    rendering = {name: text for name, text in sources.items() if ".render_chat(" in text}
    assert rendering and all("renderer = as_trained(" in text for text in rendering.values())
