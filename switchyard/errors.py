"""The root of all errors that this package raises for its callers."""


class SwitchyardError(Exception):
    """An error in a generation, a request, a setting or a model, as its class shows."""
