"""vLLM's plugin `lpc`: its entry points load this module in every process, so it is light.

VLLM_PLUGINS=lpc vllm serve MODEL --kv-transfer-config '{"kv_connector": "LearnedPrefixConnector",
    "kv_role": "kv_consumer", "kv_connector_extra_config": {"library": "FOLDER or URL"}}'
"""

from typing import Any

CONNECTOR = "LearnedPrefixConnector"


def register() -> None:
    """Make the connector known to vLLM by its name, once per process."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, "lpc_ray.adapters.vllm.connector", CONNECTOR)


def endpoints() -> Any:
    """vLLM's `EndpointPlugin` for its HTTP server."""
    from lpc_ray.adapters.vllm.endpoints import PrefixEndpoints

    return PrefixEndpoints()
