"""Grammars that have an answer call the tools that it must, and as it must."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from switchyard import engine
from switchyard.app.chat.tools import Function, Offer
from switchyard.app.parts.call_formats import Format


def constraint(offer: Offer, format: Format, model: engine.Engine) -> engine.Constraint | None:
    """Calls where they must be made; calls by their schemas, but any text around them, where a
    function is strict. Raises InvalidJob.
    """
    functions = [tool.function for tool in offer.tools if offer.only in (None, tool.function.name)]
    if not offer.must_call and not any(function.strict for function in functions):
        return None
    special_ids = model.tokenizer.special_ids
    alternatives = [
        (
            format.before.replace("NAME", function.name),
            _schema(function, offer.must_call, model),
            format.behind,
        )
        for function in functions
    ]
    make = (
        engine.constraints.template
        if offer.must_call
        else partial(engine.constraints.template_in_text, format.trigger)
    )
    return make(
        alternatives,
        opening=format.opening,
        separator=format.separator if offer.max_calls is None else None,
        closing=format.closing,
        special_ids={tag: special_ids[tag] for tag in format.tags if tag in special_ids},
    )


def _schema(function: Function, must_call: bool, model: engine.Engine) -> Mapping[str, Any]:
    """Of a function that isn't strict, only where it can be enforced."""
    schema = {"type": "object", **function.schema_of_arguments}
    if function.strict:
        return schema
    if must_call:
        with contextlib.suppress(engine.InvalidJob):
            model.check_constraint(engine.constraints.json_schema(schema))
            return schema
    return {"type": "object"}
