"""A stand-in for the models of Executor and Judge, over real HTTP: python tests/planned.py [--fail SHARE].

It follows the plan in its prompt to the letter: of "1. Find the capital of Iceland." it searches for "Iceland capital"
and answers what a passage says "The capital of Iceland is", or else "unknown". So only a plan that names the right
relation of the right entity finds the right answer. A Judge asks a model only about answers that match none exactly, and
those are wrong here. The first line of output is the port.

With --fail it refuses that share of the Executor's requests with a 503, and with --fail-judge of the Judge's, by a hash of
the number that a request has among all. A request is known by its X-Request-ID, so that it is refused however often a
client tries it again.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re

PLAN = re.compile(r"(?:A plan for your guidance[^\n]*|Revised plan:)\n(.*)\n\n(?:Begin with|Go on from)", re.DOTALL)
GRADED = re.compile(r"^> (.*)$", re.MULTILINE)
STEP = re.compile(r"Find the (.+?) of (.+?)\.$", re.MULTILINE)


class Policy:
    def __init__(self, fail: float = 0.0, fail_judge: float = 0.0) -> None:
        self.shares = {"executor": fail, "judge": fail_judge}
        self.numbers: dict[str, int] = {}

    def refuses(self, request_id: str, body: dict) -> bool:
        number = self.numbers.setdefault(request_id, len(self.numbers))
        digest = hashlib.sha256(str(number).encode()).digest()
        role = "judge" if GRADED.search(body["messages"][-1]["content"]) else "executor"
        return int.from_bytes(digest[:4], "big") < self.shares[role] * 2**32

    def reply(self, messages: list[dict]) -> str:
        graded = GRADED.search(messages[-1]["content"])
        if graded:
            return "C" if graded[1] == "unknown" else "B"
        plans = [(place, found[1]) for place, each in enumerate(messages) if (found := PLAN.search(each["content"]))]
        place, plan = plans[-1]
        step = STEP.search(plan)
        seen = messages[place + 1 :]
        if step is None:
            return "<answer>unknown</answer>"
        relation, entity = step.groups()
        if not seen:
            call = {"name": "search", "arguments": {"query_list": [f"{entity} {relation}"]}}
            return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
        told = re.escape(f"The {relation} of {entity} is ")
        found = re.search(rf"^{told}(.+)\.$", seen[-1]["content"], re.MULTILINE)
        return f"<answer>{found[1] if found else 'unknown'}</answer>"


def completion(policy: Policy, body: dict) -> dict:
    text = policy.reply(body["messages"])
    usage = {"prompt_tokens": sum(len(str(m)) for m in body["messages"]) // 4, "completion_tokens": len(text) // 4}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"object": "chat.completion", "model": "planned", "choices": [choice], "usage": usage}


def respond(policy: Policy, head: bytes, body: bytes) -> tuple[str, dict]:
    if b"/chat/completions" not in head.split(b"\r\n")[0]:
        return "200 OK", {"object": "list", "data": [{"id": "planned", "owned_by": "tests", "max_model_len": 32768}]}
    request_id, asked = re.search(rb"x-request-id: *(\S+)", head, re.IGNORECASE), json.loads(body)
    if request_id and policy.refuses(request_id[1].decode(), asked):
        return "503 Service Unavailable\r\nRetry-After: 0", {"error": {"message": "refused, as --fail has it"}}
    return "200 OK", completion(policy, asked)


async def answer(reader, writer, policy) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        status, found = respond(policy, head, await reader.readexactly(int(length[1]) if length else 0))
        content = json.dumps(found, ensure_ascii=False).encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n".encode())
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        await writer.drain()
    writer.close()


async def main(options) -> None:
    policy = Policy(options.fail, options.fail_judge)

    async def connected(reader, writer) -> None:
        try:
            await answer(reader, writer, policy)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fail", type=float, default=0.0, metavar="SHARE", help="of the Executor's requests to refuse")
    parser.add_argument("--fail-judge", type=float, default=0.0, metavar="SHARE", help="of the Judge's to refuse")
    asyncio.run(main(parser.parse_args()))
