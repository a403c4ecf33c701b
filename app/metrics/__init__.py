"""Metrics for Prometheus, with vLLM's names where the meanings match."""
