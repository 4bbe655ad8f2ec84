#!/usr/bin/env python3
"""The rules of the house that a compiler does not see.

A room includes headers of rooms to its left only (docs/internals/house.md), another room's
*_internal.h never; no source file has more than 800 lines; no file outside models/ and tests/
names a model family; the C code calls none of the functions that the house does without.

    house.py [ROOT]      exits 1 and lists what is wrong
    house.py --self-test proves that each rule can fail
"""
import pathlib
import re
import sys
import tempfile

ORDER = ["base", "checkpoint", "graph", "ops", "state", "text", "model", "engine", "api",
         "server", "cli"]
BESIDE = {"dist": "ops"}  # rooms that stand beside another
MAX_LINES = 800
SOURCES = {".c", ".h", ".cu", ".cuh", ".lua", ".py", ".sh"}
FAMILY = re.compile(r"kimi|deepseek|\bglm", re.IGNORECASE)
BANNED = re.compile(r"\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|getenv|alloca|"
                    r"abort|exit|assert)\s*\(")
ALLOC = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|strdup|strndup)\s*\(")


def rank(room):
    return ORDER.index(BESIDE.get(room, room)) if BESIDE.get(room, room) in ORDER else None


def check_includes(root, path, text, say):
    room = path.relative_to(root / "src").parts[0]
    if rank(room) is None:
        say(path, 0, f"'{room}' is not a room of the house")
        return
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not found:
            continue
        target = found.group(1)
        other = target.split("/")[0] if "/" in target else None
        if target == "firstlight.h":
            continue
        if other is None or rank(other) is None:
            say(path, number, f"include \"{target}\": write it as \"room/file.h\"")
        elif rank(other) > rank(room):
            say(path, number, f"{room} may not include {other}: doors open to the left only")
        elif other != room and target.endswith("_internal.h"):
            say(path, number, f"{target} belongs to its own room")


def check_code(root, path, text, say):
    room = path.relative_to(root / "src").parts[0]
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        code = re.sub(r"/\*.*?\*/|/\*.*$|//.*$", "", code)
        if re.match(r"\s*\*", code):
            continue
        found = BANNED.search(code)
        if found and not (room == "cli" and found.group(1) == "exit"):
            say(path, number, f"{found.group(1)}() is not used in this house")
        if room != "cli" and path.name != "mem.c" and ALLOC.search(code):
            say(path, number, "allocate through base/mem.h")


def check_portable(root, path, text, say):
    """Of CUDA's names the portable GPU sources use those that musa.h renames."""
    renamed = (root / "src/ops/gpu/musa.h").read_text(encoding="utf-8")
    known = set(re.findall(r"#define (cuda\w+)", renamed))
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"/\*.*?\*/|/\*.*$|//.*$", "", line)
        for name in re.findall(r"\bcuda[A-Z]\w*", code):
            if name not in known:
                say(path, number, f"{name} is not in musa.h")
        if re.search(r"\basm\b", code):
            say(path, number, "PTX belongs into a file of matrix units, which has a portable twin")


def check(root):
    problems = []

    def say(path, line, what):
        problems.append(f"{path.relative_to(root)}:{line}: {what}")

    for path in sorted(root.rglob("*")):
        rel = path.relative_to(root)
        if (path.suffix not in SOURCES or not path.is_file() or
                rel.parts[0].startswith((".", "build"))):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.count("\n")
        if lines > MAX_LINES:
            say(path, lines, f"{lines} lines; {MAX_LINES} at most")
        if rel.parts[0] == "src":
            check_includes(root, path, text, say)
            check_code(root, path, text, say)
        if (rel.parts[:3] == ("src", "ops", "gpu") and path.suffix in {".cu", ".h"} and
                not re.search(r"mma|parts\.h|musa\.h", path.name)):
            check_portable(root, path, text, say)
        if rel.parts[0] in ("src", "include"):
            for number, line in enumerate(text.splitlines(), 1):
                if FAMILY.search(line):
                    say(path, number, "names a model family outside models/")
    return problems


def self_test():
    bad = {
        "src/base/a.c": '#include "graph/op.h"\n',
        "src/graph/b.c": '#include "base/x_internal.h"\n',
        "src/graph/c.c": '#include "loose.h"\n',
        "src/attic/d.c": "\n",
        "src/text/e.c": "int kimi_mode;\n",
        "src/text/f.c": "void f(void) { char *p = malloc(4); }\n",
        "src/text/g.c": "void f(char *p) { strcpy(p, p); }\n",
        "src/ops/gpu/i.cu": "cudaNew();\n",
        "src/ops/gpu/j.cu": "asm volatile(\"\");\n",
        "tests/h.c": "\n" * 801,
    }
    good = {
        "src/graph/ok.c": '#include "base/mem.h"\n#include "firstlight.h"\n',
        "models/kimi.lua": "-- kimi\n",
        "src/ops/gpu/musa.h": "#define cudaOld musaOld\n",
        "src/ops/gpu/k.cu": "cudaOld();\n",
    }
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        for name, text in {**bad, **good}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = {p.split(":")[0] for p in check(root)}
        missed, wrong = set(bad) - found, found - set(bad)
        if missed or wrong:
            print("self-test: missed", sorted(missed), "wrongly found", sorted(wrong))
            return 1
    return 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    problems = check(root)
    print("\n".join(problems) if problems else "the house is in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
