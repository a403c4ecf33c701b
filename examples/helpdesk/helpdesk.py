"""A Flask application of its own, with pages and a login, that has a model in its process, or asks
the server at SWITCHYARD_URL.
"""

import os
import secrets

import flask

from switchyard import BadRequest, Rejected, Switchyard, SwitchyardError

app = flask.Flask(__name__)
app.config.update(
    SECRET_KEY=os.environ.get("SECRET_KEY") or secrets.token_hex(),
    SESSION_COOKIE_SAMESITE="Lax",
    PASSWORD=os.environ.get("HELPDESK_PASSWORD", "demo"),
)
if "SWITCHYARD_URL" not in os.environ:  # else the server has its own settings
    app.config["SWITCHYARD_MAX_BATCH_SIZE"] = 8


def require_login():
    """Also before each request to the model's own API, which is under /llm."""
    if "user" not in flask.session:
        if flask.request.path.startswith("/llm/"):
            return {"error": {"message": "log in first", "type": "authentication_error"}}, 401
        return flask.redirect(flask.url_for("login"))
    return None


switchyard = Switchyard(app, url_prefix="/llm", before_request=require_login)


@app.get("/")
def home():
    if (answer := require_login()) is not None:
        return answer
    return flask.render_template("home.html", user=flask.session["user"])


@app.route("/login", methods=["GET", "POST"])
def login():
    if flask.request.method == "GET":
        return flask.render_template("login.html", is_wrong=False)
    password = flask.request.form.get("password", "")
    if not secrets.compare_digest(password.encode(), app.config["PASSWORD"].encode()):
        return flask.render_template("login.html", is_wrong=True), 403
    flask.session["user"] = flask.request.form.get("user") or "somebody"
    return flask.redirect(flask.url_for("home"))


@app.post("/title")
def title():
    """A whole answer, in a view of the application."""
    if (answer := require_login()) is not None:
        return answer
    question = flask.request.form.get("question", "")
    result = switchyard.generate(messages=chat(question), max_tokens=24, temperature=0)
    return flask.render_template("title.html", question=question, title=result.text)


@app.post("/ask")
def ask():
    """An answer piece by piece; the page's script shows it as it comes."""
    if (answer := require_login()) is not None:
        return answer
    stream = switchyard.stream(messages=chat(flask.request.form.get("question", "")))
    headers = {"X-Accel-Buffering": "no"}  # nginx passes on each piece as it comes
    # The response closes the stream, and so cancels.
    return flask.Response(stream, headers=headers, mimetype="text/plain")


def chat(question):
    return [{"role": "user", "content": question}]


@app.errorhandler(BadRequest)
@app.errorhandler(Rejected)
def bad_request(error):
    app.logger.warning("a question was refused: %s", error)
    return problem("This question can't be answered. It may be too long."), 400


@app.errorhandler(SwitchyardError)
def no_answer(error):
    app.logger.error("no answer: %r", error)
    return problem("There is no answer now. Please try again in a minute."), 503


def problem(message):
    """A page, or for the script of one a line of text."""
    if flask.request.accept_mimetypes.best == "text/plain":
        return flask.Response(message, mimetype="text/plain")
    return flask.render_template("error.html", message=message)


@app.errorhandler(404)
def not_found(error):
    return flask.render_template("error.html", message="There is no such page."), 404
