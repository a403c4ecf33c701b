"""Request parameters that all wire formats share: names, validation, jobs."""
