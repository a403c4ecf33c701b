"""A user of examples/helpdesk."""

import requests


class User(requests.Session):
    """Somebody with the password, who logs in when the application asks for it. A session can end
    before its time: Flask refuses a cookie that was signed later than its clock says, so a clock
    that is set back by a second ends the sessions of that second.
    """

    def __init__(self, url):
        super().__init__()
        self._url = url

    def request(self, method, url, **more):
        response = super().request(method, url, **more)
        if response.status_code != 401 and not response.url.endswith("/login"):
            return response
        response.close()
        answer = super().request(
            "POST", f"{self._url}/login", data={"user": "Ada", "password": "demo"}, timeout=20
        )
        assert "Hello, Ada" in answer.text
        return super().request(method, url, **more)
