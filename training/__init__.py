"""How the embedded model is made. Nothing of this is imported by the service."""
