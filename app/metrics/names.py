"""Labels of all that has vLLM's names."""

LABELS = ("model_name", "engine")
ENGINE = "0"
