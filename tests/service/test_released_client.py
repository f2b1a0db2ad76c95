"""A client written from the released call sequence alone (no part of `mia`), against the service as it is started."""

import json
import os
import re
import subprocess
import sys

import httpx
import pytest
from served import served

QUESTION = "Which country is Aba in?"
AGAIN = "In which country is Aba?"


def chat(url, messages):
    body = {"model": "qwen", "messages": messages, "temperature": 0}
    return httpx.post(f"{url}/chat/completions", json=body).json()["choices"][0]["message"]["content"]


class Client:
    """One question's road: plan, carry out, judge, plan again, remember."""

    def __init__(self, service, model, search, output):
        self.service, self.model, self.search, self.output = service, model, search, output

    def ask(self, route, element):
        answer = httpx.post(f"{self.service}{route}", json=[element], timeout=60)
        answer.raise_for_status()
        return answer.json()[0]

    def run(self, item, truth):
        named = {name: item[name] for name in ("data_id", "question", "image_caption")}
        planned = self.ask("/plan", {**named, "mem_top_k": 2})
        memory_indices = planned["pos_indices"] + planned["neg_indices"]
        guide = f"Question: {item['question']}\nGuide: {planned['plan']}"
        dialogue, trace = [{"role": "user", "content": guide}], [f"Question: {item['question']}"]
        answer = self.carry_out(dialogue, trace)
        judged = {"workflow": "\n".join(trace), "past_messages": planned["messages"], "memory_indices": memory_indices}
        decision = self.ask("/judge_replan", judged)
        if "yes" in decision["need_replan"]:
            past = {"past_messages": decision["messages"], "mem_top_k": 0, "pass_num": 2}
            revised = self.ask("/replan", {**named, **past})
            assert revised["pos_indices"] == revised["neg_indices"] == []
            dialogue[-1]["content"] = dialogue[-1]["content"].partition("<answer>")[0]
            dialogue.append({"role": "user", "content": f"A revised plan: {revised['replan']}\nGo on."})
            answer = self.carry_out(dialogue, trace)
        saved = {
            "data_id": item["data_id"],
            "question": item["question"],
            "image_caption": item["image_caption"][0] if item["image_caption"] else "",
            "messages": dialogue[1:],
            "plan": planned["plan"],
            "judgement": "correct" if answer == truth else "incorrect",
            "used_memory_indices": memory_indices,
        }
        done = httpx.post(f"{self.service}/batch_memory_save", json=[saved], timeout=60)
        written = httpx.post(
            f"{self.service}/save_memory", json={"save_path": f"{self.output}/memory.jsonl"}, timeout=60
        )
        assert done.json()["status"] == written.json()["status"] == "success"
        return planned, decision, answer, written.json()

    def carry_out(self, dialogue, trace):
        for number in range(1, 9):
            reply = chat(self.model, dialogue)
            dialogue.append({"role": "assistant", "content": reply})
            trace.append(f"Round {number}\n{reply}")
            call = re.search(r"<tool_call>(.*)</tool_call>", reply)
            if not call:
                return re.search(r"<answer>(.*)</answer>", reply).group(1)
            found = httpx.post(self.search, json=json.loads(call.group(1))["arguments"]).text
            dialogue.append({"role": "user", "content": f"<tool_response>\n{found}\n</tool_response>"})
            trace.append(found)
        raise AssertionError("no answer came")


def model_server(request):
    """Plays every role: the Executor finds the answer after a revised plan, or at once with a memory of the question."""
    if request.url.path.endswith("/models"):
        return httpx.Response(200, json={"data": [{"id": "qwen", "max_model_len": 16384}]})
    if not request.url.path.endswith("/chat/completions"):
        return httpx.Response(404)
    messages = json.loads(request.content)["messages"]
    said = "\n".join(message["content"] for message in messages)
    last = messages[-1]["content"]
    if said.startswith("You write the memory"):
        reply = "1. Find the place (its name -> a page about it)"
    elif "Decide whether a revised plan" in last:
        reply = "<think>Nothing was found.</think>Yes" if "unknown" in last else "no"
    elif said.startswith("You are the planner"):
        known = "a memory of it" if "This worked" in said else "nothing"
        reply = f"<think>{known}</think>1. Search by {known}."
    elif last.startswith("<tool_response>"):
        reply = f"<answer>{'Nigeria' if 'revised' in said or 'a memory of it' in said else 'unknown'}</answer>"
    else:
        reply = '<tool_call>{"name": "search", "arguments": {"query_list": ["Aba"]}}</tool_call>'
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}
    return httpx.Response(200, json={"model": "qwen", "choices": [choice], "usage": {}})


def searched(request):
    return httpx.Response(200, json={"result": [["Aba is a city in Nigeria."] for _ in json.loads(request.content)]})


@pytest.fixture
def service(tmp_path):
    with served(model_server) as model, served(searched) as search:
        names = {name: value for name, value in os.environ.items() if not name.startswith("MIA_")} | {
            "MEMORY_URL": f"{model}/v1",
            "PLAN_URL": f"{model}/v1",
            "MEMORY_DIR": str(tmp_path / "files"),
            "MIA_MEMORY_PATH": str(tmp_path / "memory.sqlite"),
            "MIA_ENCODER": "hashed",
        }
        command = [sys.executable, "-m", "mia.cli.main", "serve", "memory", "--port", "0"]
        with subprocess.Popen(command, env=names, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
            try:
                lines = map(json.loads, process.stderr)
                port = next(line["port"] for line in lines if line["message"] == "ready")
                yield Client(f"http://127.0.0.1:{port}", f"{model}/v1", f"{search}/retrieve", "/results/run1"), tmp_path
            finally:
                process.terminate()
                process.stderr.read()


def test_a_released_client_completes_questions_and_the_second_recalls_the_first(service):
    client, folder = service
    planned, decision, answer, written = client.run(
        {"data_id": "1", "question": QUESTION, "image_caption": []}, "Nigeria"
    )
    assert planned["plan"] == "1. Search by nothing."
    assert (planned["pos_indices"], planned["neg_indices"]) == ([], [])
    assert [message["role"] for message in planned["messages"]] == ["system", "user", "assistant"]
    assert (decision["need_replan"], answer) == ("yes", "Nigeria")
    assert written["path"] == str(folder / "files" / "memory.jsonl")
    planned, decision, answer, _ = client.run({"data_id": "2", "question": AGAIN, "image_caption": []}, "Nigeria")
    assert planned["plan"] == "1. Search by a memory of it."
    assert planned["pos_indices"] == [1]
    assert (decision["need_replan"], answer) == ("no", "Nigeria")
    (first, second) = json.loads((folder / "files" / "memory.jsonl").read_text(encoding="utf-8"))["text-only"]["others"]
    assert (first["question"], first["usage_count"], first["success_count"]) == (QUESTION, 2, 2)
    assert first["workflow_summary"] == "1. Find the place (its name -> a page about it)"
    assert second["question"] == AGAIN
    ready = httpx.get(f"{client.service}/readyz").json()
    assert ready["dependencies"] == {"bank": "ok", "planner": "ok", "manager": "ok"}
