"""Constraints for tool calls: required calls, and arguments that match their schemas."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from switchyard import engine
from switchyard.app.chat.tools import Function, Offer, shown_name
from switchyard.app.parts.call_formats import CallFormat, Schema
from switchyard.app.parts.weight import SCHEMA, weigh


def constraint(
    offer: Offer, format: CallFormat, model: engine.Engine, form: engine.Constraint | None
) -> engine.Constraint | None:
    """The constraint for the tools of a request; None if the request needs no constraint. Raises
    InvalidJob.

    If a call is required, the constraint allows only calls. With `form`, the constraint allows
    calls, or an answer that satisfies `form`. Otherwise, if a function is strict, the constraint
    allows any text in which calls match their schemas.
    """
    functions = [tool.function for tool in offer.tools if offer.only in (None, tool.function.name)]
    if not functions:
        return None
    make: Callable[..., engine.Constraint]
    if offer.must_call:
        make = engine.constraints.template
    elif form is not None:
        if not engine.constraints.is_json(form):
            message = "with tools, the output can only be constrained to JSON"
            raise engine.InvalidJob(message, "constraint")
        model.check_constraint(form)
        make = partial(engine.constraints.template_or, form)
    elif any(function.strict for function in functions):
        make = partial(engine.constraints.template_in_text, format.trigger)
    else:
        return None
    must_be_valid = offer.must_call or form is not None
    tag_ids = model.tokenizer.tag_ids
    try:
        schemas = _schemas(functions, must_be_valid, model)
        constraint = make(
            [
                format.for_grammar(shown_name(function.name), schema)
                for function, schema in zip(functions, schemas, strict=True)
            ],
            opening=format.opening,
            separator=format.separator if offer.max_calls is None else None,
            closing=format.closing,
            special_ids={tag: tag_ids[tag] for tag in format.tags if tag in tag_ids},
        )
        model.check_constraint(constraint)
    except engine.InvalidJob as error:
        error.param = "tools"
        raise
    return constraint


def _schemas(
    functions: Sequence[Function], must_be_valid: bool, model: engine.Engine
) -> Iterator[Schema]:
    """The schema of each function's arguments.

    The schema of a function that isn't strict is used only if the engine can enforce it, and can
    compile it together with the other schemas in time. Otherwise any object is valid.
    """
    schemas = [f.schema_of_arguments for f in functions if f.strict or must_be_valid]
    weigh(SCHEMA * len(json.dumps(schemas)))
    seconds = 0.0
    for function in functions:
        schema = {"type": "object", **function.schema_of_arguments}
        if function.strict:
            yield schema
        elif must_be_valid and _can_be_enforced(
            schema, engine.constraints.MAX_SECONDS - seconds, model
        ):
            seconds += engine.constraints.seconds_to_compile(schema)
            yield schema
        else:
            yield {"type": "object"}


def _can_be_enforced(schema: Schema, seconds: float, model: engine.Engine) -> bool:
    """Whether the engine can compile the schema in an estimated time of at most `seconds`."""
    try:
        if engine.constraints.seconds_to_compile(schema) > seconds:
            return False
        model.check_constraint(engine.constraints.json_schema(schema))
    except engine.InvalidJob:
        return False
    return True
