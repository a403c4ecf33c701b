"""The root of all errors that this package raises for its callers."""


class SwitchyardError(Exception):
    """A generation, a request, a setting or a model is at fault; the class says which."""
