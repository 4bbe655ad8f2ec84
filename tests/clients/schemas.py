#!/usr/bin/env python3
"""Documents that the server writes to schemas, judged by the jsonschema library.

    schemas.py BUILD [ROUNDS]     run from the root of the repository by scripts/check --clients

The bundled model is made to say anything (temperature 2); whatever ends by itself must be valid, with
formats.  Schemas are of the kinds that people use, and random ones.
"""
import concurrent.futures
import functools
import json
import os
import pathlib
import random
import sys

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
from serving import Server, ask, run  # noqa: E402

BINARY = os.path.join(sys.argv[1], "firstlight")
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 2
OBJECT = {"type": "object", "additionalProperties": False}

KNOWN = {
    "formats": {**OBJECT, "required": ["d", "t", "dt", "u", "four", "six", "m", "h", "w"], "properties": {
        "d": {"type": "string", "format": "date"}, "t": {"type": "string", "format": "time"},
        "dt": {"type": "string", "format": "date-time"}, "u": {"type": "string", "format": "uuid"},
        "four": {"type": "string", "format": "ipv4"}, "six": {"type": "string", "format": "ipv6"},
        "m": {"type": "string", "format": "email"}, "h": {"type": "string", "format": "hostname"},
        "w": {"type": "string", "format": "duration"}}},
    "union": {"$defs": {
        "Cat": {**OBJECT, "title": "Cat", "required": ["kind", "lives"], "properties": {
            "kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 1, "maximum": 9}}},
        "Dog": {**OBJECT, "title": "Dog", "required": ["kind"], "properties": {
            "kind": {"const": "dog"}, "tricks": {"type": "array", "maxItems": 3, "items": {
                "type": "string", "pattern": "^[a-z ]{1,10}$"}}}}},
        **OBJECT, "required": ["pet", "age"], "properties": {
            "pet": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
            "age": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 40}, {"type": "null"}],
                    "default": None}}},
    "tree": {"$defs": {"node": {**OBJECT, "required": ["v"], "properties": {
        "v": {"type": "integer"}, "kids": {"type": "array", "maxItems": 2,
                                           "items": {"$ref": "#/$defs/node"}}}}},
             "$ref": "#/$defs/node"},
    "map": {"type": "object", "properties": {"id": {"type": "string", "maxLength": 6}}, "required": ["id"],
            "additionalProperties": {"type": "number", "minimum": -1, "maximum": 1}},
    "tuple": {"type": "array", "prefixItems": [{"type": "number", "minimum": -90, "maximum": 90},
                                               {"type": "number", "minimum": -180, "maximum": 180}],
              "items": False, "minItems": 2},
    "any": {"type": "object"},
}


def random_schema(dice, depth=0):
    kind = dice.randrange(5 if depth > 2 else 9)
    if kind == 0:
        return dice.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]},
                            {"enum": ["x", "é\n", 2, 1.5, None, [1]]}])
    if kind == 1:
        low = dice.uniform(-3, 3) * 10 ** dice.randrange(-4, 7)
        return {"type": "number", dice.choice(["minimum", "exclusiveMinimum"]): low,
                dice.choice(["maximum", "exclusiveMaximum"]): low + 10 ** dice.randrange(-2, 6)}
    if kind == 2:
        low = dice.randrange(-10 ** dice.randrange(1, 12), 10 ** dice.randrange(1, 12))
        return {"type": "integer", "minimum": low, "exclusiveMaximum": low + 1 + dice.randrange(10 ** 6)}
    if kind == 3:
        low = dice.randrange(6)
        return {"type": "string", "minLength": low, "maxLength": low + dice.randrange(20)}
    if kind == 4:
        return {"type": "string", "pattern": dice.choice(
            [r"^[A-Z]\w{2,8}$", r"^\d{3}-\d{4}$", r"^(yes|no|maybe)$", r"^[^\d\s]{1,9}$", r"^\S+ \S+$",
             r"^.{0,12}é$", r"^#[0-9a-fA-F]{6}$", r"^(?:a|b)*c?$"])}
    if kind == 5:
        low = dice.randrange(3)
        return {"type": "array", "items": random_schema(dice, depth + 1), "minItems": low,
                "maxItems": low + dice.randrange(3)}
    if kind == 6:
        return {"anyOf": [random_schema(dice, depth + 1) for _ in range(dice.randrange(1, 4))]}
    names = dice.sample(["a", "ab", "b", "名", "long name", "x\"y"], dice.randrange(1, 5))
    return {"type": "object", "properties": {n: random_schema(dice, depth + 1) for n in names},
            "required": [n for n in names if dice.random() < 0.5],
            "additionalProperties": dice.random() < 0.2 and random_schema(dice, depth + 1)}


def write(s, schema, seed):
    """A document, or None if it was cut."""
    body = ask("JSON.", temperature=2, seed=seed, max_tokens=500, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    choice = s.post(body)["choices"][0]
    if choice["finish_reason"] != "stop":
        return None
    text = choice["message"]["content"]
    value = json.loads(text)
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator,
                        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    return text


def judge(s, pairs):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = [t for t in pool.map(lambda p: write(s, *p), pairs) if t is not None]
    assert len(done) > len(pairs) / 3, f"only {len(done)} of {len(pairs)} came to an end"


def test_known_schemas(s):
    judge(s, [(schema, seed) for schema in KNOWN.values() for seed in range(5 * ROUNDS)])


def test_random_schemas(s):
    dice = random.Random(20261129)
    print("seed 20261129")
    judge(s, [(random_schema(dice), seed) for seed in range(60 * ROUNDS)])


def main():
    tests = [(n, t) for n, t in globals().items() if n.startswith("test_")]
    with Server(BINARY, "--threads", "1", "--queue", "1000") as s:
        status = run([(n, functools.partial(t, s)) for n, t in tests])
        s.idle()
    return status


if __name__ == "__main__":
    sys.exit(main())
