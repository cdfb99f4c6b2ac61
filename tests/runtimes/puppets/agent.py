"""Does what its prompt says; agent.js does the same."""

import asyncio
import json
import os
import sys
import threading
import time


def say(rest, _):
    return rest


def object_(rest, _):
    return {"text": rest, "usage": {"tokens": 12}}


def claim(rest, _):
    return {"text": "claimed", "usage": json.loads(rest)}


async def later(rest, _):
    await asyncio.sleep(0.05)
    return {"text": rest}


def words(rest, _):
    yield from rest.split(" ")
    return {"usage": {"tokens": 3}}


async def slowly(rest, _):
    for word in rest.split(" "):
        yield word
        await asyncio.sleep(0.15)


def nothing(_rest, _):
    return None


def number(_rest, _):
    return {"text": 5}


def yields(_rest, _):
    yield "a"
    yield {"type": "end", "usage": {"tokens": 0}}


def throw(rest, _):
    raise TypeError(rest)


async def breaks(rest, _):
    yield "a"
    raise TypeError(rest)


def loop(_rest, _):
    print("looping")
    while True:
        pass


async def sleep(rest, _):
    await asyncio.sleep(float(rest))
    return "slept"


def big(_rest, _):
    return "x" * 4_000_001


async def forever(rest, context):
    count = 0
    context.session.put("closed", False)
    try:
        while True:
            count += 1
            context.session.put("count", count)
            yield "x" * 100_000 if rest == "big" else "x"
            await asyncio.sleep(0 if rest == "big" else 0.05)
    finally:
        context.session.put("closed", True)


def count(_rest, context):
    turns = (context.session.get("turns") or 0) + 1
    context.session.put("turns", turns)
    return str(turns)


def kept(rest, context):
    return json.dumps(context.session.get(rest))


def fill(_rest, context):
    context.session.put("v", "x" * 200_000)
    return ""


def see(_rest, context, request):
    return json.dumps({
        "request": request, "keys": sorted(vars(context)), "env": dict(context.env), "trace": context.traceId,
        "left": context.limits.remaining["requests"], "session": context.session.id,
        "capabilities": vars(context.capabilities),
    })  # fmt: skip


def process(_rest, _):
    return json.dumps(dict(os.environ))


def print_(rest, _):
    print("first", rest)
    time.sleep(0.1)
    thread = threading.Thread(target=lambda: print("second", rest, file=sys.stderr))
    thread.start()
    thread.join()
    return ""


def flood(_rest, _):
    for _n in range(5000):
        print("x" * 50_000)
    return "ok"


def code(rest, context):
    result = context.tools.codeInterpreter.run(rest, language="python")
    return json.dumps([result.text, result.isError])


def twice(rest, context):
    return ",".join(context.tools.codeInterpreter.run(rest).text for _ in range(2))


def browse(rest, context):
    browser = context.tools.browser.open()
    if rest == "close":
        browser.close()
    return json.dumps({"sessionId": browser.sessionId, "url": browser.url, "headers": browser.headers})


def remember(rest, context):
    context.memory.add(rest, role="assistant")
    return "kept"


def recall(rest, context):
    return json.dumps(context.memory.recent(int(rest)))


def try_(rest, context):
    word, _, others = rest.partition(" ")
    try:
        return DOES[word](others, context)
    except context.tools.ToolError as error:
        return f"{type(error).__name__}: {error}"


DOES = {
    name.rstrip("_"): value
    for name, value in globals().items()
    if callable(value) and getattr(value, "__module__", None) == __name__
}


def agent(request, context):
    word, _, rest = request["input"]["messages"][-1]["content"].partition(" ")
    return see(rest, context, request) if word == "see" else DOES[word](rest, context)
