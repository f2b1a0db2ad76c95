import pytest

from mia.errors import ConfigError
from mia.runtime.settings import (
    SNIPPET,
    ModelServiceSettings,
    RoleSettings,
    SearchServiceSettings,
    known_names,
    load,
    names,
)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in known_names():
        monkeypatch.delenv(name, raising=False)


def test_a_documented_name_is_read_and_an_option_wins(monkeypatch):
    monkeypatch.setenv("MIA_TOPK", "5")
    assert load(RoleSettings).topk == 5
    assert load(RoleSettings, topk=7).topk == 7
    assert load(RoleSettings, topk=None).topk == 5


def test_the_released_names_still_work(monkeypatch):
    monkeypatch.setenv("SERVICE_URL", "http://host:1")
    monkeypatch.setenv("MAX_LLM_CALL_PER_RUN", "30")
    settings = load(RoleSettings)
    assert (settings.search_url, settings.max_calls) == ("http://host:1", 30)


def test_a_field_name_is_no_environment_name(monkeypatch):
    monkeypatch.setenv("HOME", "/elsewhere")
    assert str(load(RoleSettings).home) == "runs"


def test_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv("MIA_TOKPK", "5")
    with pytest.raises(ConfigError, match="MIA_TOKPK"):
        load(RoleSettings)


def test_a_name_in_a_dotenv_file_is_read_and_an_unknown_one_refused(tmp_path):
    (tmp_path / ".env").write_text("MIA_TOPK=9")
    assert load(RoleSettings).topk == 9
    (tmp_path / ".env").write_text("MIA_TOPKK=9")
    with pytest.raises(ConfigError, match="MIA_TOPKK"):
        load(RoleSettings)
    (tmp_path / ".env").write_bytes(b"MIA_TOPK=\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(RoleSettings)


@pytest.mark.parametrize("kind", [RoleSettings, SearchServiceSettings, ModelServiceSettings])
def test_every_setting_can_be_set_to_its_default_as_text(kind, monkeypatch):
    resolved = load(kind)
    for name, choices in names(kind).items():
        value = getattr(resolved, name)
        if value is not None:
            monkeypatch.setenv(choices[0], str(value))
    assert load(kind) == resolved


def test_deadlines_that_do_not_nest_are_refused(monkeypatch):
    monkeypatch.setenv("MIA_EPISODE_SECONDS", "100")
    with pytest.raises(ConfigError, match="MIA_TURN_SECONDS must be less"):
        load(RoleSettings)


@pytest.mark.parametrize(("name", "value"), [("MIA_TOPK", "many"), ("MIA_TOPK", "0"), ("MIA_MEMORY_SCORE", "best")])
def test_a_value_that_does_not_fit_names_its_setting(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        load(RoleSettings)


def test_secrets_do_not_show(monkeypatch):
    monkeypatch.setenv("MIA_TOKEN", "hush")
    assert "hush" not in repr(load(RoleSettings)) + str(load(RoleSettings).model_dump(mode="json"))


def test_every_setting_has_an_environment_name():
    for kind in (RoleSettings, SearchServiceSettings):
        assert all(names(kind).values())
    assert "SEARCH_PORT" in known_names()


def test_passages_are_cut_for_the_small_model_alone_unless_it_is_set():
    assert load(RoleSettings).snippet_words == SNIPPET
    assert load(RoleSettings, snippet=0).snippet_words == 0
    assert load(RoleSettings, model="http://host:1/v1").snippet_words == 0
    assert load(RoleSettings, executor_url="http://host:1/v1").snippet_words == 0
    assert load(RoleSettings, executor_url="http://host:1/v1", snippet=50).snippet_words == 50
