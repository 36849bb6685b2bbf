"""The Ray Serve application: wiring between `lpc_ray.serving`, Ray Serve and vLLM."""
