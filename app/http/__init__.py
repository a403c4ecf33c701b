"""The HTTP side of a request: body, form, client, identity. Only this folder uses the socket."""
