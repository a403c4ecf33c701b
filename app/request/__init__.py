"""The parameters of requests, common to all wire formats: names, validation, jobs."""
