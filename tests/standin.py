"""A stand-in for a model server, over real HTTP: python tests/standin.py [--delay S] [--answers JSON] [--garbage].

It plays planner and executor, in any format: one plan, `--searches` searches with the question as query, then the answer that
of answers has for a piece of the question, then "no" to replanning. As Memory Manager it writes nothing of
use. Its first line of output is its port.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re


class Policy:
    def __init__(self, answers: dict[str, str], searches: int) -> None:
        self.answers = answers
        self.searches = searches

    def reply(self, messages: list[dict]) -> str:
        texts = [text_of(message["content"]) for message in messages]
        if texts[0].startswith("You are the planner"):
            return "no" if "### Round" in texts[-1] else "1. Search for the subject.\n2. Give the final answer."
        if texts[0].startswith("You write the memory"):
            return "I have nothing to write."
        question = re.search(r"Question: (.*)", "\n".join(texts)).group(1)
        said = [text for text, message in zip(texts, messages, strict=True) if message["role"] == "assistant"]
        if sum("<tool_call>" in text for text in said) < self.searches and "No more tool calls" not in texts[-1]:
            call = {"name": "search", "arguments": {"query_list": [question]}}
            return f"I search.\n<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
        answer = next((answer for piece, answer in self.answers.items() if piece in question), "unknown")
        return f"The evidence is enough.\n<answer>{answer}</answer>"


def text_of(content: str | list[dict]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def completion(policy: Policy, body: dict) -> dict:
    text = policy.reply(body["messages"])
    usage = {"prompt_tokens": sum(len(str(m)) for m in body["messages"]) // 4, "completion_tokens": len(text) // 4}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"object": "chat.completion", "model": "standin", "choices": [choice], "usage": usage}


async def answer(reader, writer, policy, options) -> None:
    models = {"object": "list", "data": [{"id": "standin", "owned_by": "tests", "max_model_len": 32768}]}
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length.group(1)) if length else 0)
        if b"/chat/completions" in head.split(b"\r\n")[0]:
            await asyncio.sleep(options.delay)
            found = b"\x00\xffhello" if options.garbage else json.dumps(completion(policy, json.loads(body))).encode()
        else:
            found = json.dumps(models).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(found), found))
        await writer.drain()
    writer.close()


async def main(options) -> None:
    answers = json.loads(options.answers)
    policy = Policy(answers, options.searches)

    async def connected(reader, writer) -> None:
        try:
            await answer(reader, writer, policy, options)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--answers", default="{}", help="JSON: piece of a question -> answer")
    parser.add_argument("--searches", type=int, default=1)
    parser.add_argument("--garbage", action="store_true")
    asyncio.run(main(parser.parse_args()))
