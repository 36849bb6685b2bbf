"""One document becomes one learned prefix, in one process: no Ray, no vLLM, no configuration.

    python examples/one_prefix.py --question "What is the boat called?"

The eight steps are those of a run (`jobs/pi_scale.py`), which does them for many arms on a cluster.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from lpc_ray import Prefix, attach, load, publish
from lpc_ray.config.recipe import TrainingRecipe
from lpc_ray.induction import build_family
from lpc_ray.induction.base import plan_units, run_units
from lpc_ray.model.chat import ChatRenderer, PromptFormat
from lpc_ray.model.embedded import EMBEDDED_MODEL, resolve_model
from lpc_ray.model.identity import model_identity
from lpc_ray.model.tokenizer import TextTokenizer
from lpc_ray.prefix.attention import prefix_arguments
from lpc_ray.prefix.initializers import first_k
from lpc_ray.prefix.initializers.base import Start
from lpc_ray.records import Message
from lpc_ray.sources.documents import read_documents
from lpc_ray.storage import Store
from lpc_ray.traces.tokenise import Provenance, tokenise
from lpc_ray.training.learner import PrefixLearner
from lpc_ray.training.loop import Progress, train
from lpc_ray.training.objectives.base import rows_for
from lpc_ray.training.stepper import PlainStepper

DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"
FROZEN_TOKENS = 1  # the attention sink, never trained


def main(arguments: list[str] | None = None) -> str:
    """Returns the answer, which is printed as well."""
    options = parse(arguments)
    folder = resolve_model(options.model)
    tokenizer = TextTokenizer(folder)
    render = ChatRenderer(folder, None, PromptFormat(system=""))
    model = attach(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))

    # 1. Read the document.
    documents = read_documents([options.document])
    source_ids = [token for document in documents for token in tokenizer.encode(document.text)]
    print(f"document  {options.document.name}: {len(source_ids)} tokens")

    # 2. Induce traces: a family turns the source into conversations. `curated` has them already, so no teacher is asked.
    family = build_family("curated", {"paths": [str(options.conversations)]})
    units = plan_units(family, "curated", documents, tokenizer.spans, "", seed=0)
    traces = run_units(family, units, 0, generate=no_teacher)

    # 3. Tokenise them: which tokens the student sees, and which of them are targets.
    provenance = Provenance("curated", induction_seed=0, teacher=options.model, max_tokens=1024)
    rows = [
        tokenise(trace, unit.id, number, unit.chunk.document_digest, provenance, render, tokenizer.encode)
        for unit in units
        for number, trace in enumerate(traces[unit.id])
    ]
    rows = [row for row in rows if row.drop_reason is None]
    print(f"traces    {len(rows)}, {sum(int(row.is_target.sum()) for row in rows)} target tokens")

    # 4. Initialize the prefix: the keys and values of the document's first tokens.
    start = first_k.initialize(Start(model, source_ids, options.num_tokens))
    prefix = Prefix(start.keys, start.values, FROZEN_TOKENS)

    # 5. Train it; the model stays as it is.
    recipe = TrainingRecipe(steps=options.steps, batch_tokens=256, window_tokens=320)
    stepper = PlainStepper(PrefixLearner(model, prefix, "ntp", recipe), recipe)
    progress = train(
        stepper, rows_for("ntp", rows, recipe), recipe, 0, Progress(), at_checkpoint=lambda now: True, after_step=show
    )

    # 6. Publish it: an artifact, named by the digest of its tensors and of the model that it belongs to.
    store, identity = Store(str(options.out.resolve())), model_identity(folder)
    manifest = publish(
        store / "artifacts",
        *prefix.full(),
        identity,
        FROZEN_TOKENS,
        provenance={"induction": "curated", "objective": "ntp", "optimizer_steps": progress.step, **start.record},
    )
    print(f"artifact  {manifest.digest}, {manifest.num_bytes / 2**20:.1f} MiB in {options.out}")

    # 7. Load it again, checked against its digest and the model.
    _, keys, values = load(store, manifest.digest, identity)

    # 8. Ask, with nothing of the document in the prompt.
    prompt = render([Message(role="user", content=options.question)], True)
    print(f"question  {options.question}")
    for name, prefixes in (("without", None), ("with", (keys, values))):
        answer = tokenizer.decode(greedy(model, prompt, prefixes, options.max_tokens), skip_special_tokens=True).strip()
        print(f"{name:<9} {answer}")
    return answer


def no_teacher(asks):
    assert not asks, "this family asks nothing"
    return []


def show(progress: Progress) -> None:
    if progress.step % 5 == 0:
        print(f"step      {progress.step}: loss {progress.loss:.3f}", flush=True)


@torch.no_grad()
def greedy(model, prompt: list[int], prefix: tuple[torch.Tensor, torch.Tensor] | None, max_tokens: int) -> list[int]:
    """The most likely token again and again, behind the prefix's keys and values [L, P, H, D] where there is one."""
    ends, found = model.generation_config.eos_token_id, []
    ends = {ends} if isinstance(ends, int) else set(ends)
    num_tokens = prefix[0].shape[1] if prefix is not None else 0
    while len(found) < max_tokens:
        ids = torch.tensor([prompt + found], device=model.device)
        positions = num_tokens + torch.arange(ids.shape[1], device=model.device)[None]
        behind = prefix_arguments(*prefix, torch.zeros_like(ids)) if prefix is not None else {}
        logits = model(input_ids=ids, position_ids=positions, use_cache=False, **behind).logits[0, -1]
        if (token := int(logits.argmax())) in ends:
            break
        found.append(token)
    return found


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="a local folder or Hugging Face id")
    parser.add_argument("--document", type=Path, default=DEMO / "handbook.md")
    parser.add_argument("--conversations", type=Path, default=DEMO / "faq.jsonl", help="about the document, as JSONL")
    parser.add_argument("--question", default="What is the name of the station's boat?")
    parser.add_argument("--num-tokens", type=int, default=128, help="the prefix's length P")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--max-tokens", type=int, default=24, help="of the answer")
    parser.add_argument("--out", type=Path, default=Path("runs") / "one_prefix")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
