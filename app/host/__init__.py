"""Text for a host application's views, from models in its process or from a server."""
