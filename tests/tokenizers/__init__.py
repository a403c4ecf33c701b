"""Real models' tokenizers and chat templates. `scripts/test-tokenizers` runs more families."""
