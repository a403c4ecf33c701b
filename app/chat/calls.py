"""Grammars that have an answer call the tools that it must, and as it must."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from switchyard import engine
from switchyard.app.chat.tools import Function, Offer, shown_name
from switchyard.app.parts.call_formats import CallFormat


def constraint(offer: Offer, format: CallFormat, model: engine.Engine) -> engine.Constraint | None:
    """Calls where they must be made; calls by their schemas, but any text around them, where a
    function is strict. Raises InvalidJob.
    """
    functions = [tool.function for tool in offer.tools if offer.only in (None, tool.function.name)]
    if not offer.must_call and not any(function.strict for function in functions):
        return None
    special_ids = model.tokenizer.special_ids
    schemas = _schemas(functions, offer.must_call, model)
    alternatives = [
        (format.before.replace("NAME", shown_name(function.name)), schema, format.behind)
        for function, schema in zip(functions, schemas, strict=True)
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


def _schemas(
    functions: Sequence[Function], must_call: bool, model: engine.Engine
) -> Iterator[Mapping[str, Any]]:
    """Of each. Of a function that isn't strict, only where it can be enforced, and only as long as
    all together can be.
    """
    seconds = 0.0
    for function in functions:
        schema = {"type": "object", **function.schema_of_arguments}
        if function.strict:
            yield schema
        elif must_call and _can_be_enforced(
            schema, engine.constraints.MAX_SECONDS - seconds, model
        ):
            seconds += engine.constraints.seconds_to_compile(schema)
            yield schema
        else:
            yield {"type": "object"}


def _can_be_enforced(schema: Mapping[str, Any], seconds: float, model: engine.Engine) -> bool:
    """Within about so many seconds."""
    try:
        if engine.constraints.seconds_to_compile(schema) > seconds:
            return False
        model.check_constraint(engine.constraints.json_schema(schema))
    except engine.InvalidJob:
        return False
    return True
