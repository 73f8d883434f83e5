"""The page in a real browser: teach, watch, reload, ask, and be told what is unknown. Run by `make test-browser`.

Set SCREENSHOTS to a folder to keep pictures of the page: 1280 and 390 pixels wide, light and dark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clom.data.folders import Pictures, read_folder
from clom.methods.clom import Clom, ClomSettings
from clom.nets import AdapterSettings
from clom.photos.teach import learn_pictures
from clom.serve.client import Client
from clom.serve.lessons.stored_lesson import Assignment, StoredLesson
from clom.serve.security import Access
from clom.storage.model_file import save_model
from serve.running import pictures, serving, wait_until, warm_model

pytest.importorskip("playwright", reason="make test-browser installs it")
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

SIDE = 96


@pytest.fixture(scope="module")
def client(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server whose model knows patterns: pretrained features, and lessons of a few seconds."""
    learning = {
        "plan": {"epochs": 3, "batch": 8},
        "augmentation": {"crop_area": (0.5, 1.0)},
        "head": {"views": 1},
    }
    settings = ClomSettings.model_validate({"memory_per_class": 4, "learning": learning})
    method = Clom(AdapterSettings(), settings, (3, SIDE, SIDE))
    patterns: Pictures = read_folder(photos / "patterns", SIDE)
    learn_pictures(method, patterns, "patterns")
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, method)
    with serving(path) as (found, _):
        yield found


@pytest.fixture
def page(browser: Browser, client: Client) -> Iterator[Page]:
    """A page that must not complain: neither scripts nor the Content-Security-Policy."""
    found = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    local = (client.url, "blob:", "data:")
    found.on("pageerror", lambda problem: complaints.append(str(problem)))
    found.on("console", lambda text: complaints.append(text.text) if text.type == "error" else None)
    found.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith(local) else None)
    found.goto(client.url)
    yield found
    found.close()
    assert complaints == []


def picture(page: Page, name: str) -> None:
    """Keep a picture of the page, if somebody wants to look at it."""
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{folder}/{name}.png", full_page=True, caret="initial")  # hiding it breaks the policy


def ask(page: Page, files: list[Path]) -> list[str]:
    """Ask on an empty page; the verdicts in the order of the files."""
    page.goto(page.url.partition("#")[0] + "#ask")
    if page.locator("#ask-clear").is_visible():
        page.click("#ask-clear")
    page.set_input_files("#ask-files", files)
    expect(page.locator(".card .bars")).to_have_count(len(files), timeout=30_000)
    verdicts: list[str] = page.locator(".card .verdict").all_text_contents()
    return verdicts


def test_teaches_asks_and_survives_a_reload(page: Page, client: Client, photos: Path) -> None:
    page.click("nav >> text=Teach")
    page.click("#teach-go")
    expect(page.locator("#teach-problem")).to_contain_text("two classes or more")
    names, files = page.locator(".class input[type=text]"), page.locator(".class input[type=file]")
    for place, name in enumerate(("circles", "squares")):
        names.nth(place).fill(name)
        files.nth(place).set_input_files(sorted((photos / "shapes" / name).iterdir())[: 3 if place else None])
    expect(page.locator(".amount").nth(0)).to_contain_text("12 pictures: enough")
    expect(page.locator(".amount").nth(1)).to_contain_text("at least 5 are required")
    page.click("#teach-go")
    expect(page.locator("#teach-problem")).to_contain_text("needs 5 pictures or more")
    files.nth(1).set_input_files(sorted((photos / "shapes" / "squares").iterdir())[3:])
    page.fill("#teach-name", "shapes")
    page.click("#teach-go")
    expect(page.locator("#job-title")).to_have_text("Learning shapes")
    page.reload()
    expect(page.locator("#job-title")).to_have_text("Learning shapes", timeout=10_000)
    # A fast machine may have learned everything before the time left is known.
    learned = "document.querySelector('#job-done')?.textContent.startsWith('Learned')"
    time_left = "document.querySelector('#teach-job .left')?.textContent.includes('left')"
    wait_until(lambda: page.evaluate(f"Boolean({time_left} || {learned})"))
    wait_until(lambda: page.evaluate(f"Boolean(document.querySelector('progress')?.value > 0 || {learned})"))
    picture(page, "learning")
    # Questions are answered meanwhile, by what it knew before.
    stripes = sorted((photos / "new" / "stripes").iterdir())
    assert client.predict(stripes[:1], false_rejection=0)["answers"][0]["guesses"][0]["class_name"] == "stripes"
    expect(page.locator("#job-done")).to_have_text("Learned: circles, squares", timeout=120_000)
    expect(page.locator(".proof")).to_contain_text("Nothing was forgotten")
    picture(page, "learned")
    task = client.model()["tasks"][0]
    expect(page.locator(".proof code")).to_have_attribute("title", task["fingerprint"])
    page.click("text=Ask it")
    expect(page.locator("#ask-lead")).to_contain_text("circles and squares")
    new = {name: sorted((photos / "new" / name).iterdir()) for name in ("circles", "squares", "stripes", "dots")}
    asked = [path for paths in new.values() for path in paths]
    page.fill("#ask-rate", "0")
    assert ask(page, asked) == [name for name, paths in new.items() for _ in paths]
    page.fill("#ask-rate", "10")
    assert ask(page, sorted((photos / "other").iterdir())) == ["Unknown"] * 3
    expect(page.locator("#ask-cost")).to_contain_text("held out")
    # Only patterns to choose from: the answer within the task.
    page.select_option("#ask-task", "patterns")
    page.fill("#ask-rate", "0")
    assert set(ask(page, new["circles"])) <= {"dots", "stripes"}


