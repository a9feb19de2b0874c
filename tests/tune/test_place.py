"""The folder of a trial: it looks like the user's, and what a trial does there stays there. How values are told."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from matex_tf.files import mirror
from matex_tf.files.mirror import make_mirror_command
from matex_tf.tune import space_file
from matex_tf.tune.rungs import Rungs
from matex_tf.tune.space_file import SpaceError
from matex_tf.tune.starter import Starter
from matex_tf.tune.trials import place


def asked(text):
    return space_file.read_space(text, "space.yaml")


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "user"
    for folder in ("data", "logs", "runs/old", ".venv", "far"):
        (root / folder).mkdir(parents=True)
    (root / ".venv" / "pyvenv.cfg").write_text("")
    (root / "train.py").write_text("print(1)")
    (root / "data" / "a.csv").write_text("1,2")
    (root / "logs" / "old").write_text("before")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.csv").write_text("3")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "broken").symlink_to(tmp_path / "nowhere")
    return root


def lay_out(source, tmp_path):
    target = tmp_path / "trial" / "place"
    return target, mirror.mirror_folder(source, target, {source / "runs"})


def test_what_a_trial_writes_stays_in_its_place(source, tmp_path):
    target, made = lay_out(source, tmp_path)
    assert (target / "data" / "a.csv").read_text() == "1,2" and (target / "linked" / "b.csv").read_text() == "3"
    assert not (target / "runs").exists() and not (target / ".venv").exists() and not (target / "broken").exists()
    (target / "train.py").write_text("changed")
    (target / "logs" / "old").write_text("after")
    (target / "model").write_text("new")
    assert (source / "train.py").read_text() == "print(1)" and (source / "logs" / "old").read_text() == "before"
    place.clean_folder(target, made)
    left = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert left == {"train.py", "logs/old", "model"} and not (target / "data").exists()
    assert (tmp_path / "elsewhere" / "b.csv").exists(), "what a link leads to is not ours"


@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta/history"])
@pytest.mark.parametrize("name", ["env", "venv", "of my own"])
def test_environments_of_python_are_not_copied_whatever_they_are_called(source, tmp_path, name, marker):
    """Their packages are found by Python, wherever a script runs."""
    inner = source / name / "lib" / "site-packages"
    inner.mkdir(parents=True)
    (inner / "large").write_text("large")
    mark = source / name / marker
    mark.parent.mkdir(exist_ok=True)
    mark.write_text("")
    (source / "packages").symlink_to(inner)
    target, _ = lay_out(source, tmp_path)
    assert not (target / name).exists() and (target / "packages" / "large").exists()


def test_links_stay_within_the_place_and_those_of_the_trial_are_its_own(source, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for name, leads in {
        "again": "linked", "latest": "later", "current": source / "data", "up": "..", "old": "runs/old", "odd": "odd",
        "bad": tmp_path / "loop",
    }.items():  # fmt: skip
        (source / name).symlink_to(leads)
    (elsewhere / "back").symlink_to(elsewhere)
    (tmp_path / "loop").symlink_to("loop")
    (source / "runs" / "old" / "log").write_text("theirs")
    target, made = lay_out(source, tmp_path)
    for name in ("linked", "again", "current", "linked/back", "linked/back/back"):
        (target / name / "new").write_text("new")
    (target / "later").mkdir()
    (target / "latest" / "weights").write_text("1")
    assert (target / "old" / "log").read_text() == "theirs" and (target / "up" / "user" / "train.py").exists()
    (target / "mine").symlink_to("later")
    (target / "logs").rename(target / "aside")
    (target / "logs").symlink_to(source / "logs")
    assert mirror.mirror_folder(source, target, {source / "runs"}).copies.keys() < made.copies.keys()
    place.clean_folder(target, made)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["b.csv", "back"] and (source / "logs/old").exists()
    assert not (source / "data" / "new").exists() and not (source / "later").exists()
    assert {path.name for path in target.iterdir() if path.is_symlink()} == {"mine", "logs"}
    assert (target / "later" / "weights").exists() and (target / "data" / "new").exists()


def test_a_link_of_the_user_stays_where_a_trial_has_led_there(source, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "COPIED_BYTES", 0)
    (tmp_path / "large").write_text("x")
    (source / "logs" / "large").symlink_to(tmp_path / "large")
    target, made = lay_out(source, tmp_path)
    (target / "logs").rename(target / "aside")
    (target / "logs").symlink_to(source / "logs")
    place.clean_folder(target, made)
    assert (source / "logs" / "large").is_symlink()


def test_however_many_folders_there_are_no_more_than_so_many_entries_are_copied(source, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "ENTRIES", 40)
    for number in range(20):
        (source / "far" / str(number)).mkdir()
        for name in range(9):
            (source / "far" / str(number) / str(name)).write_text("x")
    target, made = lay_out(source, tmp_path)
    assert len(made.copies) <= 40 and len(made.folders) == 19
    assert all((target / "far" / str(number) / "8").read_text() == "x" for number in range(20)), "all of it is there"


def test_large_files_are_linked_and_a_trial_that_writes_one_is_found_out(source, tmp_path, monkeypatch):
    (source / "large").write_text("x" * 100)
    monkeypatch.setattr(mirror, "COPIED_BYTES", 50)
    target, made = lay_out(source, tmp_path)
    assert (target / "large").is_symlink() and not (target / "train.py").is_symlink()
    assert made.list_changed_originals() == []
    (target / "large").write_text("overwritten")
    assert made.list_changed_originals() == [source / "large"]


def test_all_copies_together_have_a_limit(source, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "ALL_COPIED_BYTES", 9)
    target, _ = lay_out(source, tmp_path)
    assert not (target / "train.py").is_symlink() and (target / "logs" / "old").is_symlink()


def test_a_folder_with_very_much_in_it_is_linked_whole_and_named(source, tmp_path, monkeypatch):
    for number in range(30):
        (source / "data" / str(number)).write_text("")
    monkeypatch.setattr(mirror, "ENTRIES", 20)
    target, made = lay_out(source, tmp_path)
    assert made.folders[0] == Path("data") and (target / "data").is_symlink()
    assert (target / "data" / "29").exists() and not (target / "logs").is_symlink()


def test_what_is_shared_is_named_by_its_place_and_only_where_the_mirror_has_it(source, tmp_path, monkeypatch):
    (tmp_path / "elsewhere" / "images").mkdir()
    for number in range(30):
        (tmp_path / "elsewhere" / "images" / str(number)).write_text("")
        (source / "data" / str(number)).write_text("")
    monkeypatch.setattr(mirror, "ENTRIES", 25)
    target, made = lay_out(source, tmp_path)
    assert made.folders == [Path("data"), Path("linked/images")]
    (target / "data").unlink()
    (target / "data").symlink_to("logs")
    assert lay_out(source, tmp_path)[1].folders == [Path("linked/images")], "a link of the trial's own shares nothing"


def test_what_trials_share_is_said_before_one_starts(source, tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / "elsewhere" / str(number)).write_text("")
    monkeypatch.setattr(mirror, "ENTRIES", 20)
    said, folder = [], tmp_path / "search"
    folder.mkdir()
    where = SimpleNamespace(find_trial=lambda *_: None, start_trial=lambda *_: said.append("started"))
    wanted = asked("search: {--on: [a, b]}")
    asked_for = SimpleNamespace(source=str(source), limit=0)
    row = SimpleNamespace(folder=str(folder), target=["train.py"])
    search = Starter(row, asked_for, wanted, where, Rungs((), wanted.objective), lambda text, *_: said.append(text))
    search.start_trial(SimpleNamespace(number=1, seconds=0, rungs=(), config={"--on": "a"}), None)
    assert said[0].startswith("trials share linked, ") and said[1:] == ["started"]


@pytest.mark.parametrize("text, message", [("lr: 1", "is in none of conf.yaml"), ("{{lr}} {{m}}", "no placeholder m")])
def test_no_trial_starts_without_its_values_in_a_file_that_has_changed(source, tmp_path, text, message):
    (source / "conf.yaml").write_text(text)
    backend = SimpleNamespace(find_trial=lambda *_: None, start_trial=lambda *_: pytest.fail("it has started"))
    settings = SimpleNamespace(source=str(source), limit=0)
    row = SimpleNamespace(folder=str(tmp_path), target=["train.py"])
    wanted = asked("files: conf.yaml\nsearch: {lr: [a, b]}")
    starter = Starter(row, settings, wanted, backend, Rungs((), wanted.objective), pytest.fail)
    with pytest.raises(SpaceError, match=message):
        starter.start_trial(SimpleNamespace(number=1, seconds=0, rungs=(), config={"lr": "a"}), None)


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_search_is_never_in_its_own_trials_whatever_links_lead_there(source, tmp_path, is_linked):
    (source / "out").symlink_to(tmp_path / "scratch") if is_linked else (source / "out").mkdir()
    real = tmp_path / "scratch" if is_linked else source / "out"
    (real / "tune-1" / "trial-1" / "place").mkdir(parents=True)
    (real / "notes").write_text("kept")
    for name, leads in {
        "latest": "out/tune-1", "trial": "out/tune-1/trial-1", "here": "out/tune-1/trial-1/place", "env": ".venv",
        "all": "runs",
    }.items():  # fmt: skip
        (source / name).symlink_to(leads)
    search = source / "out" / "tune-1"
    target = search / "trial-1" / "place"
    for _ in range(2):  # the second when the trial goes on
        mirror.mirror_folder(source, target, {search, source / "runs"})
    names = {path.name for path in target.iterdir()}
    assert names == {"data", "logs", "far", "linked", "out", "train.py"}
    assert [path.name for path in (target / "out").iterdir()] == ["notes"]


def test_the_script_is_that_of_the_place(source, tmp_path):
    target, _ = lay_out(source, tmp_path)
    assert make_mirror_command(["train.py", "-a"], source, target) == [str(target / "train.py"), "-a"]
    assert make_mirror_command([str(source / "train.py")], source, target) == [str(target / "train.py")]
    assert make_mirror_command(["/bin/true"], source, target) == ["/bin/true"]
    (source / "linked.py").symlink_to("/bin/true")
    (source / "to-script.py").symlink_to("train.py")
    (tmp_path / "alias").symlink_to(source)
    target, _ = lay_out(source, tmp_path / "again")
    assert make_mirror_command(["to-script.py"], source, target) == [str(target / "to-script.py")]
    assert make_mirror_command([str(tmp_path / "alias" / "train.py")], source, target) == [str(target / "train.py")]
    assert make_mirror_command(["linked.py"], source, target) == [str(source / "linked.py")]
    assert make_mirror_command(["-m", "package"], source, target) == ["-m", "package"]


def test_how_values_are_told():
    space = asked(
        "files: f\nsearch: {--lr: {log: [1e-5, 1]}, -u: {int: [1, 9]}, --on: flag, --off: flag, "
        "$SEED: [1, 02, 3], r: [a, b]}"
    ).space
    config = {"--lr": 0.001, "-u": 3, "--on": "on", "--off": "off", "$SEED": "02", "r": "a"}
    assert place.list_options(space, config) == ["--lr=0.001", "-u", "3", "--on"]
    assert place.list_variables(config) == {"SEED": "02"}


def test_placeholders_are_filled_in_the_trials_own_copy(source, tmp_path, monkeypatch):
    (source / "conf.yaml").write_text("lr: {{lr}}\nmomentum: {{ m }}\njson: {}\n")
    found = asked(
        "files: conf.yaml\nsearch:\n  lr: {float: [0, 1]}\n  o: [a, b]\n"
        "  m: {int: [1, 2], when: {o: a}, otherwise: none}\n"
    )
    with pytest.raises(SpaceError, match=r"\{\{o\}\} is searched, but is in none of conf.yaml"):
        place.check_files(found, source)
    (source / "conf.yaml").write_text("lr: {{lr}}\nmomentum: {{ m }}\no: {{o}} {}\n")
    place.check_files(found, source)
    target, _ = lay_out(source, tmp_path)
    place.fill_placeholders(target, found, {"lr": 0.25, "o": "b"})
    assert (target / "conf.yaml").read_text() == "lr: 0.25\nmomentum: none\no: b {}\n"
    assert "{{lr}}" in (source / "conf.yaml").read_text()
    monkeypatch.setattr(mirror, "COPIED_BYTES", 0)
    linked = tmp_path / "other" / "place"
    mirror.mirror_folder(source, linked)
    place.fill_placeholders(linked, found, {"lr": 0.5, "o": "b"})
    assert "lr: 0.5" in (linked / "conf.yaml").read_text() and "{{lr}}" in (source / "conf.yaml").read_text()


def test_placeholders_in_a_folder_that_trials_share_are_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "ENTRIES", 20)
    for number in range(30):
        (source / "data" / str(number)).touch()
    (source / "data" / "conf.yaml").write_text("{{lr}}")
    target, _ = lay_out(source, tmp_path)
    with pytest.raises(SpaceError, match="trials share data, which .* would change your data/conf.yaml"):
        place.fill_placeholders(target, asked("files: data/conf.yaml\nsearch: {lr: [a, b]}"), {"lr": "a"})
    assert (source / "data" / "conf.yaml").read_text() == "{{lr}}"


def test_a_filled_file_keeps_its_mode_and_line_ends(source, tmp_path):
    (source / "run.sh").write_bytes(b"{{lr}}\r\n")
    (source / "run.sh").chmod(0o755)
    target, _ = lay_out(source, tmp_path)
    place.fill_placeholders(target, asked("files: run.sh\nsearch: {lr: [a, b]}"), {"lr": "a"})
    assert (target / "run.sh").read_bytes() == b"a\r\n" and os.access(target / "run.sh", os.X_OK)


@pytest.mark.parametrize(
    "file, content, message",
    [
        (
            "conf.yaml",
            "a\nlr: {{lrr}}",
            r"conf.yaml, line 2: \{\{lrr\}\}: there is no placeholder lrr; did you mean lr",
        ),
        ("no.yaml", None, "files: no.yaml: No such file"),
        ("../x.yaml", None, "x.yaml is not within"),
    ],
)
def test_wrong_files(source, file, content, message):
    if content is not None:
        (source / file).write_text(content)
    with pytest.raises(SpaceError, match=message):
        place.check_files(asked(f"files: {file}\nsearch: {{lr: [a, b]}}"), source)


def test_nothing_is_left_open(source, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    target, made = lay_out(source, tmp_path)
    place.clean_folder(Path(target), made)
    assert len(os.listdir("/proc/self/fd")) == before
