"""The labels of metrics with vLLM's names."""

LABELS = ("model_name", "engine")
ENGINE = "0"