def test_a_lesson_can_be_cancelled(page: Page, client: Client, photos: Path) -> None:
    before = client.model()["version"]
    page.goto(f"{client.url}#teach")
    for place, name in enumerate(("stars", "checks")):
        page.locator(".class input[type=text]").nth(place).fill(name)
        page.locator(".class input[type=file]").nth(place).set_input_files(sorted((photos / "unused" / name).iterdir()))
    page.click("#teach-go")
    page.click("#teach-job >> text=Cancel")
    expect(page.locator("#teach-job")).to_contain_text("The model is unchanged", timeout=20_000)
    assert client.model()["version"] == before
    expect(page.locator(".class input[type=text]").nth(0)).to_have_value("stars")


def test_the_camera_takes_a_picture(page: Page) -> None:
    page.click("#ask-camera")
    expect(page.locator("#camera")).to_be_visible()
    wait_until(lambda: page.evaluate("document.getElementById('camera-view').videoWidth") > 0)
    page.click("#camera-take")
    expect(page.locator(".card .bars")).to_have_count(1, timeout=30_000)
    expect(page.locator("#camera")).not_to_be_visible()


def test_everything_can_be_reached_with_the_keyboard(page: Page) -> None:
    """The order of focus is the order of reading."""
    expect(page.locator("#ask-drop")).to_be_visible()
    seen = []
    for _ in range(10):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert seen[:4] == ["Skip to the content", "Ask", "Teach", "Look inside"]
    assert seen[4:9] == ["ask-files", "ask-folder", "ask-camera", "ask-task", "ask-rate"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_anyone_can_read_it(browser: Browser, client: Client, photos: Path, width: int, scheme: Any) -> None:
    """No finding of axe-core in any section, nothing wider than the screen; pictures for people to look at."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
    for section in ("#ask", "#teach", "#inside", "docs"):
        page.goto(f"{client.url}/{section}")
        prepare(page, section, photos)
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{section} is wider than the screen"
        picture(page, f"{section.strip('#')}-{width}-{scheme}")
    page.close()


def prepare(page: Page, section: str, photos: Path) -> None:
    """Each section with something in it."""
    if section == "#ask":
        files = [next((photos / place).iterdir()) for place in ("new/circles", "new/dots", "other")]
        page.set_input_files("#ask-files", files)
        expect(page.locator(".card .bars")).to_have_count(3, timeout=30_000)
    elif section == "#teach":
        page.locator(".class input[type=text]").nth(0).fill("stars")
        page.locator(".class input[type=file]").nth(0).set_input_files(sorted((photos / "unused/stars").iterdir()))
        page.click("#teach-go")
        expect(page.locator("#teach-problem")).to_be_visible()
        page.evaluate("window.scrollTo(0, 0)")
    elif section == "#inside":
        expect(page.locator(".grid, #inside-apart p:not([role])")).not_to_have_count(0, timeout=60_000)
        page.click("summary")
    else:
        expect(page.locator(".route")).not_to_have_count(0)


def test_after_a_restart_it_offers_to_go_on(browser: Browser, tmp_path: Path) -> None:
    """Also to who has to enter the token first."""
    path = warm_model(tmp_path / "model.safetensors")
    left = pictures("blue", "yellow")
    lesson = Assignment("abc", "pets", ("cat", "dog"), (10, 10), ())
    StoredLesson(path).write(lesson, left.images.pixels, left.images.labels.tolist())
    with serving(path, access=Access(token="let me in")) as (client, _):
        page = browser.new_page()
        page.goto(client.url)
        expect(page.locator("#teach-job")).to_contain_text("pets was interrupted")
        page.click("button:has-text('Resume')")
        expect(page.locator("#teach-job .said-here")).to_contain_text("right token")
        page.fill("#teach-token", "let me in")
        page.click("button:has-text('Resume')")
        expect(page.locator("#job-done")).to_have_text("Learned: cat, dog", timeout=60_000)
        page.close()
    assert not StoredLesson(path).folder.exists()
