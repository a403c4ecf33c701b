"""One request as HTTP: body, form, client, identity. The only socket."""
