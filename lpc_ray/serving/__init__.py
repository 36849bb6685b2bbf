"""Serving's engine-free part: names, keys, residency and request rewriting. Knows no Ray, no vLLM and no torch."""
