"""Metrics for Prometheus, under vLLM's names if the meanings match."""
