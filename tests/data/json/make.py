"""Writes the expected outputs of the JSON writer tests with Python's own json module.

floats.txt: bits of a double in hexadecimal, then json.dumps of it.
dumps.txt: four lines per case: a document, then json.dumps of it compact, spaced, compact sorted.
"""
import json
import os
import random
import struct

here = os.path.dirname(os.path.abspath(__file__))
rnd = random.Random(7)


def double(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


values = [0.0, -0.0, 0.1, 1 / 3, 1.0, 2.0, 10.0, 123456789.0, 1e15, 1e16, 1e17, 123456789012345680.0,
          9999999999999998.0, 1e-4, 1e-5, 0.00012345, 5e-324, 2.2250738585072014e-308,
          1.7976931348623157e308, 1e21, 1e22, 1e23, 1e100, 0.5, 1.5e-7, 4.35, 2.675, -7.25]
while len(values) < 1000:
    x = double(rnd.getrandbits(64))
    if x == x and abs(x) != float("inf"):
        values.append(x)
while len(values) < 1500:
    values.append(round(rnd.uniform(-1000, 1000), rnd.randrange(7)))
with open(os.path.join(here, "floats.txt"), "w") as f:
    for x in values:
        f.write("%016x %s\n" % (struct.unpack("<Q", struct.pack("<d", x))[0], json.dumps(x)))

documents = [
    "{}", "[]", "[[], {}, [[]]]", "null", "true", '"x"', "-0", "-0.0", "12", "1E5", "1e-7",
    '{"b": 1, "a": {"z": [1, 2.50, -3e2], "y": null}, "\\u00e9": "\\u00e9", "B": false}',
    '["\\u0000\\u0001\\u001f\\u007f\\u2028", "\\"\\\\\\/\\b\\f\\n\\r\\t", "\\ud83d\\ude00"]',
    '{"\\n": "tab\\there", "": 0, "aa": 1, "a": 2, "\\ud83d\\ude00": 3, "\\uffff": 4}',
    "[9223372036854775807, -9223372036854775808, 100000000000000000000.0]",
    ' [ 1 ,\n\t2 ]\r\n',
]
with open(os.path.join(here, "dumps.txt"), "w") as f:
    for text in documents:
        v = json.loads(text)
        one_line = text.replace("\n", " ").replace("\r", " ")
        for out in (one_line,
                    json.dumps(v, ensure_ascii=False, separators=(",", ":")),
                    json.dumps(v, ensure_ascii=False),
                    json.dumps(v, ensure_ascii=False, separators=(",", ":"), sort_keys=True)):
            f.write(out + "\n")
