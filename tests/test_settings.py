"""The table of settings: how values are read, what a wrong one gets, and that the reference page is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from matex_tf import errors, settings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"


def test_the_reference_page_is_the_table():
    assert PAGE.read_text() == settings.format_reference(), "run: python -m matex_tf.settings > docs/settings.md"


def test_every_setting_is_in_the_reference():
    for setting in (*settings.TABLE, *settings.INTERNAL):
        assert f"`{setting.variable}`" in settings.format_reference()


def test_defaults_are_in_force_without_variables():
    values = settings.Settings({"PATH": "/bin"})
    for setting in (*settings.TABLE, *settings.INTERNAL):
        if setting.default is not None or setting.name == "plan":
            assert getattr(values, setting.name) == setting.default


@pytest.mark.parametrize("end, warns", [("600", 60), ("0", 60), ("60", 6), ("3", 1), ("100000", 60)])
def test_ranks_that_wait_are_reported_well_before_the_job_ends(end, warns):
    assert settings.Settings({"MATEX_ABORT_SECONDS": end}).stall_seconds == warns
    assert settings.Settings({"MATEX_ABORT_SECONDS": end, "MATEX_STALL_SECONDS": "7"}).stall_seconds == 7


@pytest.mark.parametrize(
    "variable, text, value",
    [
        ("MATEX_DISABLE", "1", True),
        ("MATEX_DISABLE", "off", False),
        ("MATEX_SCALING", "WEAK", "weak"),
        ("MATEX_CHUNK_BYTES", "65536", 65536),
        ("MATEX_FUSE_BYTES", "0", 0),
        ("MATEX_PLACEMENT", "spread", "spread"),
        ("MATEX_STRATEGY", "async:0", "async:0"),
        ("MATEX_STRATEGY", "Servers:2:only", "servers:2:only"),
        ("MATEX_COMPRESSION", "BF16", settings.Compression("bf16")),
        ("MATEX_COMPRESSION", "topk:1e-2", settings.Compression("topk", 0.01)),
        ("MATEX_COMPRESSION", "FP16:hosts", settings.Compression("fp16", between_hosts=True)),
        ("MATEX_COMPRESSION", "topk:0.5:hosts", settings.Compression("topk", 0.5, True)),
        ("MATEX_LOG_DIR", "logs", "logs"),
    ],
)
def test_values_are_read(variable, text, value):
    name = variable.removeprefix(settings.PREFIX).lower()
    assert getattr(settings.Settings({variable: text}), name) == value


def test_on_and_off_have_the_same_words_everywhere():
    ways = {"on": ("1", "true", "Yes", "on"), "off": ("0", "false", "no", "OFF")}
    choices = [setting for setting in settings.TABLE if "off" in setting.values.split(", ")]
    assert len(choices) >= 4
    for setting in choices:
        for meant in {"on", "off"} & set(setting.values.split(", ")):
            assert [setting.parse(text) for text in ways[meant]] == [meant] * 4
    with pytest.raises(errors.SettingError):
        settings.Settings({"MATEX_PLACEMENT": "1"})


@pytest.mark.parametrize(
    "variable, text",
    [
        ("MATEX_DISABLE", "maybe"),
        ("MATEX_SCALING", "medium"),
        ("MATEX_CHUNK_BYTES", "-1"),
        ("MATEX_CHUNK_BYTES", "1MB"),
        ("MATEX_FUSE_BYTES", "-1"),
        ("MATEX_PLACEMENT", "on"),
        ("MATEX_ALGORITHM", "tree"),
        ("MATEX_STRATEGY", "servers"),
        ("MATEX_STRATEGY", "servers:only"),
        ("MATEX_STRATEGY", "servers:auto:only"),
        ("MATEX_STRATEGY", "servers:0:only"),
        ("MATEX_STRATEGY", "async:2:only"),
        ("MATEX_STRATEGY", "async:-1"),
        ("MATEX_STRATEGY", "async:"),
        ("MATEX_STRATEGY", "allreduce:2"),
        ("MATEX_OVERLAP", "perhaps"),
        ("MATEX_PROFILE", "table"),
        ("MATEX_COMPRESSION", "topk"),
        ("MATEX_COMPRESSION", "topk:0"),
        ("MATEX_COMPRESSION", "topk:nan"),
        ("MATEX_COMPRESSION", "topk:1.5"),
        ("MATEX_COMPRESSION", "bf16:0.5"),
        ("MATEX_COMPRESSION", "int8"),
        ("MATEX_COMPRESSION", "fp16:nodes"),
        ("MATEX_COMPRESSION", "none:hosts"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(variable, text):
    with pytest.raises(errors.SettingError, match=f"{variable}='{text}': expected "):
        settings.Settings({variable: text})


def test_a_wrong_choice_is_answered_with_the_right_ones():
    with pytest.raises(errors.SettingError, match="MATEX_ALGORITHM='tree'.* auto, mpi, ring"):
        settings.Settings({"MATEX_ALGORITHM": "tree"})


def test_a_wrong_compression_is_answered_with_the_right_ones():
    with pytest.raises(errors.SettingError, match="MATEX_COMPRESSION='gzip'.* none, bf16, fp16.* topk:"):
        settings.Settings({"MATEX_COMPRESSION": "gzip"})


def test_a_misspelt_setting_is_answered_with_the_right_ones():
    with pytest.raises(errors.SettingError, match="MATEX_SCALE .*MATEX_SCALING"):
        settings.Settings({"MATEX_SCALE": "weak"})


def test_elastic_runs_overlap_nothing():
    assert settings.Settings({"MATEX_ELASTIC": "1"}).overlap == "off"
    with pytest.raises(errors.SettingError, match="MATEX_ELASTIC=1 .*MATEX_OVERLAP=on"):
        settings.Settings({"MATEX_ELASTIC": "1", "MATEX_OVERLAP": "on"})
    with pytest.raises(errors.SettingError, match="MATEX_STRATEGY=servers:2:only"):
        settings.Settings({"MATEX_ELASTIC": "1", "MATEX_STRATEGY": "servers:2:only"})


@pytest.mark.parametrize("strategy", ["async", "async:0"])
def test_shares_of_batches_are_not_adapted_where_a_rank_trains_whole_ones(strategy):
    with pytest.raises(errors.SettingError, match="MATEX_ADAPT=on .*MATEX_STRATEGY=async"):
        settings.Settings({"MATEX_ADAPT": "on", "MATEX_STRATEGY": strategy})


@pytest.mark.parametrize("exponent", range(12))
def test_bytes_for_people_are_near_what_they_stand_for(exponent):
    for digits in (1, 1.04, 9.96, 9.994):
        amount = round(digits * 10**exponent)
        text = settings.format_bytes(amount)
        assert settings.parse_size(text) == pytest.approx(amount, rel=0.05) and len(text) <= 7
        assert 1 <= float(text.split()[0]) < 1000
