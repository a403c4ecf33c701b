"""From a model directory to a loaded model: configuration, refusals, progress."""
