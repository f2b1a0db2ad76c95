"""What tests keep in a memory bank: small memories, plan pairs and rollouts."""

import numpy as np

from mia.memory.writing import Fresh, Vectors
from mia.types import Episode, Key, PlanPair, Question, Workflow


def vectors(question=(1, 0), caption=(0, 0)):
    return Vectors(np.array(question, np.float32), np.array(caption, np.float32))


def workflow(episode="run/0/q/0", **changes):
    values = {
        "question": "Which?",
        "summary": "1. look",
        "plan": "look",
        "correct": True,
        "question_id": "q",
        "model": "m",
        "created": 12.5,
    }
    return Workflow(id=0, episode=episode, **(values | changes))


def fresh(episode="run/0/q/0", *, twin=None, draft="", vector=(1, 0), caption=(0, 0), **changes):
    return Fresh(workflow(episode, **changes), twin or episode, vectors(vector, caption), draft)


def add(storage, episode="run/0/q/0", **changes):
    with storage.writing() as writing:
        assert writing.take_in([episode]) == {episode}
        (added,) = writing.add([fresh(episode, **changes)])
        return added


def pair(question_id="q", **changes):
    values = {"question": "Which?", "correct_plan": "look", "incorrect_plan": "guess", "created": 1.5}
    return PlanPair(id=0, question_id=question_id, **(values | changes))


def rollout(number=0, question_id="q", *, run="run", step=0):
    key = Key(run=run, step=step, question_id=question_id, rollout=number)
    return Episode(key=key, question=Question(id=question_id, text="Which?"))
