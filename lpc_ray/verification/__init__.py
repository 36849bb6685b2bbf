"""Verification: greedy answers of the served model, judged by rules fixed beforehand. One verifier per file."""
