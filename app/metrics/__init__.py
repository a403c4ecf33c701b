"""Metrics for Prometheus, by vLLM's names where they mean the same."""
