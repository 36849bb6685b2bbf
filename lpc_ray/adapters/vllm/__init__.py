"""vLLM as the engine of teacher, verifier and server."""

from lpc_ray.asking import Engine
from lpc_ray.config.job import EngineResources
from lpc_ray.config.recipe import ModelRecipe, PromptRecipe


def new_engine(model: str, recipe: ModelRecipe, prompt: PromptRecipe, resources: EngineResources) -> Engine:
    """An engine that has not started. model: the local folder or hub id of the recipe's model."""
    from lpc_ray.adapters.vllm.engine import EngineSettings, VLLMEngine

    return VLLMEngine(
        EngineSettings(
            model=model,
            revision=recipe.revision,
            dtype=recipe.dtype,
            thinking=prompt.thinking,
            date=prompt.date,
            max_model_len=resources.max_model_len,
            max_num_seqs=resources.max_num_seqs,
            kv_cache_gib=resources.kv_cache_gib,
            gpu_memory_fraction=resources.gpu_memory_fraction,
            tensor_parallel=resources.tensor_parallel,
            threads=resources.threads,
            extra=resources.extra,
        )
    )
