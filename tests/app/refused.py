"""What an answer says that refuses a request."""

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def error_of(response, status=400):
    assert response.status_code == status
    assert response.mimetype == "application/json"
    error = response.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
