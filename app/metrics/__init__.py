"""Metrics for Prometheus, under vLLM's names if they mean the same."""
