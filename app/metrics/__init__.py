"""Numbers for Prometheus, by vLLM's names where the meaning is vLLM's."""
