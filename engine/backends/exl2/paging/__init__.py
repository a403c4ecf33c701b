"""Pages of the cache. Jobs take them one by one, and release them when none is left."""
