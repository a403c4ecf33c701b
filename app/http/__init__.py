"""One request as HTTP: body, form, client, identity. Only this folder uses the socket."""
