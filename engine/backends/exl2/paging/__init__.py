"""The pages of the cache. Jobs take pages one by one; when none is left, a job releases its own."""
