import asyncio
import runpy
import secrets
from pathlib import Path

SCENARIO = Path(__file__).parents[3] / "benchmarks" / "memory_crash.py"


def test_a_kill_at_any_moment_loses_and_doubles_nothing():
    crashes = runpy.run_path(str(SCENARIO))["crashes"]
    tally = asyncio.run(crashes(kills=20, each=10, seed=secrets.randbits(32)))  # a failure tells the seed
    assert tally.kills == 20
    assert tally.in_flight > 0
    assert tally.recalls > 0
